// Models whose layers lie on several machines: who has which, memory, time, links, and what was lost and moved.

import { get } from "./api.js";
import { brief, bytes, make, put, seconds, table } from "./dom.js";

export const title = "Peers";

const known = (value, shown) => value === undefined ? "–" : shown(value);
const span = ({ first, count }) => count === 1 ? `${first}` : `${first} to ${first + count - 1}`;
const percent = (share) => `${Math.round(100 * share)} %`;

function meter(share, text) {
  return make("span", { class: "share" }, make("meter", { min: 0, max: 1, value: share, "aria-hidden": "true" }),
    make("span", {}, text));
}

// The layers in their order, each range as wide as it has layers, in the colour of its machine.
function bar(fleet) {
  const ranges = fleet.peers.flatMap((peer, i) => peer.layers.map((range) => ({ ...range, peer, colour: i % 6 })))
    .toSorted((a, b) => a.first - b.first);
  const words = ranges.map((range) => `${span(range)} ${range.peer.name}${range.stands ? "" : ", not loaded"}`);
  const parts = ranges.map((range, i) => {
    const part = make("span", { class: range.stands ? `s${range.colour}` : "lost", title: words[i] }, words[i]);
    part.style.flexGrow = range.count;
    return part;
  });
  return make("div", { class: "layers", role: "img", "aria-label": `Layers: ${words.join("; ")}` }, ...parts);
}

function state(peer) {
  if (peer.coordinator) return "this process";
  const held = peer.layers.length > 0 && (!peer.here || peer.why);
  const text = peer.here ? `● here${peer.why ? `, but: ${peer.why}` : ""}` : `not here: ${peer.why}`;
  return make("span", held ? { class: "bad" } : {}, peer.left_out && !peer.count ? `${text}; ${peer.left_out}` : text);
}

function memory(peer) {
  if (peer.memory === undefined || peer.free === undefined) return "–";
  return meter(Math.max(0, 1 - peer.free / peer.memory), `${bytes(peer.free)} free of ${bytes(peer.memory)}`);
}

const place = (peer, i) => make("span", { class: `machine s${i % 6}` }, peer.name);

function machines(fleet) {
  return table(`Machines of ${fleet.model}`, ["Machine", "State", "Device", "Layers", ["Weights"], ["Memory"]],
    fleet.peers.map((peer, i) => [
      peer.address && peer.address !== peer.name
        ? make("span", {}, place(peer, i), " ", make("span", { class: "soft" }, peer.address)) : place(peer, i),
      state(peer), peer.device ?? "–",
      peer.layers.map(span).join(", ") + (peer.ends ? `${peer.count ? ", " : ""}embedding and head` : "") || "none",
      bytes(peer.bytes + (peer.ends ?? 0)), memory(peer)]));
}

function times(fleet) {
  const { predicted } = fleet;  // where it is there, links were measured, too
  return table(`Time and links of ${fleet.model}`, ["Machine", ["Steps"], ["A step"],
    ...predicted ? [[`Planned for ${brief(predicted.batch.requests)}`]] : [], ["Busy"], ["Round trip"],
    ...predicted ? [["Bandwidth"]] : [], ["Sent"], ["Received"]], fleet.peers.map((peer, i) => {
    const { link = {} } = peer;
    return [place(peer, i), known(peer.steps, brief), seconds(peer.step_seconds),
      ...predicted ? [seconds(peer.planned_seconds)] : [], known(peer.busy, (share) => meter(share, percent(share))),
      seconds(link.round_trip), ...predicted ? [known(link.bandwidth, (rate) => `${bytes(rate)}/s`)] : [],
      known(link.sent, bytes), known(link.received, bytes)];
  }));
}

// steps: those between this reading and the one before, or of all the time where there were none. Each is of one group
// of requests; as many groups are under way as there are stages.
function tiles(fleet, steps) {
  const { predicted } = fleet, requests = steps.count ? steps.requests / steps.count : 0;
  const stages = fleet.peers.reduce((sum, peer) => sum + peer.layers.length, 0), running = Math.round(requests);
  const groups = running && Math.ceil(running / Math.ceil(running / stages));
  const plans = predicted ? [predicted.one, predicted.batch] : [];
  const plan = ({ requests: many, seconds: each }) => [`predicted, of ${brief(many)}`, seconds(each)];
  return Object.entries({
    "requests at once": requests ? brief(requests, 2) : "–",
    "a token of each in": groups ? seconds(groups * steps.seconds / steps.count) : "–",
    ...Object.fromEntries(plans.map(plan)),
    "a step in layers": seconds(fleet.step_seconds),
    "peers lost": brief(fleet.lost),
    "layers moved": brief(fleet.moved),
    "late frames": brief(fleet.dropped),
  }).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
}

function section(name) {
  const about = make("div"), figures = make("dl", { class: "tiles" }), places = [make("div"), make("div")];
  const element = make("section", { "aria-label": name }, make("h2", {}, name), about, figures, ...places);
  let before;
  return { element, show(fleet) {
    const having = fleet.peers.filter((peer) => peer.layers.length).length, all = fleet.steps;
    const lately = before && all.count > before.count
      ? Object.fromEntries(Object.keys(all).map((key) => [key, all[key] - before[key]])) : all;
    before = all;
    about.replaceChildren(make("p", {}, `${brief(fleet.layers)} layers on ${brief(having)} of ${
      brief(fleet.peers.length)} machines; hidden states travel ${
      fleet.wire === "exact" ? "exactly" : `in ${fleet.wire}`}.`), bar(fleet));
    figures.replaceChildren(...tiles(fleet, lately));
    put(places[0], machines(fleet));
    put(places[1], times(fleet));
  } };
}

export function open(root, life) {
  const sections = new Map(), place = make("div");
  const none = make("p", { hidden: true }, "No model has layers on peers. recipes/serve.lua puts them there by its option peers, ",
    "on machines that run recipes/worker.lua.");
  root.append(none, place);
  life.every(2000, async () => {
    const { models } = await get("/api/peers", life.signal);
    none.hidden = models.length > 0;
    for (const [name, each] of sections) {
      if (models.some((fleet) => fleet.model === name)) continue;
      each.element.remove();
      sections.delete(name);
    }
    for (const fleet of models) {
      if (!sections.has(fleet.model)) {
        sections.set(fleet.model, section(fleet.model));
        place.append(sections.get(fleet.model).element);
      }
      sections.get(fleet.model).show(fleet);
    }
  });
}
