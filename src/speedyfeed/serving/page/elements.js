// Builds elements; text is always set as text, never as markup. Topics have a colour and a mark each.

export const $ = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "topic") colour(made, value);
    else if (key.includes("-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "topic") colour(made, value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const COLOURS = 6;
const MARKS = ["dot", "diamond", "triangle"];
const numbers = new Map();

// In alphabetical order, so that a topic looks the same whatever is published.
export function setTopics(names) {
  numbers.clear();
  [...names].sort().forEach((name, number) => numbers.set(name, number));
}

export const numberOf = (topic) => numbers.get(topic) ?? -1;

// Six colours that stay apart for colour-blind readers too; beyond six topics the marks differ.
export const markOf = (topic) => MARKS[Math.max(0, Math.floor(numberOf(topic) / COLOURS)) % MARKS.length];

function colour(made, topic) {
  const number = numberOf(topic);
  made.style.setProperty("--hue", number < 0 ? "var(--soft)" : `var(--c${number % COLOURS})`);
}

export const mark = (topic) => element("i", { className: `mark ${markOf(topic)}`, "aria-hidden": "true", topic });

const NAMES = { foodanddrink: "food & drink", tv: "TV", middleeast: "Middle East", northamerica: "North America" }; // MIND's

// A topic as people write it.
export const nameOf = (topic) => NAMES[topic] ?? topic.replaceAll("_", " ");

const HOUR = 3600e3;

export function ageOf(published) {
  if (!published) return "";
  const hours = (Date.now() - new Date(published)) / HOUR;
  const ago = (number, unit) => `${number} ${unit}${number === 1 ? "" : "s"} ago`;
  if (hours < 1 / 60) return "just now";
  if (hours < 1) return ago(Math.floor(60 * hours), "minute");
  if (hours < 24) return ago(Math.floor(hours), "hour");
  if (hours < 24 * 30) return ago(Math.floor(hours / 24), "day");
  return new Date(published).toLocaleDateString("en", { day: "numeric", month: "long", year: "numeric" });
}

export function announce(text) {
  $("announcement").textContent = text;
}

// A quiet button that copies what `text` returns, and says so.
export function copyButton(caption, text) {
  const button = element("button", { type: "button", className: "copy" }, caption);
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    announce("Copied");
    setTimeout(() => { button.textContent = caption; }, 1500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) {
    try {
      return await navigator.clipboard.writeText(text);
    } catch {} // not allowed here: the older way may be
  }
  const box = element("textarea", { value: text, className: "unseen" });
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}
