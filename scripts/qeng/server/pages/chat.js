// A chat with one model, or with two side by side that get the same questions.

import { Answer } from "./answer.js";
import { get } from "./api.js";
import { messages, path, Turn } from "./conversation.js";
import { button, field, make, select } from "./dom.js";

export const title = "Chat";

let root_turn = new Turn("");  // the conversation outlives a visit to another page

function number(value, more) { return make("input", { type: "number", value, ...more }); }

export async function open(root, life) {
  const names = (await get("/v1/models", life.signal)).data.map((each) => each.id);
  const lanes = [select(names, names[0]), select(["", ...names], "")];
  const system = make("textarea", { rows: 1, cols: 30 });
  const temperature = number("0.7", { min: 0, max: 2, step: 0.1 }), limit = number("256", { min: 1, step: 1 });
  const seed = number("", { step: 1, placeholder: "any" }), shaded = make("input", { type: "checkbox" });
  const log = make("div", { role: "log", "aria-live": "polite", "aria-label": "Conversation" });
  const question = make("textarea", { rows: 3, required: true });
  const send = make("button", { class: "main" }, "Send");
  const stop = button("Stop", () => asking?.abort(), { disabled: true });
  const fresh = button("New conversation", () => {
    asking?.abort();
    root_turn = new Turn("");
    draw();
    question.focus();
  });
  const form = make("form", { class: "ask", onsubmit: (event) => {
    event.preventDefault();
    const text = question.value;
    question.value = "";
    ask(new Turn(text, path(root_turn).at(-1) ?? root_turn));
  } }, field("Question (Ctrl and Enter sends it)", question), make("div", { class: "row" }, send, stop, fresh));
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !send.disabled) form.requestSubmit();
  });
  root.append(make("div", { class: "form" }, field("Model", lanes[0]), field("Beside it", lanes[1]),
    field("Temperature", temperature), field("Most tokens", limit), field("Seed", seed),
    field("System message", system), field("Shade what is unsure", shaded)), log, form);
  let asking;
  life.signal.addEventListener("abort", () => asking?.abort());

  // Asks the models that are chosen, at once, and waits for both.
  async function ask(turn) {
    asking = new AbortController();
    const models = lanes.map((lane) => lane.value).filter((name) => name);
    const said = models.map((model, lane) => {
      turn.answers[lane] = new Answer(model);
      return turn.answers[lane].run({
        model, messages: messages(system.value, turn, lane), stream: true, stream_options: { include_usage: true },
        temperature: Number(temperature.value), max_tokens: Number(limit.value), logprobs: shaded.checked,
        seed: seed.value === "" ? undefined : Number(seed.value),
      }, asking.signal);
    });
    draw();
    await Promise.all(said);
    asking = undefined;
    draw();
  }

  function edit(turn, place) {
    const text = make("textarea", { rows: 3, "aria-label": "The question anew" });
    text.value = turn.question;
    place.replaceChildren(make("form", { class: "ask", onsubmit: (event) => {
      event.preventDefault();
      ask(new Turn(text.value, turn.parent));
    } }, text, make("div", { class: "row" }, make("button", {}, "Ask this"), button("Leave it", draw))));
    text.focus();
  }

  function branches(turn) {
    const { parent, place } = turn, count = parent.branches.length;
    if (count < 2) return [];
    const to = (step) => () => {
      const line = path(root_turn).indexOf(turn);
      parent.shown = place + step;
      draw();
      log.children[line].querySelector("button").focus();  // the one that had the focus is gone
    };
    return [button("‹", to(-1), { "aria-label": "Branch before", disabled: place === 0 }), `${place + 1} of ${count}`,
      button("›", to(1), { "aria-label": "Next branch", disabled: place === count - 1 })];
  }

  function draw() {
    send.disabled = Boolean(asking);
    stop.disabled = !asking;
    log.replaceChildren(...path(root_turn).map((turn) => {
      const place = make("div", { class: "said" }, turn.question);
      const tools = asking ? [] : [button("Edit", () => edit(turn, place)), ...branches(turn)];
      return make("section", { class: "turn" }, place, make("div", { class: "row" }, ...tools),
        make("div", { class: "lanes" }, ...turn.answers.map((answer) => answer.element)));
    }));
  }
  draw();
}
