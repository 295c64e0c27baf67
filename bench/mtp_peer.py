#!/usr/bin/env python3
"""Guesses of a model's own head, by qeng (bench/mtp.lua) and by llama.cpp's server (--spec-type draft-mtp), on the same GGUF file and
prompts, greedily and one at a time, in turns and in one run:

    qeng bench/mtp_hybrid.lua --out DIR
    $(tests/peers/environment) bench/mtp_peer.py --qeng build/release/qeng --model DIR/model.gguf [--rounds 3] [--guesses 3]

llama.cpp has as many threads. The fastest of the rounds counts."""
import argparse
import json
import re
import subprocess
import tempfile
import urllib.request

import xllamacpp

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--qeng", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--guesses", type=int, default=3, help="of llama.cpp in a step at most; its default is 3")
parser.add_argument("--threads", type=int, default=2)
opt = parser.parse_args()
work = tempfile.TemporaryDirectory()


def ours():
    """Tokens a second without and with guesses, and tokens a step."""
    done = subprocess.run([opt.qeng, "bench/mtp.lua", "--model", opt.model, "--out", work.name, "--rounds", "1", "--batches", "1",
                           "--threads", str(opt.threads)], check=True, capture_output=True, text=True)
    return [float(each) for each in re.search(r"batch of 1: (\S+) tokens/s, with guesses (\S+) .*?; (\S+) tokens", done.stdout).groups()]


def server(guesses):
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel = opt.model, 1024, 1
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = opt.threads
    if guesses:
        p.load_mtp, p.speculative.types = True, [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        draft = p.speculative.draft
        draft.n_max, draft.cpuparams.n_threads, draft.cpuparams_batch.n_threads = guesses, opt.threads, opt.threads
    return xllamacpp.Server(p)


def answers(address):
    """Tokens a second, tokens a step, and the texts."""
    tokens = milliseconds = accepted = 0
    texts = []
    for ids in prompts:
        body = {"prompt": ids, "n_predict": 96, "temperature": 0, "cache_prompt": False}
        request = urllib.request.Request(address + "/completion", json.dumps(body).encode(), {"content-type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=120))
        times = answer["timings"]
        tokens, milliseconds = tokens + times["predicted_n"], milliseconds + times["predicted_ms"]
        accepted += times.get("draft_n_accepted", 0)
        texts.append(answer["content"])
    return 1000 * tokens / milliseconds, tokens / (tokens - accepted), texts


rounds = [ours()]  # which writes the prompts
with open(f"{work.name}/prompts.json", encoding="utf-8") as file:
    prompts = json.load(file)
plain, drafting = server(0), server(opt.guesses)
found = []
for turn in range(opt.rounds):
    if turn > 0:
        rounds.append(ours())
    without, drafted = answers(plain.listening_address), answers(drafting.listening_address)
    different = sum(a != b for a, b in zip(without[2], drafted[2]))
    found.append((without[0], drafted[0], drafted[1]))
print("| | tokens/s | with guesses | times as fast | tokens a step |\n|---|---|---|---|---|")
for name, list_ in (("qeng", rounds), (f"llama.cpp, {opt.guesses} guesses", found)):
    slow, fast, length = (max(column) for column in zip(*list_))
    print(f"| {name} | {slow:.0f} | {fast:.0f} | {fast / slow:.2f} | {length:.2f} |")
print(f"\n{len(prompts)} prompts; llama.cpp's text differs with guesses for {different} of them")
