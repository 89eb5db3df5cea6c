// The page: its state, what it shows, and what happens on a click.

import { MAX_K, Unauthorized, curlOf, requests, send } from "./api.js";
import { $, announce, copyButton, element, nameOf, setTopics } from "./elements.js";
import { drawNews, drawUser } from "./map.js";
import { askToken, openPublishing, setUpPublishing } from "./publish.js";
import { drawHistory, drawKeeping, feedbackFor, isShared, keepsClicks, linkTo, loadHistory, setUpKeeping, stories, withClick } from "./reading.js";
import { drawStories, moveFocus, showStory, topOf } from "./stories.js";
import { closeStory, openStory } from "./story.js";

const PAGE_SIZE = 21;
const NOWHERE = "";

const state = {
  history: [],
  shown: [], // the stories of the feed
  anchor: null, // the story opened from the feed: {news, number, top}
  topic: null,
  k: PAGE_SIZE,
  popularity: 0,
  freshness: 0,
  varied: true,
  fresh: new Set(),
  writes: "off",
  requests: 0,
};

const queryFor = (history) => ({
  history: history.map((one) => one.news_id),
  ...(state.topic && { categories: [state.topic] }),
  ...(state.popularity && { popularity: state.popularity }),
  ...(state.freshness && { freshness: state.freshness }),
  ...(!state.varied && { diversity: 0 }),
});
const feedRequest = () => requests.recommend({ ...queryFor(state.history), k: state.k, explain: true });

// Answers may arrive out of order: only the answer to the latest request is drawn, after the stories that stay.
async function refresh(staying = []) {
  const request = ++state.requests;
  const history = [...state.history];
  $("feed").setAttribute("aria-busy", "true");
  try {
    const answer = await send(feedRequest());
    if (request !== state.requests) return;
    const removed = new Set(answer.unknown);
    const anchor = history.some((one) => one.news_id === state.anchor?.news.news_id) ? state.anchor : null;
    const ids = new Set(staying.map((one) => one.news_id));
    state.shown = [...staying, ...answer.news.filter((one) => !ids.has(one.news_id))].slice(0, answer.news.length);
    drawStories(state.shown, history, { fresh: state.fresh, opened, anchor });
    drawUser(answer, history);
    state.history = history.filter((one) => !removed.has(one.news_id));
    drawHistory(state.history, setHistory);
    $("model").textContent = answer.model;
    $("more").hidden = answer.news.length < state.k || state.k >= MAX_K;
    $("welcome").hidden = state.history.length > 0;
    $("compare").href = linkTo(state.history, $("compare").dataset.path);
    hideProblem();
  } catch (problem) {
    if (request === state.requests) showProblem(problem, () => refresh(staying));
  } finally {
    if (request === state.requests) $("feed").setAttribute("aria-busy", "false");
  }
}

// Length of the shortest list with this many stories: a first page, and rows of two.
const longer = (number) => Math.min(MAX_K, 1 + (PAGE_SIZE - 1) * Math.ceil((number - 1) / (PAGE_SIZE - 1)));

// Change what is asked for; the list is a new one, and no story keeps its place in it.
function change(changes) {
  Object.assign(state, { k: PAGE_SIZE, anchor: null }, changes);
  return refresh();
}

const setHistory = (history) => change({ history });

// A story of the feed is about to open: remember where it is.
function opened(news, number) {
  state.anchor = { news, number, top: topOf(news.news_id) };
  if (keepsClicks()) send(feedbackFor(state.shown, news, state.history)).catch(() => {});
}

// What is shown follows the address: the feed, or one story.
async function route() {
  const id = location.hash.startsWith("#story/") ? decodeURIComponent(location.hash.slice(7)) : NOWHERE;
  const wasOpen = !$("story").hidden;
  if (id === NOWHERE) {
    closeStory();
    $("story").hidden = true;
    $("stories").hidden = false;
    document.title = "SpeedyFeed";
    if (location.hash) $(location.hash.slice(1))?.scrollIntoView({ behavior: "instant" });
    else if (wasOpen && state.anchor) showStory(state.anchor.news.news_id, state.anchor.top);
    return;
  }
  const before = state.history.filter((one) => one.news_id !== id);
  try {
    const k = state.anchor?.news.news_id === id ? state.k : MAX_K; // the list that it was opened from, or the longest
    const news = await openStory(id, before, { ...queryFor(before), k }, { writes: state.writes, act });
    if (!location.hash.endsWith(encodeURIComponent(id))) return;
    $("stories").hidden = true;
    $("story").hidden = false;
    scrollTo({ top: 0, behavior: "instant" });
    $("story-title").focus({ preventScroll: true });
    document.title = `${news.title} · SpeedyFeed`;
    announce(`Opened: ${news.title}. The feed is rearranged around it.`);
    state.history = withClick(before, news);
    await refresh();
  } catch (problem) {
    showProblem(problem, route);
  }
}

