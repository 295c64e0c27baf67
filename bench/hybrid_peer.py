#!/usr/bin/env python3
"""A prompt and decoding of a model of Qwen3.5-0.8B's shape (random weights), in qeng (bench/hybrid.lua) and llama.cpp, in turns and in
one run:

    $(tests/peers/environment) bench/hybrid_peer.py --qeng build/release/qeng [--type q8_0] [--tokens 2048] [--rounds 3]

llama.cpp is that of tests/peers, with as many threads. The least of the rounds counts, as other programs on the machine only lengthen it."""
import argparse
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/peers"))
import llama  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--qeng", required=True)
parser.add_argument("--type", default="q8_0")
parser.add_argument("--tokens", type=int, default=2048)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--layers", type=int, default=24)
parser.add_argument("--value-heads", type=int, default=16)
parser.add_argument("--file", default="")
opt = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    path = opt.file or os.path.join(folder, "model.gguf")
    if not os.path.exists(path):
        subprocess.run([opt.qeng, "bench/hybrid.lua", "--file", path, "--write", opt.type, "--layers", str(opt.layers), "--value-heads",
                        str(opt.value_heads)], check=True)
    qeng = subprocess.Popen([opt.qeng, "bench/hybrid.lua", "--file", path, "--tokens", str(opt.tokens), "--threads", str(llama.THREADS)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ours(what):
        qeng.stdin.write(what + "\n")
        qeng.stdin.flush()
        return float(qeng.stdout.readline())

    model = llama.Model(path, context=opt.tokens + 64)
    ids = [i * 104729 % 248320 for i in range(1, opt.tokens + 1)]

    def run(tokens, begin):
        """The logits of the last token, as a server asks for."""
        batch = llama.init_batch(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, begin + i, 1, 0, i + 1 == len(tokens)
        if llama.decode(model.context, batch):
            raise AssertionError("llama_decode failed")
        last = llama.get_logits(model.context, len(tokens) - 1)[0]
        llama.free_batch(batch)
        return last

    def prefill():
        llama.clear_memory(llama.get_memory(model.context), True)
        begin = time.perf_counter()
        run(ids, 0)
        return time.perf_counter() - begin

    def decode():
        llama.clear_memory(llama.get_memory(model.context), True)
        run(ids[:8], 0)
        for t in range(8, 16):
            run([ids[t]], t)
        begin = time.perf_counter()
        for t in range(16, 48):
            run([ids[t]], t)
        return (time.perf_counter() - begin) / 32

    print(f"0.8B's shape, {opt.layers} layers, {opt.type}, {llama.THREADS} threads, {opt.rounds} rounds\n")
    print("| what | qeng | llama.cpp | times as fast |\n|---|---|---|---|")
    for name, peer, tokens in (("decode", decode, 1), (f"prompt of {opt.tokens}", prefill, opt.tokens)):
        rounds = [(ours(name.split()[0].replace("prompt", "prefill")), peer()) for _ in range(opt.rounds)]
        mine, theirs = (min(column) for column in zip(*rounds))
        print(f"| {name} | {tokens / mine:.1f} tokens/s | {tokens / theirs:.1f} tokens/s | {theirs / mine:.2f} |", flush=True)
    qeng.stdin.close()
