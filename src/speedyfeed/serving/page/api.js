// Routes of the service as functions. A failed request throws an Error whose message can be shown.

const TOKEN_KEY = "speedyfeed-token";

export class Unauthorized extends Error {}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The service does not answer.");
  }
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) throw new Unauthorized(body.detail);
  if (!response.ok) throw new Error(body.detail ?? `The service answered ${response.status}.`);
  return body;
}

const post = (path, body, headers = {}) =>
  call(path, { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body) });

export const about = () => call("v1/about");
export const sample = (limit) => call(`v1/map?limit=${limit}`);
export const recommend = (query) => post("v1/recommend", query);
export const similar = (id, k) => call(`v1/news/${encodeURIComponent(id)}/similar?k=${k}`);
export const setToken = (token) => sessionStorage.setItem(TOKEN_KEY, token);

export function publish(news) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return post("v1/news", { news: [news] }, token ? { authorization: `Bearer ${token}` } : {});
}
