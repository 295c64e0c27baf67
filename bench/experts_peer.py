#!/usr/bin/env python3
"""bench/experts.lua's mixture of experts in qeng and in transformers (Qwen3MoeSparseMoeBlock), in turns and in one run,
forward and backward in f32 on the same number of threads:

    TORCH_USE_RTLD_GLOBAL=1 $(tests/peers/environment) bench/experts_peer.py --qeng build/release/qeng [--rounds 5]
        [--threads 2] [--seconds 2] [--tokens 512] [--hidden 1024] [--width 384] [--experts 32] [--chosen 8]

In each round a step runs in qeng, then in transformers with each of its implementations of experts: the median of so
many seconds each, then the least of the rounds, as other programs on the machine only lengthen it."""
import argparse
import platform
import statistics
import subprocess
import sys
import time

import torch
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeSparseMoeBlock

SIZES = {"tokens": 512, "hidden": 1024, "width": 384, "experts": 32, "chosen": 8}
parser = argparse.ArgumentParser()
parser.add_argument("--qeng", required=True)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seconds", type=float, default=2)
for name, size in SIZES.items():
    parser.add_argument(f"--{name}", type=int, default=size)
opt = parser.parse_args()
torch.set_num_threads(opt.threads)
torch.manual_seed(1)


def block(implementation):
    config = Qwen3MoeConfig(hidden_size=opt.hidden, moe_intermediate_size=opt.width, num_experts=opt.experts,
                            num_experts_per_tok=opt.chosen, norm_topk_prob=True)
    config._experts_implementation = implementation
    made = Qwen3MoeSparseMoeBlock(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return made


def measure(body):
    body()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < opt.seconds or len(times) < 3:
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


x = torch.randn(1, opt.tokens, opt.hidden, requires_grad=True)
dy = torch.randn(1, opt.tokens, opt.hidden)
blocks = {name: block(name) for name in ("eager", "grouped_mm")}


def step(made):
    # Gradients are added to those that are there, as in qeng.
    made(x).backward(dy)


qeng = subprocess.Popen(
    [opt.qeng, "bench/experts.lua", "--serve", "--threads", str(opt.threads), "--seconds", str(opt.seconds)]
    + [part for name in SIZES for part in (f"--{name}", str(getattr(opt, name)))],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ours():
    qeng.stdin.write("step\n")
    qeng.stdin.flush()
    return float(qeng.stdout.readline())


rounds = []
for _ in range(opt.rounds):
    rounds.append([ours()] + [measure(lambda made=made: step(made)) for made in blocks.values()])
least = [min(column) for column in zip(*rounds)]
print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}, {platform.machine()}, {opt.threads} threads, "
      f"{opt.rounds} rounds; {opt.tokens} tokens, hidden {opt.hidden}, {opt.chosen} of {opt.experts} experts of "
      f"{opt.width}\n")
print("| | ms | over qeng |")
print("|---|---|---|")
for name, seconds in zip(["qeng", *blocks], least):
    print(f"| {name} | {seconds * 1e3:.1f} | {seconds / least[0]:.2f} |")
sys.stdout.flush()
qeng.stdin.close()
