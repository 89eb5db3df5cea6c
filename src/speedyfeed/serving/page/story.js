// One story: its text, why it is here, similar ones, and what an editor can do with it.

import { curlOf, requests, send } from "./api.js";
import { $, copyButton, element, nameOf } from "./elements.js";
import { addressOf, because, kicker } from "./stories.js";
import { vignette } from "./vignette.js";

const SIMILAR = 4;
const SENTENCES = 4;
const RULE_HOURS = 24;

let latest = null; // an answer for a story that was left meanwhile is not drawn

// Fetch and draw the story for a user who had this history before, whose feed answers `query`; returns the article.
export async function openStory(id, history, query, { writes, act }) {
  latest = id;
  const asked = { story: requests.story(id), similar: requests.similar(id, SIMILAR), why: requests.why(id, query) };
  const [news, similar, why] = await Promise.all([asked.story, asked.similar, asked.why].map((one) => send(one)));
  if (latest !== id) return news;
  $("story-text").replaceChildren(
    vignette(news),
    kicker(news),
    element("h2", { id: "story-title", tabIndex: -1 }, news.title),
    ...(news.abstract ? [element("p", { className: "standfirst" }, news.abstract)] : []),
    ...paragraphs(news.body).map((text) => element("p", { className: "body" }, text)),
    news.abstract || news.body ? "" : element("p", { className: "hint" }, "There is only a headline for this one."));
  drawWhy(why, history, query.k, asked.why);
  $("similar").replaceChildren(...similar.news.map((one) => element("li", { className: "small", topic: one.category },
    vignette(one), element("div", { className: "text" }, kicker(one), element("h4", {}, element("a", { href: addressOf(one) }, one.title))))));
  $("similar-copy").replaceChildren(copyButton("Copy as curl", () => curlOf(asked.similar)));
  drawEditor(news, why, writes, act);
  return news;
}

export function closeStory() {
  latest = null;
}

// Texts without paragraphs are broken after every few sentences.
function paragraphs(body) {
  const given = body.split(/\n+/).map((text) => text.trim()).filter(Boolean);
  if (given.length !== 1) return given;
  const sentences = given[0].match(/.+?[.!?]+["”’]?(?=\s+[A-Z0-9"“‘]|$)\s*|.+$/g) ?? given;
  return Array.from({ length: Math.ceil(sentences.length / SENTENCES) }, (_, part) =>
    sentences.slice(part * SENTENCES, (part + 1) * SENTENCES).join("").trim());
}

function drawWhy(why, history, k, request) {
  const lines = [];
  const percent = Math.round(100 * why.popularity_weight);
  if (why.position) lines.push(`It is number ${why.position} in your feed.`);
  else if (!why.is_clicked) lines.push(`It is not among the first ${k} stories of your feed.`);
  if (!history.length) lines.push("You are new here, so the page shows what many people read, across all topics.");
  else if (!why.reasons.length) lines.push("No single story you read is much like it.");
  if (history.length && percent > 0) lines.push(`What many people read still makes up ${percent}% of your ranking; it gives way to your taste as you read.`);
  if (why.num_clicks) lines.push(`It was opened ${why.num_clicks.toLocaleString("en")} time${why.num_clicks === 1 ? "" : "s"}.`);
  for (const rule of why.rules) {
    const until = new Date(rule.until).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
    lines.push(`The editor ${rule.kind === "ban" ? "holds back" : "promotes"} ${rule.category === null ? "this story" : nameOf(rule.category)} until ${until}.`);
  }
  $("story-why").replaceChildren(
    why.reasons.length ? element("ul", { className: "why" }, ...why.reasons.map((one) => because(one, history))) : "",
    element("p", {}, lines.join(" ")));
  $("why-copy").replaceChildren(copyButton("Copy as curl", () => curlOf(request)));
}

function drawEditor(news, why, writes, act) {
  $("editor").hidden = writes === "off";
  const action = (caption, request, done) => {
    const button = element("button", { type: "button" }, caption);
    button.addEventListener("click", () => act(request, done));
    return element("div", { className: "row" }, button, copyButton("Copy as curl", () => curlOf(request)));
  };
  const rule = (kind) => requests.rule({ kind, news_id: news.news_id, hours: RULE_HOURS });
  const own = why.rules.filter((one) => one.news_id === news.news_id);
  $("editor-actions").replaceChildren(
    ...(own.length
      ? own.map((one) => action(one.kind === "ban" ? "Stop holding it back" : "Stop promoting it", requests.endRule(one.rule_id), "Ended."))
      : [action("Promote for a day", rule("boost"), "Promoted for a day."), action("Hold back for a day", rule("ban"), "Held back for a day.")]));
}
