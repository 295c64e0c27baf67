// Jobs of the server: one that trains an adapter is begun here, watched, and its adapter served.

import { get, post, text } from "./api.js";
import { chart } from "./chart.js";
import { button, field, make, put, select, table } from "./dom.js";
import { follow, line } from "./runs.js";

export const title = "Jobs";

const numbers = [["steps", 100, 1], ["lr", 0.0003, "any"], ["rank", 16, 1], ["seed", 1, 1]];
const most_shown = 20000;  // characters of a log

export async function open(root, life) {
  const model = select((await get("/v1/models", life.signal)).data.filter((m) => !m.parent).map((m) => m.id));
  const data = make("input", { placeholder: "none: a demonstration" });
  const options = numbers.map(([name, value, step]) => [name, make("input", { type: "number", min: 0, step, value })]);
  const form = make("form", { class: "form", onsubmit: (event) => { event.preventDefault(); begin(); } },
    field("Model", model), field("Data within --root", data),
    ...options.map(([name, input]) => field({ lr: "learning rate" }[name] ?? name, input)),
    make("button", { class: "main" }, "Train"));
  const list = make("div"), detail = make("section", { hidden: true, "aria-label": "The chosen job" });
  const name = make("h2"), log = make("pre", { tabindex: "0", role: "region", "aria-label": "Log" });
  const loss = chart("Loss", "");
  detail.append(name, loss.figure, log);
  root.append(make("h2", {}, "Train an adapter"), form, list, detail);
  let chosen;  // { id, run, at: read of its log }

  async function act(work) {
    try {
      await work();
      life.tell(null);
      await update();
    } catch (error) { life.tell(error); }
  }

  function begin() {
    const asked = data.value ? { model: model.value, data: data.value } : {};  // without: the recipe's demonstration
    for (const [key, input] of options) if (input.value !== "") asked[key] = Number(input.value);
    return act(async () => choose(await post("/api/jobs", { kind: "train", options: asked }, life.signal)));
  }

  function choose(job) {
    chosen = { id: job.id, run: follow(job.folder), at: 0 };
    detail.hidden = false;
    name.textContent = job.id;
    log.textContent = "";
    loss.draw([]);
  }

  const run = (job, verb) => act(() => post(`/api/jobs/${encodeURIComponent(job.id)}/${verb}`, {}, life.signal));
  const serve = (job) => act(() => post("/lora-adapters/load",
    { name: job.id, path: job.adapter, model: job.options.model }, life.signal));

  function tools(job) {
    const row = [button("Show", () => act(async () => choose(job)), { "aria-label": `Show ${job.id}` })];
    if (["queued", "running"].includes(job.state)) row.push(button("Cancel", () => run(job, "cancel")));
    if (["stopped", "cancelled", "failed"].includes(job.state)) row.push(button("Resume", () => run(job, "resume")));
    if (job.adapter) row.push(button("Serve it", () => serve(job)));
    return make("span", { class: "row" }, ...row);
  }

  async function read() {
    const job = chosen;
    const [more, next] = await text(`/api/jobs/${encodeURIComponent(job.id)}/log?from=${job.at}`, life.signal);
    const { runs } = await get("/api/runs", life.signal);
    if (runs.some((run) => run.name === job.run.name)) await job.run.read(life.signal);  // else it has no step yet
    if (job !== chosen) return;
    if (more) {
      const below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      log.textContent = (log.textContent + more).slice(-most_shown);
      if (below) log.scrollTop = log.scrollHeight;
    }
    job.at = next;
    loss.draw([line(job.run, "loss")]);
  }

  let last;
  async function update() {
    const { data: jobs } = await get("/api/jobs", life.signal);
    const now = JSON.stringify(jobs);
    if (now !== last) {  // else what has the focus would lose it
      put(list, table("All jobs", ["Job", "Kind", "State", ""], jobs.toReversed().map((job) =>
        [job.id, job.kind, job.problem ? `${job.state}: ${job.problem}` : job.state, tools(job)])));
    }
    last = now;
    if (chosen) await read();
  }
  life.every(2000, update);
}
