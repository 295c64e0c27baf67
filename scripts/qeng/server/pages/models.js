// Models, and their adapters: load, scale, unload. Forms that quantize a model, and that ask whether one fits.

import { get, post } from "./api.js";
import { brief, button, field, make, put, select, table } from "./dom.js";

export const title = "Models";

const modes = ["all", "lora", "full", "onebit", "inference"];
const types = ["q4_k_m", "q5_k_m", "q6_k", "q8_0", "q4_0", "iq4_nl", "f16"];
const planned = [["rank", 16], ["row_tokens", 512], ["rows", 1], ["context", 4096], ["batch", 1]];

// Asks for a plan, and shows what it says.
function plan_form(life) {
  const model = make("input", { required: true, value: "7b", list: "plan-models" });
  const mode = select(modes, "all"), recompute = make("input", { type: "checkbox" });
  const numbers = planned.map(([name, value]) => [name, make("input", { type: "number", min: 1, step: 1, value })]);
  const said = make("div", { role: "status" }), go = make("button", { class: "main" }, "Plan");
  const form = make("form", { class: "form", onsubmit: async (event) => {
    event.preventDefault();
    const asked = { model: model.value, mode: mode.value, recompute: recompute.checked };
    for (const [key, input] of numbers) if (input.value !== "") asked[key] = Number(input.value);
    go.disabled = true;
    said.textContent = "plans …";
    try {
      const { text } = await post("/api/plan", asked, life.signal);
      said.replaceChildren(make("pre", { class: "table", tabindex: "0", role: "region", "aria-label": "Plan" }, text));
      life.tell(null);
    } catch (error) {
      said.textContent = "";
      life.tell(error);
    } finally { go.disabled = false; }
  } }, field("Model, path within --root, or 1b to 90b", model), field("What for", mode),
  ...numbers.map(([key, input]) => field(key.replace("_", " "), input)), field("Recompute activations", recompute), go);
  return [form, said];
}

// Begins a job that writes a GGUF file.
function quantize_form(life, model) {
  const type = make("input", { required: true, value: types[0], list: "types" });
  const said = make("p", { role: "status" });
  return [make("form", { class: "form", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const job = await post("/api/jobs", { kind: "quantize", options: { model: model.value, type: type.value } },
        life.signal);
      said.replaceChildren(`${job.id} has begun and will write ${job.folder}/model.gguf: `,
        make("a", { href: "#/jobs" }, "Jobs"), " shows it.");
      life.tell(null);
    } catch (error) { life.tell(error); }
  } }, field("Model, or path within --root", model), field("Type", type),
  make("datalist", { id: "types" }, ...types.map((each) => make("option", { value: each }))),
  make("button", { class: "main" }, "Quantize")), said];
}

export async function open(root, life) {
  const models = make("div"), adapters = make("div");
  const name = make("input", { required: true });
  const path = make("input", { required: true, placeholder: "jobs/…/adapter" });
  const of = select([]);
  const form = make("form", { class: "form", onsubmit: (event) => {
    event.preventDefault();
    change("/lora-adapters/load", { name: name.value, path: path.value, model: of.value });
  } }, field("Name", name), field("Path within --root", path), field("Model", of),
    make("button", { class: "main" }, "Load"));
  const source = make("input", { required: true, list: "plan-models" });
  const served = make("datalist", { id: "plan-models" });
  root.append(models, adapters, make("h2", {}, "Load an adapter"), form, make("h2", {}, "Quantize"),
    ...quantize_form(life, source), make("h2", {}, "Does it fit?"), ...plan_form(life), served);

  async function change(route, body) {
    try {
      await post(route, body, life.signal);
      await show();
      life.tell(null);
    } catch (error) { life.tell(error); }
  }

  async function show() {
    const [list, loras] = await Promise.all([get("/v1/models", life.signal), get("/lora-adapters", life.signal)]);
    put(models, table("Models", ["Name", "Of", "State", ["Context"]], list.data.map((each) =>
      [each.id, each.parent ?? "", each.loaded === false ? "on disk" : "loaded", brief(each.max_model_len)])));
    put(adapters, table("Adapters", ["Name", "Model", "Path", "Scale", ""], loras.map((each) => {
      const scale = make("input", { type: "number", step: "any", min: -100, max: 100, value: each.scale,
        "aria-label": `Scale of ${each.name}` });
      return [each.name, each.model, each.path ?? "", scale, make("span", { class: "row" },
        button("Set", () => change("/lora-adapters", [{ id: each.id, scale: Number(scale.value) }])),
        button("Unload", () => change("/lora-adapters/unload", { name: each.name })))];
    })));
    const loaded = list.data.filter((each) => !each.parent && each.loaded !== false).map((each) => each.id);
    of.replaceChildren(...loaded.map((name) => make("option", {}, name)));
    served.replaceChildren(...loaded.map((name) => make("option", { value: name })));
    source.value ||= loaded[0] ?? "";
  }
  await show();
}
