// The frame: pages by the part of the address after #, one at a time. A page is { title, open(root, life) }.
// life: signal     ends with the page
//       every(ms, f)  calls f now and again that long after it is done
//       tell(error)   shows what went wrong; null: nothing does

import { make } from "./dom.js";
import * as overview from "./overview.js";
import * as chat from "./chat.js";
import * as requests from "./requests.js";
import * as models from "./models.js";
import * as runs from "./runs.js";
import * as jobs from "./jobs.js";
import * as packets from "./packets.js";
import * as kernels from "./kernels.js";
import * as kv from "./kv.js";
import * as peers from "./peers.js";

const pages = { overview, chat, requests, models, runs, jobs, packets, kernels, kv, peers };
const main = document.getElementById("main");
const problem = document.getElementById("problem");
const nav = document.querySelector("nav");
let leave = new AbortController();

function tell(error) {
  if (error?.name === "AbortError") return;
  problem.hidden = !error;
  const text = error ? error.message : "";
  if (problem.textContent !== text) problem.textContent = text;
}

function show(moved) {
  const name = location.hash.replace(/^#\//, "").split("/")[0];
  if (name === "main") return;  // the link that skips the header
  const page = pages[name] ?? overview;
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const own = (error) => { if (!signal.aborted) tell(error); };
  const life = {
    signal, tell: own,
    every(ms, work) {
      let failed = false;  // only its own errors does it take back
      const turn = async () => {
        try {
          if (!document.hidden) await work();
          if (failed) own(null);
          failed = false;
        } catch (error) {
          failed = true;
          own(error);
        }
        if (!signal.aborted) setTimeout(turn, ms);
      };
      turn();
    },
  };
  tell(null);
  document.title = `${page.title} – qeng`;
  nav.replaceChildren(...Object.entries(pages).map(([key, each]) =>
    make("a", { href: `#/${key}`, "aria-current": each === page && "page" }, each.title)));
  const root = make("div", {}, make("h1", {}, page.title));
  main.replaceChildren(root);
  Promise.resolve(page.open(root, life)).catch(own);
  if (moved) main.focus();
}

addEventListener("hashchange", (event) => { if (!event.newURL.endsWith("#main")) show(true); else main.focus(); });
show(false);
