// What the server does now, and did in the last minute.

import { get, metrics, sum } from "./api.js";
import { chart } from "./chart.js";
import { brief, bytes, make } from "./dom.js";

export const title = "Overview";

const every = 2000, minute = 60;

export function open(root, life) {
  const tiles = make("dl", { class: "tiles" });
  const rate = chart("Tokens", "a second, over the last minute", { x: [-minute, 0], zero: true });
  const load = chart("Requests", "over the last minute", { x: [-minute, 0], zero: true });
  root.append(tiles, make("div", { class: "charts" }, rate.figure, load.figure));

  const past = [];  // { at, output, prompt: tokens a second, running, waiting }
  let before;
  life.every(every, async () => {
    const [found, models] = await Promise.all([metrics(life.signal), get("/v1/models", life.signal)]);
    const now = performance.now() / 1000;
    const tokens = (kind) => sum(found, "qeng_tokens_total", "kind", kind);
    const point = { at: now, running: sum(found, "qeng_running_requests"), waiting: sum(found, "qeng_waiting_requests"),
      total: { output: tokens("output"), prompt: tokens("prompt") } };
    for (const kind of ["output", "prompt"]) {
      point[kind] = before && (point.total[kind] - before.total[kind]) / (now - before.at);
    }
    before = point;
    past.push(point);
    while (past[0].at < now - minute) past.shift();

    const line = (label, key) => ({ label, points:
      past.filter((p) => p[key] !== undefined).map((p) => [p.at - now, p[key]]) });
    rate.draw([line("answers", "output"), line("prompts", "prompt")]);
    load.draw([line("running", "running"), line("waiting", "waiting")]);
    const pages = sum(found, "qeng_kv_pages"), used = sum(found, "qeng_kv_pages_used");
    tiles.replaceChildren(...Object.entries({
      "models": models.data.length,
      "running": point.running,
      "waiting": point.waiting,
      "tokens a second": brief(point.output ?? 0),
      "KV pages": `${brief(used)} of ${brief(pages)}`,
      "KV memory": bytes(sum(found, "qeng_kv_bytes")),
      "peak memory": bytes(sum(found, "qeng_peak_memory_bytes")),
      "connections": sum(found, "qeng_connections"),
      "answered": brief(sum(found, "qeng_requests_total")),
    }).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
  });
}
