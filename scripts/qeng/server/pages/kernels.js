// The operations of a prompt and of a decoding step of a model, each against the device's measured limit.

import { get, post } from "./api.js";
import { brief, field, make, select, table } from "./dom.js";

export const title = "Kernels";

const percent = (share) => `${Math.round(100 * share)} %`;
const time = (ms) => ms < 1 ? `${Number((1000 * ms).toPrecision(3))} µs` : `${Number(ms.toPrecision(3))} ms`;

function operations(name, step) {
  const rows = step.ops.map((op) => [op.name, String(op.calls), time(op.ms), percent(op.step_share), brief(op.flops),
    brief(op.bytes), brief(op.gflop_s), brief(op.gb_s), make("span", { class: "share" },
      make("meter", { min: 0, max: 1, value: op.limit_share, "aria-hidden": "true" }),
      make("span", {}, percent(op.limit_share)))]);
  return [
    table(name, ["Operation", ["Calls"], ["Time"], ["Of the step"], ["FLOP"], ["Bytes"], ["GFLOP/s"], ["GB/s"],
      ["Share of the limit"]], rows),
    make("p", {}, `It took ${time(step.ms)}; when measured, its operations ${time(step.ops_ms)}, ${
      percent(step.limit_share)} of the limit.`),
  ];
}

export async function open(root, life) {
  const names = (await get("/v1/models", life.signal)).data.filter((each) => !each.parent && each.loaded !== false);
  const model = select(names.map((each) => each.id));
  const prompt = make("input", { type: "number", min: 1, step: 1, value: 128 });
  const go = make("button", { class: "main" }, "Measure"), said = make("p", { role: "status" }), shown = make("div");
  root.append(make("form", { class: "form", onsubmit: (event) => { event.preventDefault(); measure(); } },
    field("Model", model), field("Tokens of the prompt", prompt), go),
  make("p", { class: "soft" }, "It holds up other answers for as long as a few steps take. What lies in the ",
    "processor's caches may come faster than the memory's limit says."), said, shown);

  async function measure() {
    go.disabled = true;
    said.textContent = "measures …";
    try {
      const found = await post("/api/kernels", { model: model.value, prompt: Number(prompt.value) }, life.signal);
      const { limits } = found;
      said.textContent = limits ? `Limits of the device: ${brief(limits.bandwidth / 1e9)} GB/s, ${
        brief(limits.flops_f32 / 1e9)} GFLOP/s in f32, ${brief(limits.flops_bf16 / 1e9)} in bf16.`
        : "There is no memory left to measure the device's limits.";
      shown.replaceChildren(...operations(`A prompt of ${found.prompt} tokens`, found.prefill),
        ...operations("A decoding step after it", found.decode));
      life.tell(null);
    } catch (error) {
      said.textContent = "";
      life.tell(error);
    } finally { go.disabled = false; }
  }
}
