#!/usr/bin/env python3
"""Tokens/s of decoding SmolLM2's released Q4_1 file: qeng and llama.cpp (the prebuilt one of xllamacpp), in turns, with one and two threads.
64 tokens of context, 96 steps, best of three for each; llama.cpp with its own defaults (f16 cache).
   ~/.cache/qeng-peers/*/bin/python bench/smollm2_decode.py [--rounds 3]      after scripts/test --peers, which makes that environment"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
os.environ.setdefault("QENG_PEERS_WORK", tempfile.gettempdir())
sys.path.insert(0, str(ROOT / "tests/peers"))
import llama  # noqa: E402
from peers import smollm2  # noqa: E402

CONTEXT, STEPS = 64, 96


def of_llama(path, threads):
    model, wanted = llama.load_model(str(path).encode(), llama.default_model()), llama.default_context()
    wanted.n_ctx, wanted.n_threads, wanted.n_threads_batch = 1024, threads, threads
    context, best = llama.init_context(model, wanted), 0
    for _ in range(3):
        llama.clear_memory(llama.get_memory(context), True)
        llama.advance(context, [(i * 37 + 11) % 40000 for i in range(CONTEXT)], 0)
        begin = time.perf_counter()
        for i in range(STEPS):
            llama.advance(context, [(i * 53 + 7) % 40000], CONTEXT + i)
        best = max(best, STEPS / (time.perf_counter() - begin))
    llama.free_context(context)
    llama.free_model(model)
    return best


def of_qeng(path, threads):
    best = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            out = os.path.join(folder, "decode.json")
            subprocess.run([str(ROOT / "build/release/qeng"), str(ROOT / "recipes/bench_decode.lua"), "--model", str(path), "--batch", "1", "--context", str(CONTEXT), "--tokens",
                            str(STEPS), "--prompt", str(CONTEXT), "--repeats", "1", "--threads", str(threads), "--out", out, "--overwrite"], check=True, capture_output=True)
            best = max(best, json.load(open(out))["decode"][0]["tokens_per_second"])
    return best


parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=3)
for number in range(parser.parse_args().rounds):
    for threads in 1, 2:
        theirs, ours = of_llama(smollm2(), threads), of_qeng(smollm2(), threads)
        print(f"round {number + 1}, {threads} threads: qeng {ours:.1f}, llama.cpp {theirs:.1f} tokens/s, {ours / theirs:.2f} times", flush=True)
