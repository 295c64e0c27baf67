// Training runs side by side, as they go.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { brief, field, make, put, table } from "./dom.js";

export const title = "Runs";

const figures = [["loss", "Loss", ""], ["tok_s", "Rate", "tokens a second"], ["lr", "Learning rate", ""],
  ["grad_norm", "Gradient's norm", ""]];
// Of runs on several ranks.
const of_ranks = [["exchange_ms", "Exchange between ranks", "ms a step"],
  ["exchange_wait_ms", "Waiting for the exchange", "ms a step"]];

// A run's records, read on from where the last reading ended.
export function follow(name) {
  const path = `/api/runs/${name.split("/").map(encodeURIComponent).join("/")}/metrics`;
  const records = [];
  let from = 0;
  return { name, records, async read(signal) {
    const { next, records: more } = await get(`${path}?from=${from}`, signal);
    if (next < from) records.length = 0;  // it was begun anew
    from = next;
    records.push(...more);
  } };
}

export function line(run, key) {
  const records = run.records.filter((r) => typeof r[key] === "number");
  return { label: run.name, points: records.map((r) => [r.step, r[key]]) };
}

export function open(root, life) {
  const chosen = new Map();
  const choice = make("fieldset", {}, make("legend", {}, "Shown"));
  const drawn = [...figures, ...of_ranks].map(([key, label, unit]) => ({ key, ...chart(label, unit) }));
  const last = make("div");
  root.append(choice, make("div", { class: "charts" }, ...drawn.map((each) => each.figure)), last);

  // Boxes of runs that are new; those of the first time show one: the one that trains, or the last.
  const known = new Set(), none = make("span", {}, "No runs: they are the folders of --root with a metrics.jsonl.");
  choice.append(none);
  function offer(runs) {
    const first = known.size ? undefined : runs.findLast((run) => run.live) ?? runs.at(-1);
    none.hidden = runs.length > 0;
    for (const run of runs.filter(({ name }) => !known.has(name))) {
      const box = make("input", { type: "checkbox", checked: run === first });
      box.addEventListener("change", () => {
        if (box.checked) chosen.set(run.name, follow(run.name));
        else chosen.delete(run.name);
        update().catch(life.tell);
      });
      choice.append(field(run.name, box));
      if (run === first) chosen.set(run.name, follow(run.name));
      known.add(run.name);
    }
  }

  async function update() {
    const { runs } = await get("/api/runs", life.signal);
    offer(runs);
    const list = [...chosen.values()].filter((run) => runs.some(({ name }) => name === run.name));  // others are gone
    await Promise.all(list.map((run) => run.read(life.signal)));
    for (const each of drawn) {
      const lines = list.map((run) => line(run, each.key));
      each.figure.hidden = of_ranks.some(([key]) => key === each.key) && !lines.some((one) => one.points.length);
      each.draw(each.figure.hidden ? [] : lines);
    }
    put(last, table("All runs", ["Run", "State", ["Step"], ["Loss"], ["Tokens/s"]], runs.map((run) =>
      [run.name, run.live ? "● trains" : "ended", brief(run.step), brief(run.loss, 4), brief(run.tok_s)])));
  }
  life.every(2000, update);
}
