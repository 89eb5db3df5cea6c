// The map: a sample of all articles, the recommendations, the clicks, and the user.

import { $, element, mark, markOf, nameOf, shape } from "./elements.js";
import { addressOf } from "./stories.js";

const svg = $("map");
const layers = { news: shape("g"), picks: shape("g"), path: shape("g"), labels: shape("g") };
const user = shape("g", { class: "user" }, shape("circle", { class: "halo", r: 0.11 }), shape("circle", { r: 0.042 }));
user.append(text("You", 0, -0.085));
svg.append(layers.news, layers.picks, layers.path, layers.labels, user);
user.setAttribute("visibility", "hidden");

const articles = new WeakMap(); // of the dots, for hovering and clicking
const FRAME = 1.1;
const RINGS = 12; // the latest clicks, which labels leave free
let topics = []; // {name, x, y, element}, those with most articles first

function text(words, x, y) {
  const made = shape("text", { x, y });
  made.textContent = words;
  return made;
}

const OUTLINES = {
  dot: (x, y, r) => `M${x - r} ${y} a${r} ${r} 0 1 0 ${2 * r} 0 a${r} ${r} 0 1 0 ${-2 * r} 0`,
  diamond: (x, y, r) => `M${x} ${y - 1.3 * r} l${1.3 * r} ${1.3 * r} l${-1.3 * r} ${1.3 * r} l${-1.3 * r} ${-1.3 * r} Z`,
  triangle: (x, y, r) => `M${x} ${y - 1.35 * r} l${1.25 * r} ${2.2 * r} h${-2.5 * r} Z`,
};

function dot(news, radius, kind) {
  const [x, y] = news.place;
  const made = shape("path", { d: OUTLINES[markOf(news.category)](x, -y, radius), class: kind, topic: news.category });
  articles.set(made, news);
  return made;
}

export function drawNews(all) {
  layers.news.replaceChildren(...all.map((one) => dot(one, 0.0135, "news")));
  const groups = new Map();
  for (const one of all) groups.set(one.category, [...(groups.get(one.category) ?? []), one]);
  const middle = (members, axis) => members.map((one) => one.place[axis]).sort((a, b) => a - b)[members.length >> 1];
  topics = [...groups].filter(([name, members]) => name && members.length > 2).sort((a, b) => b[1].length - a[1].length)
    .map(([name, members]) => ({ name, x: middle(members, 0), y: -middle(members, 1), element: text(nameOf(name), 0, 0) }));
  layers.labels.replaceChildren(...topics.map((one) => one.element));
  placeLabels([]);
}

// Each label goes to the free place nearest to the middle of its topic; one without any place is hidden.
function placeLabels(taken) {
  const placed = [...taken];
  for (const { x, y, element: label } of topics) {
    const { width, height } = label.getBBox();
    const box = nearestFree(x, y, width / 2 + 0.012, height / 2, placed);
    label.setAttribute("visibility", box ? "visible" : "hidden");
    if (!box) continue;
    placed.push(box);
    label.setAttribute("x", (box.left + box.right) / 2);
    label.setAttribute("y", (box.top + box.bottom) / 2 + 0.3 * height);
  }
}

function nearestFree(x, y, halfWidth, halfHeight, placed) {
  for (let step = 0; step < 240; step++) {
    const [far, angle] = [0.022 * Math.sqrt(step) * 2, step * 2.399963]; // a spiral of the golden angle
    const [cx, cy] = [inside(x + far * Math.cos(angle), halfWidth), inside(y + 0.8 * far * Math.sin(angle), halfHeight)];
    const box = boxAround(cx, cy, halfWidth, halfHeight);
    if (!placed.some((other) => overlap(box, other))) return box;
  }
  return null;
}

const boxAround = (x, y, halfWidth, halfHeight) => ({ left: x - halfWidth, right: x + halfWidth, top: y - halfHeight, bottom: y + halfHeight });
const inside = (value, half) => Math.max(-FRAME + half, Math.min(FRAME - half, value));
const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

export function drawUser(answer, clicks) {
  layers.picks.replaceChildren(...answer.news.slice(0, 12).map((one) => dot(one, 0.028, "pick")));
  const known = answer.clicks.map((place, number) => ({ place, click: clicks[number] })).filter(({ place }) => place);
  const points = known.map(({ place: [x, y] }) => `${x},${-y}`).join(" ");
  layers.path.replaceChildren(
    shape("polyline", { class: "path", points }),
    ...known.map(({ place, click }) => dot({ ...click, place, category: "" }, 0.024, "click")),
  );
  const x = inside(answer.user[0], 0.1);
  const y = inside(-answer.user[1], 0.1);
  const rings = known.slice(-RINGS).map(({ place: [px, py] }) => boxAround(px, -py, 0.035, 0.035));
  placeLabels(known.length ? [{ left: x - 0.12, right: x + 0.12, top: y - 0.17, bottom: y + 0.06 }, ...rings] : []);
  user.setAttribute("visibility", known.length ? "visible" : "hidden");
  user.style.transform = `translate(${x}px, ${y}px)`;
  rest = known.length
    ? "You are the large dot. Rings are what you read; large marks come next."
    : "Every mark is a story, near the ones it resembles. Read one and you appear.";
  caption(null);
}

let rest = "";

function caption(news) {
  if (news) $("map-caption").replaceChildren(mark(news.category), element("b", {}, news.title));
  else $("map-caption").replaceChildren(rest);
}

svg.addEventListener("pointerover", (event) => caption(articles.get(event.target) ?? null));
svg.addEventListener("pointerleave", () => caption(null));
svg.addEventListener("click", (event) => {
  const news = articles.get(event.target);
  if (news?.news_id) location.hash = addressOf(news);
});
