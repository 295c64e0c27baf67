// Datasets within --root: what they hold, their records with the trained part marked, and damage.

import { get, post } from "./api.js";
import { brief, button, bytes, field, make, put, table } from "./dom.js";

export const title = "Packets";

const at_once = 10;  // records shown

const address = (name) => `/api/datasets/${name.split("/").map(encodeURIComponent).join("/")}`;
const percent = (share) => `${Number((100 * share).toPrecision(3))} %`;

function spans(record) {
  if (record.damaged) return make("strong", { class: "bad" }, "✗ damaged: a frame's sum is wrong");
  return make("div", { class: "text" }, ...record.spans.map((each) =>
    each.trained ? make("mark", {}, each.text) : each.text), record.cut ? make("em", {}, " … cut here") : "");
}

function record(each) {
  const about = each.tokens ? `${brief(each.tokens)} tokens, ${brief(each.trained)} trained`
    : `${each.type}, ${brief(each.bytes)} bytes`;
  return make("section", { class: "turn", "aria-label": `Record ${each.record}` },
    make("div", { class: "soft" }, `record ${each.record}: ${about}, source ${each.source}, destination ${each.dst}`),
    spans(each));
}

function statistics(found) {
  const rows = (found?.sources ?? []).map((each) => [each.source, each.records, each.tokens, each.trained,
    each.duplicates, each.damaged].map((value) => typeof value === "number" ? brief(value) : value));
  const lengths = (found?.percentiles ?? []).map(({ share, tokens }) => [percent(share), brief(tokens)]);
  const all = found?.bins ?? [], most = Math.max(1, ...all.map((bin) => bin.records));
  const shown = all.slice(Math.max(0, all.findIndex((bin) => bin.records)));
  const bins = shown.map((bin) => [`${brief(bin.from)} to ${brief(bin.to)}`, brief(bin.records),
    make("meter", { max: most, value: bin.records, "aria-label": `${bin.records} records` })]);
  return [
    table("Sources", ["Source", ["Records"], ["Tokens"], ["Trained"], ["Twice"], ["Damaged"]], rows),
    make("div", { class: "pair" },
      table("Lengths", ["Of the records", ["have at most so many tokens"]], lengths),
      table("How many are how long", ["Tokens", ["Records"], ""], bins)),
  ];
}

function damage(found) {
  if (found.ok) return make("p", {}, `✓ whole: every frame of ${brief(found.records)} records, ${
    brief(found.blocks)} blocks and the index`);
  const rows = [...found.damaged.map((each) => [`record ${each.record}`, String(each.offset)]),
    ...found.block_offsets.map((offset) => ["block of 1 MiB", String(offset)])];
  return make("div", {}, make("p", { class: "bad", role: "alert" }, `✗ damaged: ${brief(found.bad_records)} of ${
    brief(found.records)} records, ${brief(found.bad_blocks)} of ${brief(found.blocks)} blocks`),
  table("Where", ["What", ["Byte of the file"]], rows));
}

export async function open(root, life) {
  const list = make("div"), detail = make("section", { hidden: true, "aria-label": "The chosen dataset" });
  root.append(list, detail);

  async function act(work) {
    try {
      await work();
      life.tell(null);
    } catch (error) { life.tell(error); }
  }

  async function choose(name) {
    const told = await get(address(name), life.signal);
    const heading = make("h2", { tabindex: "-1" }, name), records = make("div");
    const found = make("div", { role: "status" });
    const first = make("input", { type: "number", min: 0, step: 1, value: 0 });
    const last = Math.max(0, told.totals.records - at_once);
    async function show() {
      const said = await get(`${address(name)}/records?first=${Number(first.value)}&count=${at_once}`, life.signal);
      records.replaceChildren(...said.data.map(record));
    }
    const move = (by) => act(() => {
      first.value = Math.min(last, Math.max(0, Number(first.value) + by));
      return show();
    });
    const verify = button("Verify", () => act(async () => {
      verify.disabled = true;
      found.textContent = "reads every frame …";
      try { found.replaceChildren(damage(await post(`${address(name)}/verify`, {}, life.signal))); }
      catch (error) { found.textContent = ""; throw error; }
      finally { verify.disabled = false; }
    }));
    const tokenizer = told.tokenizer ? `decoded as ${told.tokenizer} does`
      : `as ids: no model here has its tokenizer${told.meta.tokenizer ? `, ${told.meta.tokenizer}` : ""}`;
    const meta = JSON.stringify(told.meta, null, 2);
    const dead = told.statistics?.damaged;
    detail.replaceChildren(heading,
      make("p", {}, `${brief(told.totals.records)} records, ${brief(told.totals.tokens)} tokens, ${
        brief(told.totals.loss_tokens)} trained, ${bytes(told.size)}, ${tokenizer}.`),
      dead ? make("p", { class: "bad" }, `✗ damaged records: ${brief(dead)}; Verify says where`) : "",
      make("div", { class: "row" }, verify), found,
      ...told.statistics ? statistics(told.statistics)
        : [make("p", { class: "soft" }, "Statistics of so large a dataset: recipes/analyze.lua.")],
      make("details", {}, make("summary", {}, "What it says of itself"), make("pre", { tabindex: "0" }, meta)),
      make("h2", {}, "Records"),
      make("p", { class: "soft" }, "Trained is what is underlined, between » and «: ", make("mark", {}, "as here"),
        "."),
      make("form", { class: "form", onsubmit: (event) => { event.preventDefault(); act(show); } },
        field("First record", first), make("button", {}, "Show"), button("Before", () => move(-at_once)),
        button("Next", () => move(at_once))),
      records);
    await show();
    detail.hidden = false;
    heading.focus();
  }

  const { datasets, more } = await get("/api/datasets", life.signal);
  put(list, table("Datasets", ["Name", ["Size"], ["Records"], ["Tokens"], ["Trained"]], datasets.map((each) =>
    [each.problem ? make("span", { class: "bad" }, `✗ ${each.problem}`)
      : button(each.name, () => act(() => choose(each.name)), { class: "link", "aria-label": `Show ${each.name}` }),
    bytes(each.size ?? 0), brief(each.records), brief(each.tokens),
    each.tokens ? `${brief(each.trained)} (${percent(each.trained / each.tokens)})` : "–"]),
  "none: they are the .qubgpu files of --root; a job of kind convert makes one"));
  if (more) list.append(make("p", { class: "soft" }, "There are more than are listed."));
}
