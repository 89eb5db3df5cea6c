// The same history ranked by two runs that are served together, side by side.

import { curlOf, requests, send } from "./api.js";
import { $, copyButton, element, mark, setTopics } from "./elements.js";
import { loadHistory, stories } from "./reading.js";
import { addressOf, kicker } from "./stories.js";
import { vignette } from "./vignette.js";

const K = 12;
const FIRST = "this run";

async function start() {
  const about = await send(requests.about());
  setTopics(Object.keys(about.categories));
  if (!about.others.length) throw new Error("Only one run is served here. To compare it: speedyfeed serve RUN --other RUN2");
  const other = new URLSearchParams(location.search).get("other") || about.others[0];
  if (!about.others.includes(other)) throw new Error(`No run “${other}” is served here. There is ${about.others.join(", ")}.`);
  const history = await loadHistory();
  const request = requests.recommend({ history: history.map((one) => one.news_id), k: K });
  const runs = [{ name: FIRST, base: "" }, { name: other, base: `runs/${encodeURIComponent(other)}/` }];
  const answers = await Promise.all(runs.map(({ base }) => send(request, base)));
  const [left, right] = answers.map((answer) => new Map(answer.news.map((one, number) => [one.news_id, number + 1])));
  const both = [...left.keys()].filter((id) => right.has(id)).length;
  $("said").textContent = `${both} of ${K} stories are in both lists, for ${history.length ? `someone who read ${stories(history.length)}` : "a new user"}.`;
  $("lists").replaceChildren(
    list(runs[0], answers[0], right, runs[1].name, request), list(runs[1], answers[1], left, runs[0].name, request));
  $("history").replaceChildren(...history.toReversed().map((one) => element("li", {}, mark(one.category), element("span", {}, one.title))));
}

function list({ name, base }, answer, there, thereName, request) {
  return element("section", { "aria-label": name },
    element("div", { className: "heading" }, element("h2", {}, name), element("code", {}, answer.model), copyButton("Copy as curl", () => curlOf(request, base))),
    element("ol", { className: "similar" }, ...answer.news.map((one, number) => {
      const rank = there.get(one.news_id);
      const said = rank ? (rank === number + 1 ? "same place in both" : `number ${rank} in ${thereName}`) : "only here";
      return element("li", { className: `small${rank ? "" : " alone"}`, topic: one.category },
        vignette(one),
        element("div", { className: "text" },
          kicker(one, element("span", { className: "flag" }, said)),
          element("h3", {}, `${number + 1}. `, element("a", { href: `./${base}${addressOf(one)}` }, one.title))));
    })));
}

const dark = matchMedia("(prefers-color-scheme: dark)");
document.documentElement.dataset.theme = localStorage.getItem("speedyfeed-theme") ?? (dark.matches ? "dark" : "light");
start().catch((problem) => {
  $("problem").textContent = problem.message;
  $("problem").hidden = false;
});
