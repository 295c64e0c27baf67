// Training runs side by side, as they go.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { brief, field, make, put, table } from "./dom.js";

export const title = "Runs";

const figures = [["loss", "Loss", ""], ["tok_s", "Rate", "tokens a second"], ["lr", "Learning rate", ""],
  ["grad_norm", "Gradient's norm", ""]];

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

export async function open(root, life) {
  const chosen = new Map();
  const choice = make("fieldset", {}, make("legend", {}, "Shown"));
  const drawn = figures.map(([key, label, unit]) => ({ key, ...chart(label, unit) }));
  const last = make("div");
  root.append(choice, make("div", { class: "charts" }, ...drawn.map((each) => each.figure)), last);

  const { runs } = await get("/api/runs", life.signal);
  if (!runs.length) choice.append("No runs: they are the folders of --root with a metrics.jsonl.");
  runs.forEach(({ name }, i) => {
    const box = make("input", { type: "checkbox", checked: i === runs.length - 1 });
    box.addEventListener("change", () => toggle(name, box.checked));
    choice.append(field(name, box));
    if (box.checked) chosen.set(name, follow(name));
  });

  function show() {
    const list = [...chosen.values()];
    for (const each of drawn) each.draw(list.map((run) => line(run, each.key)));
    put(last, table("Last step", ["Run", ["Step"], ["Loss"], ["Tokens/s"]], list.map((run) => {
      const r = run.records.findLast((each) => each.loss !== undefined) ?? {};
      return [run.name, brief(r.step), brief(r.loss, 4), brief(r.tok_s)];
    })));
  }
  async function update() {
    await Promise.all([...chosen.values()].map((run) => run.read(life.signal)));
    show();
  }
  function toggle(name, on) {
    if (on) chosen.set(name, follow(name));
    else chosen.delete(name);
    update().catch(life.tell);
  }
  life.every(2000, update);
}
