// What the user read: kept in the browser, whole, and carried by a link on request.

import { MAX_K, curlOf, requests, send } from "./api.js";
import { $, copyButton, element, mark } from "./elements.js";
import { addressOf } from "./stories.js";

const HISTORY_KEY = "speedyfeed-history";
const USER_KEY = "speedyfeed-user";
const KEEP_KEY = "speedyfeed-keep";

const linked = new URLSearchParams(location.search).getAll("history").slice(-MAX_K);

export const isShared = linked.length > 0;

// The history of the link, if the page was opened with one; else the user's own.
export async function loadHistory() {
  if (!isShared) return JSON.parse(localStorage.getItem(HISTORY_KEY) ?? "[]");
  const found = await send(requests.recommend({ candidates: [...new Set(linked)], k: MAX_K, diversity: 0 }));
  const known = new Map(found.news.map((one) => [one.news_id, one]));
  return linked.filter((id) => known.has(id)).map((id) => clickOf(known.get(id)));
}

export const stories = (number) => `${number} ${number === 1 ? "story" : "stories"}`;

export const clickOf = ({ news_id, title, category }) => ({ news_id, title, category });

export const withClick = (history, news) => [...history.filter((one) => one.news_id !== news.news_id), clickOf(news)].slice(-MAX_K);

export const linkTo = (history, path = ".") => {
  const link = new URL(path, document.baseURI);
  link.hash = "";
  for (const one of history) link.searchParams.append("history", one.news_id);
  return link.href;
};

export function drawHistory(history, change) {
  if (!isShared) localStorage.setItem(HISTORY_KEY, JSON.stringify(history));
  $("history").replaceChildren(...history.toReversed().map((one) => {
    const drop = element("button", { type: "button", title: "Forget this", "aria-label": `Forget ${one.title}` }, "✕");
    drop.addEventListener("click", () => change(history.filter((other) => other !== one)));
    return element("li", {}, mark(one.category), element("a", { href: addressOf(one) }, one.title), drop);
  }));
  const none = history.length === 0;
  $("unread").hidden = !none;
  $("reading-tools").hidden = none;
  $("count").textContent = none ? "" : ` (${history.length})`;
  $("reading-title").textContent = none ? "You read" : `You read ${stories(history.length)}`;
  $("link-copy").replaceChildren(copyButton("Copy link", () => linkTo(history)));
}

export function setUpKeeping() {
  $("keep").checked = localStorage.getItem(KEEP_KEY) === "yes";
  $("keep").addEventListener("change", () => localStorage.setItem(KEEP_KEY, $("keep").checked ? "yes" : "no"));
}

export const keepsClicks = () => $("keep").checked;

// What was done with a list: the stories above the opened one were shown but not clicked.
export function feedbackFor(shown, opened, history) {
  const user = localStorage.getItem(USER_KEY) ?? `page-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
  localStorage.setItem(USER_KEY, user);
  const above = shown.slice(0, shown.findIndex((one) => one.news_id === opened.news_id) + 1);
  const actions = Object.fromEntries((above.length ? above : [opened]).map((one) => [one.news_id, one === opened || one.news_id === opened.news_id ? "click" : "skip"]));
  return requests.feedback(user, history.map((one) => one.news_id), actions);
}

export const drawKeeping = (request) => $("keep-copy").replaceChildren(copyButton("Copy as curl", () => curlOf(request())));
