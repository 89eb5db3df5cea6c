// Recommendations as stories with their reasons; stories that stay in the list glide to their new position.

import { $, element, hueOf } from "./elements.js";

const list = $("feed");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

function because(reason, history) {
  const similarity = Math.max(0, Math.min(1, reason.similarity));
  const bar = element("i");
  bar.style.width = `${Math.round(100 * similarity)}%`;
  const share = reason.attention === null ? "" : `, ${Math.round(100 * reason.attention)}% of your taste`;
  const summary = `${Math.round(100 * similarity)}% alike${share}`;
  return element("li", { title: summary },
    element("span", { className: "alike", role: "img", "aria-label": summary }, bar),
    element("span", { className: "because" }, "You read ", element("em", {}, history[reason.click].title)),
    element("span", { className: "summary", "aria-hidden": "true" }, summary));
}

function story(news, history, { fresh, read }) {
  const kicker = element("p", { className: "kicker" }, news.category || "news",
    fresh ? element("span", { className: "new" }, "Just in") : null);
  const open = element("button", { type: "button" }, news.title);
  open.addEventListener("click", () => read(news));
  const reasons = news.reasons.map((one) => because(one, history));
  const made = element("li", { className: fresh ? "story just-in" : "story", hue: hueOf(news.category) },
    kicker,
    element("h3", {}, open),
    news.abstract ? element("p", { className: "abstract" }, news.abstract) : null,
    reasons.length ? element("ul", { className: "why", "aria-label": "Why it is here" }, ...reasons) : null);
  made.dataset.id = news.news_id;
  return made;
}

export function drawStories(all, history, { fresh, read }) {
  const before = new Map([...list.children].map((child) => [child.dataset.id, child.getBoundingClientRect()]));
  const focused = document.activeElement?.closest?.(".story")?.dataset.id;
  list.replaceChildren(...all.map((one) => story(one, history, { fresh: fresh.has(one.news_id), read })));
  list.setAttribute("aria-busy", "false");
  if (focused) (storyOf(focused) ?? list.firstElementChild)?.querySelector("button").focus({ preventScroll: true });
  if (calm.matches) return;
  for (const child of list.children) {
    const [old, now] = [before.get(child.dataset.id), child.getBoundingClientRect()];
    const frames = old
      ? [{ transform: `translate(${old.left - now.left}px, ${old.top - now.top}px)` }, { transform: "none" }]
      : [{ opacity: 0, transform: "translateY(12px)" }, { opacity: 1, transform: "none" }];
    child.animate(frames, { duration: 380, easing: "cubic-bezier(.2, .8, .2, 1)" });
  }
}

const storyOf = (id) => list.querySelector(`[data-id="${CSS.escape(id)}"]`);

export function showStory(id) {
  storyOf(id)?.scrollIntoView({ block: "center" });
  storyOf(id)?.querySelector("button").focus({ preventScroll: true });
}

// Move the focus by `step` stories.
export function moveFocus(step) {
  const all = [...list.children];
  const at = all.indexOf(document.activeElement?.closest?.(".story"));
  const next = all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + step))];
  next?.querySelector("button").focus();
  next?.scrollIntoView({ block: "nearest" });
}
