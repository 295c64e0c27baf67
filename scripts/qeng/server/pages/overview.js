// What the server does now, and did in the last minute.

import { get, metrics, sum } from "./api.js";
import { chart } from "./chart.js";
import { brief, bytes, make, put, table } from "./dom.js";

export const title = "Overview";

const every = 2000, minute = 60;

const rates = { bytes: "bytes a second", flops: "operations a second", share: "share of the limit", limit: "limit" };

// Memory by name, and what is said of the device, as far as the server has such figures.
function machine(found) {
  const memory = (found.qeng_memory_bytes ?? []).toSorted((a, b) => b.value - a.value)
    .map(({ labels, value }) => [[labels.name, labels.place].filter(Boolean).join(", "), bytes(value)]);
  const device = Object.entries(found).filter(([name]) => name.startsWith("qeng_device_"))
    .flatMap(([name, list]) => list.map(({ labels, value }) => {
      const figure = name.slice("qeng_device_".length);
      return [rates[figure] ?? figure.replaceAll("_", " "), Object.values(labels).join(", "),
        figure === "share" ? `${Math.round(100 * value)} %` : brief(value)];
    }));
  return [memory.length && table("Memory of tensors", ["For", ["Bytes"]], memory),
    device.length && table("Device", ["Figure", "Of", ["Value"]], device)];
}

export function open(root, life) {
  const tiles = make("dl", { class: "tiles" });
  const rate = chart("Tokens", "a second, over the last minute", { x: [-minute, 0], zero: true });
  const load = chart("Requests", "over the last minute", { x: [-minute, 0], zero: true });
  root.append(tiles, make("div", { class: "charts" }, rate.figure, load.figure));
  const places = [make("div"), make("div")];
  root.append(make("div", { class: "pair" }, ...places));

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
    machine(found).forEach((made, i) => { if (made) put(places[i], made); });
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
