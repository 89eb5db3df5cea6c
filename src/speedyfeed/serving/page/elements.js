// Elements from data. Text is only ever set as text.

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

// A colour for every topic, the same on the cards and on the map; golden angles keep neighbours apart.
export function setTopics(names) {
  names.forEach((name, number) => hues.set(name, Math.round((number * 137.5 + 8) % 360)));
}

export function hueOf(topic) {
  return hues.has(topic) ? `hsl(${hues.get(topic)} 58% var(--dot))` : "var(--soft)";
}
