// Requests to the service as data: they can be sent, and shown as a command. A failed one throws an Error whose
// message can be shown.

const TOKEN_KEY = "speedyfeed-token";
export const MAX_K = 200; // the longest list and history that the service takes

export class Unauthorized extends Error {}

const get = (path) => ({ path });
const post = (path, body) => ({ path, method: "POST", body });
const write = (path, body, method = "POST") => ({ path, method, body, writes: true });
const id = encodeURIComponent;

export const requests = {
  about: () => get("v1/about"),
  sample: (limit) => get(`v1/map?limit=${limit}`),
  recommend: (query) => post("v1/recommend", query),
  story: (news) => get(`v1/news/${id(news)}`),
  similar: (news, k) => get(`v1/news/${id(news)}/similar?k=${k}`),
  why: (news, { history, categories, ...settings }) =>
    get(`v1/why?${new URLSearchParams([["news", news], ...history.map((one) => ["history", one]), ...Object.entries(settings)])}`),
  publish: (news) => write("v1/news", { news: [news] }),
  feedback: (user, history, actions) => write("v1/feedback", { user, history, actions }),
  rule: (rule) => write("v1/rules", rule),
  endRule: (rule) => write(`v1/rules/${id(rule)}`, undefined, "DELETE"),
};

export async function send(request, base = "") {
  const token = request.writes && sessionStorage.getItem(TOKEN_KEY);
  const headers = {
    ...(request.body && { "content-type": "application/json" }),
    ...(token && { authorization: `Bearer ${token}` }),
  };
  let response;
  try {
    const { method = "GET", body } = request;
    response = await fetch(base + request.path, { method, headers, body: body && JSON.stringify(body) });
  } catch {
    throw new Error("The service does not answer.");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) throw new Unauthorized(answer.detail);
  if (!response.ok) throw new Error(answer.detail ?? `The service answered ${response.status}.`);
  return answer;
}

export const setToken = (token) => sessionStorage.setItem(TOKEN_KEY, token);

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// The request as a command for a shell; the token stays in the environment.
export function curlOf(request, base = "") {
  const { path, method, body, writes } = request;
  return [
    "curl -s", method && method !== "POST" ? `-X ${method}` : "", quote(new URL(base + path, document.baseURI).href),
    writes ? '-H "authorization: Bearer $SPEEDYFEED_TOKEN"' : "",
    body ? `-H 'content-type: application/json' -d ${quote(JSON.stringify(body))}` : "",
  ].filter(Boolean).join(" ");
}
