// Recommendations as stories with their reasons; stories that stay in the list glide to their new position.

import { $, ageOf, element, mark, nameOf } from "./elements.js";
import { vignette } from "./vignette.js";

const list = $("feed");
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const LEADS = 3;

export const addressOf = (news) => `#story/${encodeURIComponent(news.news_id)}`;

export function kicker(news, ...more) {
  const age = ageOf(news.published);
  return element("p", { className: "kicker" }, mark(news.category), element("span", { className: "topic" }, nameOf(news.category) || "News"),
    age ? element("span", { className: "age" }, age) : null, ...more);
}

export function because(reason, history) {
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

function story(news, number, history, { fresh, opened, isAnchor }) {
  const open = element("a", { href: addressOf(news) }, news.title);
  open.addEventListener("click", () => opened(news, number));
  const reasons = isAnchor ? [] : news.reasons.map((one) => because(one, history));
  const flag = isAnchor ? element("span", { className: "flag" }, "✓ Read") : fresh ? element("span", { className: "flag new" }, "Just in") : null;
  const made = element("li", { className: `story${number < LEADS ? " lead" : ""}${fresh ? " just-in" : ""}`, topic: news.category },
    vignette(news),
    element("div", { className: "text" },
      kicker(news, ...(flag ? [flag] : [])),
      element("h3", {}, open),
      news.abstract && number < LEADS ? element("p", { className: "abstract" }, news.abstract) : null,
      reasons.length ? element("ul", { className: "why", "aria-label": "Why it is here" }, ...reasons) : null));
  made.dataset.id = news.news_id;
  return made;
}

// The anchor is a story just read: it stays where it was, so that Back returns to the same place.
export function drawStories(all, history, { fresh, opened, anchor }) {
  const before = new Map([...list.children].map((child) => [child.dataset.id, child.getBoundingClientRect()]));
  const focused = document.activeElement?.closest?.(".story")?.dataset.id;
  const shown = anchor ? all.toSpliced(Math.min(anchor.number, all.length), 0, anchor.news) : all;
  list.replaceChildren(...shown.map((one, number) =>
    story(one, number, history, { fresh: fresh.has(one.news_id), opened, isAnchor: one === anchor?.news })));
  list.setAttribute("aria-busy", "false");
  if (focused) (storyOf(focused) ?? list.firstElementChild)?.querySelector("a").focus({ preventScroll: true });
  if (calm.matches || !list.offsetParent) return;
  for (const child of list.children) {
    const [old, now] = [before.get(child.dataset.id), child.getBoundingClientRect()];
    const frames = old
      ? [{ transform: `translate(${old.left - now.left}px, ${old.top - now.top}px)` }, { transform: "none" }]
      : [{ opacity: 0, transform: "translateY(12px)" }, { opacity: 1, transform: "none" }];
    child.animate(frames, { duration: 380, easing: "cubic-bezier(.2, .8, .2, 1)" });
  }
}

const storyOf = (id) => list.querySelector(`[data-id="${CSS.escape(id)}"]`);

export const topOf = (id) => storyOf(id)?.getBoundingClientRect().top;

// Bring a story to the middle of the screen, or to where it was.
export function showStory(id, top = null) {
  const found = storyOf(id);
  if (!found) return;
  if (top === null) found.scrollIntoView({ block: "center", behavior: "instant" });
  else scrollBy({ top: found.getBoundingClientRect().top - top, behavior: "instant" });
  found.querySelector("a").focus({ preventScroll: true });
}

// Move the focus by `step` stories.
export function moveFocus(step) {
  const all = [...list.children];
  const at = all.indexOf(document.activeElement?.closest?.(".story"));
  const next = all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + step))];
  next?.querySelector("a").focus();
  next?.scrollIntoView({ block: "nearest" });
}
