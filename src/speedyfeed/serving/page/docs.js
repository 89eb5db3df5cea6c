// A page made from the OpenAPI document: routes with their parameters, bodies, answers and problems.

import { $, element } from "./elements.js";

const api = await (await fetch("openapi.json")).json();
const resolve = (schema) => (schema?.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema) ?? {};

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.type === "array") return `list of ${schema.items ? typeOf(schema.items) : "values"}`;
  return schema.format ?? schema.type ?? "value";
}

function limits(schema) {
  const texts = {
    minimum: (n) => `at least ${n}`, exclusiveMinimum: (n) => `above ${n}`, maximum: (n) => `at most ${n}`,
    maxLength: (n) => `at most ${n} characters`, maxItems: (n) => `at most ${n}`,
  };
  const parts = Object.entries(texts).filter(([key]) => key in schema).map(([key, text]) => text(schema[key]));
  return parts.length ? `(${parts.join(", ")})` : "";
}

function describe(schema, { description } = schema) {
  return [description, limits(schema)].filter(Boolean).join(" ");
}

function table(rows) {
  return element("table", {}, element("tbody", {}, ...rows.map((cells) =>
    element("tr", {}, ...cells.map((cell) => element("td", {}, cell))))));
}

function fields(schema) {
  return Object.entries(resolve(schema).properties ?? {}).map(([name, field]) => [
    name, typeOf(field), describe(field),
  ]);
}

function part(title, rows) {
  return rows.length ? [element("h3", {}, title), table(rows)] : [];
}

for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, route] of Object.entries(methods)) {
    const body = route.requestBody?.content["application/json"].schema;
    const [status, done] = Object.entries(route.responses).find(([code]) => code < 300);
    const answer = done.content?.["application/json"]?.schema;
    const problems = Object.entries(route.responses).filter(([code]) => code >= 400);
    $("routes").append(element("section", { className: "route" },
      element("h2", {}, element("span", { className: "method" }, method.toUpperCase()), element("code", {}, path)),
      element("p", {}, route.description),
      ...part("Parameters", (route.parameters ?? []).map((one) => [one.name, typeOf(one.schema), describe(one.schema, one)])),
      ...part("Body", body ? fields(body) : []),
      ...part(`Answer, ${status}`, answer ? fields(answer) : []),
      ...part("Problems", problems.map(([code, one]) => [code, one.description, ""]))));
  }
}
for (const name of ["TextBody", "NewsBody", "RankedNews", "ReasonAnswer"]) {
  $("routes").append(element("section", { className: "route" }, element("h2", {}, name), table(fields({ $ref: name }))));
}
