// Publishing a headline: asked for and answered in one dialog, where the eyes are.

import { MAX_K, Unauthorized, curlOf, requests, send, setToken } from "./api.js";
import { $, announce, copyButton, element } from "./elements.js";

const NEAREST = 3;
const dialog = $("publish");

const request = () => requests.publish({
  title: $("headline").value.trim(), abstract: $("summary").value.trim(), category: $("topic").value,
});

// `rankOf(id)` resolves to the position in the feed or 0, `show(id, rank)` shows it there, `published(id)` is called once the article is there.
export function setUpPublishing({ published, rankOf, show }) {
  const publish = async () => {
    if (!$("headline").value.trim()) return $("headline").focus();
    const button = $("add").querySelector(".primary");
    const { title } = request().body.news[0];
    button.disabled = true;
    button.textContent = "Publishing …";
    try {
      const added = await send(request());
      const [id] = added.news_ids;
      await published(id);
      const [rank, near] = await Promise.all([rankOf(id), send(requests.similar(id, NEAREST))]);
      answer(id, title, rank, near.news);
    } catch (problem) {
      if (problem instanceof Unauthorized) askToken(publish);
      else $("publish-problem").textContent = problem.message;
    } finally {
      button.disabled = false;
      button.textContent = "Publish";
    }
  };

  const answer = (id, title, rank, near) => {
    const message = rank ? `It is number ${rank} in your feed.` : `It is not among the first ${MAX_K} stories of your feed.`;
    const show_it = element("button", { type: "button", className: "primary", hidden: !rank }, "Show it");
    show_it.addEventListener("click", () => { dialog.close(); show(id, rank); });
    const read = element("button", { type: "button" }, "Read it");
    read.addEventListener("click", () => { dialog.close(); location.hash = `#story/${encodeURIComponent(id)}`; });
    const another = element("button", { type: "button" }, "Publish another");
    another.addEventListener("click", start);
    const done = element("button", { type: "button" }, "Done");
    done.addEventListener("click", () => dialog.close());
    $("add").hidden = true;
    $("publish-title").textContent = "Published";
    $("published").replaceChildren(
      element("p", { className: "headline" }, title),
      element("p", {}, message),
      element("p", { className: "hint" }, "Closest to it:"),
      element("ul", {}, ...near.map((one) => element("li", {}, one.title))),
      element("div", { className: "row" }, done, another, read, show_it));
    $("published").hidden = false;
    (rank ? show_it : read).focus();
    announce(`Published: ${title}. ${message}`);
  };

  $("add").addEventListener("submit", (event) => { event.preventDefault(); publish(); });
  $("headline").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); publish(); }
  });
  $("publish-copy").replaceChildren(copyButton("Copy as curl", () => curlOf(request())));
  $("publish-cancel").addEventListener("click", () => dialog.close());
}

function start() {
  $("publish-title").textContent = "Break some news";
  $("add").hidden = false;
  $("published").hidden = true;
  $("headline").value = $("summary").value = $("publish-problem").textContent = "";
  $("headline").focus();
}

export function openPublishing() {
  if (!dialog.open) dialog.showModal();
  start();
}

// Ask for the token of the service, then try again.
export function askToken(again) {
  const asking = $("token-dialog");
  $("token").value = "";
  asking.showModal();
  asking.onclose = () => {
    if (asking.returnValue !== "ok" || !$("token").value) return;
    setToken($("token").value);
    again();
  };
}
