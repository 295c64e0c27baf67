#!/usr/bin/env python3
"""A prompt of 2048 tokens and decoding at 8000 of SmolLM2's released Q4_1 file, by how the cache keeps keys and values: qeng with f16 and codes,
llama.cpp (the prebuilt one of xllamacpp) with f16 and q4_0, all in turns, and qeng's prompts in one process. Each figure is the median of its rounds; a ratio is the median of
the rounds' ratios to the f16 cache of the same program, so that a machine that changes its speed changes both sides.
   ~/.cache/qeng-peers/*/bin/python bench/kv_codes.py [--rounds 3] [--threads 2] [--only qeng]      after scripts/test --peers, which makes that environment"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
os.environ.setdefault("QENG_PEERS_WORK", tempfile.gettempdir())
sys.path.insert(0, str(ROOT / "tests/peers"))
import llama  # noqa: E402
from peers import smollm2  # noqa: E402

PROMPT, TURNS, CONTEXT, STEPS = 2048, 5, 8000, 32  # the model's own context is 8192
TYPES = {"f16": 1, "q4_0": 2}  # ggml_type


def seconds_of(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def of_llama(path, kind, threads):
    model, wanted = llama.load_model(str(path).encode(), llama.default_model()), llama.default_context()
    wanted.n_ctx, wanted.n_batch, wanted.n_threads, wanted.n_threads_batch = 8192, CONTEXT, threads, threads
    wanted.type_k = wanted.type_v = TYPES[kind]
    wanted.flash_attention = 1  # values in q4_0 need it
    context = llama.init_context(model, wanted)
    memory, tokens = llama.get_memory(context), [(i * 37 + 11) % 40000 for i in range(CONTEXT)]
    prompts = []
    for _ in range(2):
        llama.clear_memory(memory, True)
        prompts.append(seconds_of(lambda: llama.advance(context, tokens[:PROMPT], 0)))
    llama.advance(context, tokens[PROMPT:], PROMPT)
    steps = [seconds_of(lambda at=i: llama.advance(context, [(at * 53 + 7) % 40000], CONTEXT + at)) for i in range(STEPS)]
    llama.free_context(context)
    llama.free_model(model)
    return PROMPT / min(prompts), 1 / statistics.median(steps)


def qeng(*words):
    return subprocess.run([str(ROOT / "build/release/qeng"), *map(str, words)], check=True, capture_output=True, text=True, cwd=ROOT).stdout


def of_qeng(path, kind, threads):
    """Decoding alone: prompts are in one process, in turns (prompts_of_qeng)."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "decode.json")
        qeng("recipes/bench_decode.lua", "--model", path, "--batch", 1, "--context", CONTEXT, "--tokens", STEPS, "--prompt", 16, "--repeats", 1, "--kv", kind, "--threads", threads, "--out", out)
        return None, json.load(open(out))["decode"][0]["tokens_per_second"]


def prompts_of_qeng(path, kinds, threads):
    seconds = json.loads(qeng("bench/kv_prompt.lua", path, PROMPT, TURNS, threads, *kinds))
    return {kind: PROMPT / statistics.median(of_kind) for kind, of_kind in seconds.items()}


SIDES = [("qeng", of_qeng, "f16"), ("qeng", of_qeng, "tq4"), ("qeng", of_qeng, "tq3"), ("llama.cpp", of_llama, "f16"), ("llama.cpp", of_llama, "q4_0")]
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--only", choices=["qeng", "llama.cpp"], help="one of the programs")
options = parser.parse_args()
SIDES = [side for side in SIDES if options.only in (None, side[0])]
rounds = []
for number in range(options.rounds):
    rounds.append({(name, kind): measure(smollm2(), kind, options.threads) for name, measure, kind in SIDES})
    kinds = [kind for name, _, kind in SIDES if name == "qeng"]
    for kind, speed in prompts_of_qeng(smollm2(), kinds, options.threads).items() if kinds else ():
        rounds[-1]["qeng", kind] = speed, rounds[-1]["qeng", kind][1]
    print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}: " +
          ", ".join(f"{name} {kind} {prompt:.0f} {decode:.1f}" for (name, kind), (prompt, decode) in rounds[-1].items()), flush=True)
print(f"\n| {options.threads} threads | prompt of {PROMPT}, tokens/s | of f16 | decoding at {CONTEXT}, tokens/s | of f16 |\n|---|---|---|---|---|")
for name, _, kind in SIDES:
    cells = []
    for what in range(2):
        cells.append(f"{statistics.median(one[name, kind][what] for one in rounds):.1f}")
        cells.append(f"{statistics.median(one[name, kind][what] / one[name, 'f16'][what] for one in rounds):.2f}")
    print(f"| {name} {kind} | " + " | ".join(cells) + " |")
