// The requests that run, and how long requests took.

import { get, metrics, quantile } from "./api.js";
import { brief, make, put, seconds, table } from "./dom.js";

export const title = "Requests";

const histograms = [
  ["qeng_time_to_first_token_seconds", "time to the first token"],
  ["qeng_inter_token_seconds", "between tokens"],
  ["qeng_queue_seconds", "in the queue"],
  ["qeng_request_seconds", "whole request"],
];

// One histogram for each route, or one if it has none.
function by_path(buckets) {
  const all = new Map();
  for (const each of buckets ?? []) {
    const path = each.labels.path ?? "";
    if (!all.has(path)) all.set(path, []);
    all.get(path).push(each);
  }
  return all;
}

export function open(root, life) {
  const now = make("div"), times = make("div");
  root.append(now, times);
  life.every(1000, async () => {
    const [slots, found] = await Promise.all([get("/slots", life.signal), metrics(life.signal)]);
    put(now, table("Running now", ["Model", ["Request"], ["Prompt"], ["Cached"], ["Answered"], ["Context"]],
      slots.filter((s) => s.is_processing).map((s) => [s.model, s.id, s.n_prompt_tokens, s.n_prompt_tokens_cached,
        s.n_decoded, s.n_ctx].map(String)),
      "nothing runs"));
    const rows = histograms.flatMap(([name, label]) => [...by_path(found[name + "_bucket"])].map(([path, buckets]) =>
      [path ? `${label}, ${path}` : label, brief(buckets.at(-1).value),
        ...[0.5, 0.9, 0.99].map((share) => seconds(quantile(buckets, share)))]));
    put(times, table("Latency since the start",
      ["What", ["Count"], ["50 %"], ["90 %"], ["99 %"]], rows));
  });
}
