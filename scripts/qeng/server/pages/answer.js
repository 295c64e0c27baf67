// An answer of a model as it comes: its reasoning folded, its text, shaded where the model was unsure.

import { events } from "./api.js";
import { make } from "./dom.js";

const unsure = [0.9, 0.6, 0.3, 0.1];  // a token less likely than the i-th is shaded by i shades

export class Answer {
  constructor(model) {
    Object.assign(this, { model, text: "", tokens: 0 });
    this.thoughts = make("div");
    this.folded = make("details", { hidden: true }, make("summary", {}, "Reasoning"), this.thoughts);
    this.said = make("div", { class: "text" });
    this.state = make("div", { class: "soft" }, "waits");
    this.element = make("div", { class: "answer", "aria-busy": "true" }, make("strong", {}, model), this.folded,
      this.said, this.state);
  }

  add(text, logprobs) {
    this.text += text;
    const likely = logprobs?.map((each) => Math.exp(each.logprob)) ?? [];
    const shade = unsure.filter((bound) => Math.min(1, ...likely) < bound).length;
    const title = likely.map((p) => `${(100 * p).toFixed(1)} %`).join(", ");
    this.said.append(likely.length ? make("span", { class: `u${shade}`, title }, text) : text);
  }

  // Streams it; what ends it is said under it. It does not fail.
  async run(request, signal) {
    const begin = performance.now();
    let first, end = "ended early";
    try {
      for await (const event of events("/v1/chat/completions", request, signal)) {
        if (event.usage) this.tokens = event.usage.completion_tokens;
        const choice = event.choices[0];
        if (!choice) continue;
        const { content, reasoning_content } = choice.delta;
        if (content || reasoning_content) {
          first ??= performance.now();
          this.state.textContent = "answers";
        }
        if (reasoning_content) {
          this.folded.hidden = false;
          this.thoughts.append(reasoning_content);
        }
        if (content) this.add(content, choice.logprobs?.content);
        const finish = choice.finish_reason;
        if (finish) end = finish === "length" ? "at the limit of tokens" : finish;
      }
    } catch (error) { end = error.name === "AbortError" ? "stopped" : error.message; }
    const rate = this.tokens > 1 && first ? `, ${this.tokens} tokens, ${
      Math.round(1000 * (this.tokens - 1) / Math.max(1, performance.now() - first))} a second` : "";
    this.state.textContent = `${end}${rate}${first ? `, first after ${Math.round(first - begin)} ms` : ""}`;
    this.element.setAttribute("aria-busy", "false");
  }
}
