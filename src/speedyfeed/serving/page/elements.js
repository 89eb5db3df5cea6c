// Builds elements; text is always set as text, never as markup.

export const $ = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "hue") made.style.setProperty("--hue", value);
    else if (key.includes("-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "fill") made.style.fill = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const hues = new Map();

// One colour per topic, on the cards and on the map; steps of the golden angle keep neighbouring hues apart.
export function setTopics(names) {
  names.forEach((name, number) => hues.set(name, Math.round((number * 137.5 + 8) % 360)));
}

export function hueOf(topic) {
  return hues.has(topic) ? `hsl(${hues.get(topic)} 58% var(--dot))` : "var(--soft)";
}
