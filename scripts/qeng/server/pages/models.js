// Models, and their adapters: load, scale, unload.

import { get, post } from "./api.js";
import { brief, button, field, make, put, select, table } from "./dom.js";

export const title = "Models";

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
  root.append(models, adapters, make("h2", {}, "Load an adapter"), form);

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
    of.replaceChildren(...list.data.filter((each) => !each.parent && each.loaded !== false)
      .map((each) => make("option", {}, each.id)));
  }
  await show();
}
