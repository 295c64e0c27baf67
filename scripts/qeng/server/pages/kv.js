// The caches of keys and values: how full they are, whose pages they hold, and which beginnings are remembered.

import { get } from "./api.js";
import { brief, bytes, make, put, table } from "./dom.js";

export const title = "KV cache";

const cells = 200;  // squares that stand for all pages

// Squares, each for a share of the pages: those in use first, then those that are only remembered, then free ones.
function grid(cache) {
  const count = Math.min(cells, cache.pages), each = cache.pages / count, parts = [];
  const used = Math.ceil(cache.used / each), held = Math.ceil((cache.used + cache.idle) / each);
  for (let i = 0; i < count; i++) parts.push(make("i", { class: i < used ? "used" : i < held ? "held" : "free" }));
  return make("div", { class: "cells", "aria-hidden": "true" }, ...parts);
}

function overview(cache) {
  const { idle } = cache, free = cache.pages - cache.used - idle;
  const share = Math.round(100 * cache.used / cache.pages);
  return make("div", {},
    make("p", {}, `${brief(cache.pages)} pages of ${cache.page_tokens} tokens, ${bytes(cache.page_bytes)} each, ${
      bytes(cache.capacity)} in all, in ${cache.kv}; ${share} % in use (${bytes(cache.bytes)}).`),
    make("ul", { class: "legend" }, make("li", { class: "used" }, `in use ${brief(cache.used)}`),
      make("li", { class: "held" }, `remembered ${brief(idle)}`), make("li", { class: "free" }, `free ${brief(free)}`)),
    grid(cache));
}

function section(name) {
  const parts = { about: make("div"), kinds: make("div"), requests: make("div"), beginnings: make("div") };
  const element = make("section", { "aria-label": name }, make("h2", {}, name), ...Object.values(parts));
  return { element, show(cache) {
    parts.about.replaceChildren(overview(cache));
    if (cache.kinds.length > 1 || cache.kinds.some((kind) => kind.snapshots)) {
      put(parts.kinds, table(`What layers of ${name} keep`, ["Kind", ["Layers"], ["Of a page"]],
        cache.kinds.map((kind) => [kind.snapshots ? "snapshots of a state" : "keys and values", String(kind.layers),
          bytes(kind.bytes)])));
    }
    put(parts.requests, table(`Requests of ${name}`, [["Request"], "Under", ["Tokens"], ["Pages"],
      ["Tokens reused"]], cache.requests.map((each) => [String(each.number), each.model ?? "unloaded",
      brief(each.tokens), brief(each.pages), brief(each.reused)]), "nothing runs"));
    const more = cache.more_beginnings;
    put(parts.beginnings, table(`Beginnings that ${name} remembers${more ? `, and ${more} more` : ""}`,
      ["Under", ["Pages"], ["Longest"], ["In use"], ["Taken over"]], cache.beginnings.map((each) =>
        [each.model ?? "what is forgotten", brief(each.pages), brief(each.longest), brief(each.used),
          `${brief(each.reused)} ×`]), "none yet"));
  } };
}

export function open(root, life) {
  const sections = new Map(), place = make("div");
  root.append(place);
  life.every(2000, async () => {
    const { models } = await get("/api/kv", life.signal);
    for (const [name, each] of sections) {
      if (models.some((cache) => cache.model === name)) continue;
      each.element.remove();
      sections.delete(name);
    }
    for (const cache of models) {
      if (!sections.has(cache.model)) {
        sections.set(cache.model, section(cache.model));
        place.append(sections.get(cache.model).element);
      }
      sections.get(cache.model).show(cache);
    }
    if (!models.length) place.replaceChildren("No model is loaded.");
  });
}