function back() {
  if ($("story").hidden) return;
  if (history.length > 1 && state.anchor) history.back();
  else location.hash = "";
}

// An action of the editor on the story that is open.
async function act(request, done) {
  try {
    await send(request);
    announce(done);
    await route();
  } catch (problem) {
    if (problem instanceof Unauthorized) askToken(() => act(request, done));
    else showProblem(problem, () => act(request, done));
  }
}

const publishing = {
  published: async (id) => {
    state.fresh.add(id);
    await Promise.all([refresh(), loadAbout()]);
  },
  // Position in the longest list, of which shorter ones are the beginning; 0 if it is not there.
  rankOf: async (id) => {
    const ranked = await send(requests.recommend({ ...queryFor(state.history), k: MAX_K }));
    return ranked.news.findIndex((one) => one.news_id === id) + 1;
  },
  show: async (id, rank) => {
    location.hash = "";
    await change({ k: longer(rank) });
    if (!state.shown.some((one) => one.news_id === id)) await change({ k: MAX_K }); // graphs find less for less
    showStory(id);
  },
};

async function loadAbout() {
  const about = await send(requests.about());
  const topics = Object.keys(about.categories);
  setTopics(topics);
  state.writes = about.writes;
  $("edition").textContent = `${about.news.toLocaleString("en")} stories in ${topics.length} topics`;
  $("topics").replaceChildren(topicButton("For you", null), ...topics.map((name) => topicButton(nameOf(name), name)));
  const chosen = $("topic").value;
  $("topic").replaceChildren(element("option", { value: "" }, "No topic"),
    ...topics.map((name) => element("option", { value: name }, nameOf(name))));
  $("topic").value = topics.includes(chosen) ? chosen : "";
  $("mix").hidden = !about.knows_popularity;
  $("new").hidden = !about.newest;
  for (const name of ["publish-open", "publish-tab", "keeping"]) $(name).hidden = about.writes === "off";
  $("comparing").hidden = about.others.length === 0;
  $("compare").dataset.path = `compare?other=${encodeURIComponent(about.others[0] ?? "")}`;
  $("compare").textContent = `Compare with ${about.others[0] ?? ""}`;
}

function topicButton(text, topic) {
  const button = element("button", { type: "button", "aria-pressed": String(state.topic === topic) }, text);
  button.addEventListener("click", () => {
    for (const other of $("topics").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    location.hash = "";
    change({ topic });
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
  b: back,
  Escape: back,
  u: () => state.history.length && setHistory(state.history.slice(0, -1)),
  n: () => state.writes !== "off" && openPublishing(),
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
$("back").addEventListener("click", back);
for (const name of ["publish-open", "publish-tab"]) $(name).addEventListener("click", openPublishing);
$("more").addEventListener("click", () => {
  state.k = longer(state.k + 1);
  refresh(state.shown);
});
$("popularity").addEventListener("input", (event) => change({ popularity: Number(event.target.value) }));
$("freshness").addEventListener("input", (event) => change({ freshness: Number(event.target.value) }));
$("varied").addEventListener("change", (event) => change({ varied: event.target.checked }));
$("feed-copy").replaceChildren(copyButton("Copy as curl", () => curlOf(feedRequest())));
drawKeeping(() => feedbackFor(state.shown, state.shown[0] ?? { news_id: "N1" }, state.history));
setUpKeeping();
setUpPublishing(publishing);
addEventListener("hashchange", route);
history.scrollRestoration = "manual";

async function start() {
  try {
    await loadAbout();
    state.history = await loadHistory();
    $("shared").hidden = !isShared;
    $("shared-count").textContent = stories(state.history.length);
    drawNews((await send(requests.sample(900))).news);
    await refresh();
    if (location.hash.startsWith("#story/")) await route();
  } catch (problem) {
    showProblem(problem, start);
  }
}

// A column taller than the window scrolls to its end and stays there; a shorter one stays below the topics.
const column = document.querySelector("aside");
const stick = () => column.style.setProperty("top", `min(4rem, ${innerHeight - column.offsetHeight}px)`);
new ResizeObserver(stick).observe(column);
addEventListener("resize", stick);

const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(localStorage.getItem("speedyfeed-theme") ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => localStorage.getItem("speedyfeed-theme") ?? setTheme(dark.matches ? "dark" : "light"));
$("date").textContent = new Date().toLocaleDateString("en", { weekday: "long", day: "numeric", month: "long", year: "numeric" });
start();
