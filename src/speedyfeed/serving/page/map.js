// The map: a sample of all articles, the recommendations, the clicks, and the user.

import { $, hueOf, shape } from "./elements.js";

const svg = $("map");
const layers = { news: shape("g"), picks: shape("g"), path: shape("g"), labels: shape("g") };
const user = shape("g", { class: "user" },
  shape("circle", { class: "halo", r: 0.11 }), shape("circle", { r: 0.042 }));
user.append(label("You", 0, -0.085));
svg.append(layers.news, layers.picks, layers.path, layers.labels, user);
user.setAttribute("visibility", "hidden");

function label(text, x, y) {
  const made = shape("text", { x, y });
  made.textContent = text;
  return made;
}

function dot(news, radius, kind) {
  const [x, y] = news.place;
  const made = shape("circle", { cx: x, cy: -y, r: radius, class: kind, fill: hueOf(news.category) });
  const title = shape("title");
  title.textContent = news.title;
  made.append(title);
  return made;
}

export function drawNews(all) {
  layers.news.replaceChildren(...all.map((one) => dot(one, 0.0125, "news")));
  layers.labels.replaceChildren(...topicLabels(all).map(({ topic, x, y }) => label(topic, x, y)));
}

// Label positions: each topic at the median of its articles, moved apart where labels would overlap.
function topicLabels(all) {
  const groups = Map.groupBy ? Map.groupBy(all, (one) => one.category) : new Map();
  const labels = [];
  for (const [topic, members] of groups) {
    if (!topic || members.length < 3) continue;
    const middle = (axis) => members.map((one) => one.place[axis]).sort((a, b) => a - b)[members.length >> 1];
    labels.push({ topic, x: middle(0) * 1.15, y: -middle(1) * 1.15 });
  }
  for (let round = 0; round < 60; round++) {
    for (const a of labels) {
      for (const b of labels) {
        const wide = 0.024 * (a.topic.length + b.topic.length);
        const [dx, dy] = [b.x - a.x, b.y - a.y];
        if (a === b || Math.abs(dx) > wide || Math.abs(dy) > 0.085) continue;
        const push = (0.09 - Math.abs(dy)) / 4 * (dy < 0 ? -1 : 1);
        a.y -= push;
        b.y += push;
      }
    }
  }
  for (const one of labels) {
    const wide = 0.024 * one.topic.length;
    one.x = Math.max(-1.08 + wide, Math.min(1.08 - wide, one.x));
    one.y = Math.max(-1.02, Math.min(1.06, one.y));
  }
  return labels;
}

export function drawUser(answer, clicks) {
  layers.picks.replaceChildren(...answer.news.slice(0, 12).map((one) => dot(one, 0.026, "pick")));
  const known = answer.clicks.map((place, number) => ({ place, click: clicks[number] })).filter(({ place }) => place);
  const points = known.map(({ place: [x, y] }) => `${x},${-y}`).join(" ");
  layers.path.replaceChildren(
    shape("polyline", { class: "path", points }),
    ...known.map(({ place, click }) => {
      const made = dot({ ...click, place }, 0.024, "click");
      made.style.fill = "";
      return made;
    }),
  );
  const [x, y] = answer.user;
  for (const text of layers.labels.children) {
    const near = Math.hypot(text.getAttribute("x") - x, Number(text.getAttribute("y")) + y) < 0.2;
    text.setAttribute("visibility", known.length && near ? "hidden" : "visible");
  }
  user.setAttribute("visibility", known.length ? "visible" : "hidden");
  user.style.transform = `translate(${x}px, ${-y}px)`;
  $("taste-hint").textContent = known.length
    ? "You are the large dot. Rings are what you read, bright dots what comes next."
    : "Every dot is a story, close to similar ones. Read one and you appear.";
}
