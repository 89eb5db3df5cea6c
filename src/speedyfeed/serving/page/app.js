// The page: its state, what it shows, and what happens on a click.

import * as api from "./api.js";
import { $, element, hueOf, setTopics } from "./elements.js";
import { drawNews, drawUser } from "./map.js";
import { drawStories, moveFocus, showStory } from "./stories.js";

const HISTORY_KEY = "speedyfeed-history";
const PAGE_SIZE = 21;
const MAX_K = 200;

const state = {
  history: JSON.parse(localStorage.getItem(HISTORY_KEY) ?? "[]"),
  topic: null,
  k: PAGE_SIZE,
  popularity: 0,
  varied: true,
  fresh: new Set(),
  requests: 0,
};

const queryFor = (history) => ({
  history: history.map((one) => one.news_id),
  categories: state.topic ? [state.topic] : [],
  popularity: state.popularity,
  ...(state.varied ? {} : { diversity: 0 }),
});

// Answers may arrive out of order: only the answer to the latest request is drawn.
async function refresh() {
  const request = ++state.requests;
  const history = [...state.history];
  $("feed").setAttribute("aria-busy", "true");
  try {
    const answer = await api.recommend({ ...queryFor(history), k: state.k, explain: true });
    if (request !== state.requests) return;
    const removed = new Set(answer.unknown);
    drawStories(answer.news, history, { fresh: state.fresh, read });
    drawUser(answer, history);
    state.history = history.filter((one) => !removed.has(one.news_id));
    drawHistory();
    $("model").textContent = answer.model;
    $("more").hidden = answer.news.length < state.k || state.k >= MAX_K;
    $("welcome").hidden = state.history.length > 0;
    hideProblem();
  } catch (problem) {
    if (request === state.requests) showProblem(problem, refresh);
  } finally {
    if (request === state.requests) $("feed").setAttribute("aria-busy", "false");
  }
}

function read(news) {
  const { news_id, title, category } = news;
  state.history = [...state.history.filter((one) => one.news_id !== news_id), { news_id, title, category }].slice(-100);
  state.k = PAGE_SIZE;
  announce(`Read: ${title}. The feed is re-ranked.`);
  refresh();
}

function setHistory(history) {
  state.history = history;
  refresh();
}

function drawHistory() {
  localStorage.setItem(HISTORY_KEY, JSON.stringify(state.history));
  $("history").replaceChildren(...state.history.toReversed().map((one) => {
    const drop = element("button", { type: "button", title: "Forget this", "aria-label": `Forget ${one.title}` }, "✕");
    drop.addEventListener("click", () => setHistory(state.history.filter((other) => other !== one)));
    return element("li", { hue: hueOf(one.category) }, element("span", {}, one.title), drop);
  }));
  const none = state.history.length === 0;
  $("unread").hidden = !none;
  $("undo").hidden = $("forget").hidden = none;
  $("count").textContent = none ? "" : `(${state.history.length})`;
}

async function publish() {
  const headline = $("headline").value.trim();
  if (!headline) return $("headline").focus();
  const button = document.querySelector("#add button");
  button.disabled = true;
  try {
    const added = await api.publish({ title: headline, category: $("topic").value });
    const [id] = added.news_ids;
    state.fresh.add(id);
    $("headline").value = "";
    await refresh();
    await showPublished(id, headline);
    loadAbout();
  } catch (problem) {
    if (problem instanceof api.Unauthorized) askToken();
    else showProblem(problem, publish);
  } finally {
    button.disabled = false;
  }
}

async function showPublished(id, headline) {
  const [ranked, near] = await Promise.all([
    api.recommend({ ...queryFor(state.history), k: MAX_K }),
    api.similar(id, 3),
  ]);
  const rank = ranked.news.findIndex((one) => one.news_id === id) + 1;
  if (rank > state.k) {
    state.k = rank;
    await refresh();
  }
  const message = rank ? `It is number ${rank} in your feed.` : `It is not among your first ${MAX_K} yet.`;
  const show = element("button", { type: "button", className: "link", hidden: !rank }, "Show it");
  show.addEventListener("click", () => showStory(id));
  $("published").replaceChildren(
    element("p", {}, element("b", {}, "Published. "), message, " ", show),
    element("p", {}, "Closest to it:"),
    element("ul", {}, ...near.news.map((one) => element("li", {}, one.title))),
  );
  $("published").scrollIntoView({ block: "nearest" });
  announce(`Published: ${headline}. ${message}`);
}

function askToken() {
  const dialog = $("token-dialog");
  $("token").value = "";
  dialog.showModal();
  dialog.onclose = () => {
    if (dialog.returnValue !== "ok" || !$("token").value) return;
    api.setToken($("token").value);
    publish();
  };
}

async function loadAbout() {
  const about = await api.about();
  const topics = Object.keys(about.categories);
  setTopics(topics);
  $("edition").textContent = `${about.news.toLocaleString()} stories, ${topics.length} topics`;
  $("topics").replaceChildren(topicButton("For you", null), ...topics.map((name) => topicButton(name, name)));
  const chosen = $("topic").value;
  $("topic").replaceChildren(element("option", { value: "" }, "No topic"),
    ...topics.map((name) => element("option", { value: name }, name)));
  $("topic").value = topics.includes(chosen) ? chosen : "";
  $("mix").hidden = !about.knows_popularity;
  $("paste").hidden = about.writes === "off";
  $("welcome").textContent = "A new reader’s page. Open a story that interests you, and the rest rearranges around it.";
}

function topicButton(text, topic) {
  const button = element("button", { type: "button", "aria-pressed": String(state.topic === topic) }, text);
  button.addEventListener("click", () => {
    state.topic = topic;
    state.k = PAGE_SIZE;
    for (const other of $("topics").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    refresh();
  });
  return element("li", {}, button);
}

function showProblem(problem, again) {
  const box = $("problem");
  box.querySelector("p").textContent = problem.message;
  box.querySelector("button").onclick = () => { hideProblem(); again(); };
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

function hideProblem() {
  $("problem").hidden = true;
}

function announce(text) {
  $("announcement").textContent = text;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("speedyfeed-theme", theme);
  setTheme(theme);
}

const keys = {
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  u: () => $("undo").hidden || setHistory(state.history.slice(0, -1)),
  n: () => $("headline").focus(),
  t: switchTheme,
  "?": () => $("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});
$("undo").addEventListener("click", keys.u);
$("forget").addEventListener("click", () => setHistory([]));
$("theme").addEventListener("click", switchTheme);
$("help").addEventListener("click", keys["?"]);
$("more").addEventListener("click", () => { state.k = Math.min(MAX_K, state.k + PAGE_SIZE - 1); refresh(); });
$("popularity").addEventListener("input", (event) => { state.popularity = Number(event.target.value); refresh(); });
$("varied").addEventListener("change", (event) => { state.varied = event.target.checked; refresh(); });
$("add").addEventListener("submit", (event) => { event.preventDefault(); publish(); });
$("headline").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); publish(); }
});

async function start() {
  try {
    await loadAbout();
    drawHistory();
    drawNews((await api.sample(900)).news);
    await refresh();
  } catch (problem) {
    showProblem(problem, start);
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(localStorage.getItem("speedyfeed-theme") ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => localStorage.getItem("speedyfeed-theme") ?? setTheme(dark.matches ? "dark" : "light"));
$("date").textContent = new Date().toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
start();
