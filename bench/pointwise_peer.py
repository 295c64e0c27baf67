#!/usr/bin/env python3
"""bench/pointwise.lua's cases in qeng and PyTorch, in turns and in one run, on the same number of threads:

    TORCH_USE_RTLD_GLOBAL=1 $(tests/peers/environment) bench/pointwise_peer.py --qeng build/release/qeng [--rounds 5]
        [--threads 2] [--seconds 0.2] [--only softmax]

In each round a case runs in qeng, then in PyTorch as it comes, then under torch.compile (which needs g++): the median
of so many seconds each, then the least of the rounds, as other programs on the machine only lengthen it. All write to
memory that is there already, and what is measured is a call: of qeng, expressions made anew. A copy of as many bytes is
qeng's, right after the case. Where PyTorch is the one of tests/peers/environment, TORCH_USE_RTLD_GLOBAL=1 has to be set."""
import argparse
import platform
import statistics
import subprocess
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--qeng", required=True)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seconds", type=float, default=0.2)
parser.add_argument("--only", default="")
opt = parser.parse_args()
torch.set_num_threads(opt.threads)

SIZES = {"small": (256, 1024), "large": (16384, 1024), "long": (330, 50257)}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def softmax_gate(x, gate, rest):
    scaled = x * 0.125 + 0.5
    e = (scaled - scaled.amax(-1, True)).exp()
    return e / e.sum(-1, True) * gate.sigmoid() + rest


def layernorm(x, w, b):
    centred = x - x.mean(-1, True)
    return centred * ((centred * centred).mean(-1, True) + 1e-5).rsqrt() * w + b


def layernorm_loss(x, dy, w, b):
    return (layernorm(x, w, b) * dy).sum().float()


def layernorm_gate(x, gate, rest, w, b):
    return layernorm(x, w, b) * gate.sigmoid() + rest


# name: the function, how many tensors of the size it takes, how many rows
CASES = {
    "softmax, gate, residual": (softmax_gate, 3, 0),
    "layernorm, gate, residual": (layernorm_gate, 3, 2),
    "x sigmoid(x) y": (lambda x, y: x * x.sigmoid() * y, 2, 0),
    "softmax": (lambda x: x.softmax(-1), 1, 0),
    "layernorm": (layernorm, 1, 2),
    "layernorm, backward": (layernorm_loss, 2, 2),
    "gelu": (torch.nn.functional.gelu, 1, 0),
    "sin": (torch.sin, 1, 0),
    "cos": (torch.cos, 1, 0),
    "log1p": (torch.log1p, 1, 0),
    "tanh": (torch.tanh, 1, 0),
    "erf": (torch.erf, 1, 0),
}


def measure(body):
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < opt.seconds or len(times) < 3:
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class Peer:
    """A case with its operands, made anew for each turn so that only one case's memory is there."""

    def __init__(self, name, size, dtype):
        self.name, self.shape, self.dtype = name, SIZES[size], DTYPES[dtype]
        function = self.function = CASES[name][0]

        def into(y, *operands):
            y.copy_(function(*operands))

        torch._dynamo.reset()
        whole = function if name.endswith("backward") else into
        self.compiled = torch.compile(whole, dynamic=False)

    def times(self):
        _, tensors, rows = CASES[self.name]
        operands = [torch.randn(self.shape, dtype=self.dtype) for _ in range(tensors)]
        operands += [torch.randn((1, self.shape[1]), dtype=self.dtype) for _ in range(rows)]
        if self.name == "log1p":
            operands = [x * x for x in operands]
        y = torch.randn(self.shape, dtype=self.dtype)
        if self.name.endswith("backward"):
            for x in operands[:1] + operands[2:]:
                x.requires_grad_(True)

            def train(function):
                for x in operands:
                    x.grad = None
                function(*operands).backward()
            eager, compiled = (lambda: train(self.function)), (lambda: train(self.compiled))
        else:
            eager, compiled = (lambda: y.copy_(self.function(*operands))), (lambda: self.compiled(y, *operands))
        found = []
        for body in (eager, compiled):
            for _ in range(2):
                body()
            found.append(measure(body))
        return found


qeng = subprocess.Popen([opt.qeng, "bench/pointwise.lua", "--serve", "--threads", str(opt.threads), "--seconds",
                         str(opt.seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ours(name):
    qeng.stdin.write(name + "\n")
    qeng.stdin.flush()
    median, least, copying, moved = map(float, qeng.stdout.readline().split())
    return median, copying, moved


print(f"PyTorch {torch.__version__}, {platform.machine()}, {opt.threads} threads, {opt.rounds} rounds\n")
print("| case | size | dtype | copy GB/s | qeng GB/s | of copy | eager | compiled | qeng us | eager us | compiled us | over compiled |")
print("|---|---|---|---|---|---|---|---|---|---|---|---|")
for size in SIZES:
    for dtype in DTYPES:
        for name in CASES:
            case = f"{name}/{size}/{dtype}"
            if opt.only not in case or (size == "long" and name != "softmax"):
                continue
            peer, rounds = Peer(name, size, dtype), []
            for _ in range(opt.rounds):
                median, copying, moved = ours(case)
                eager, compiled = peer.times()
                rounds.append((median, eager, compiled, moved / copying))
            median, eager, compiled, copying = (min(column) for column in zip(*rounds))
            rate, copying = moved / median, moved / copying
            print(f"| {name} | {size} | {dtype} | {copying / 1e9:.1f} | {rate / 1e9:.1f} | {100 * rate / copying:.0f} % | "
                  f"{moved / eager / 1e9:.1f} | {moved / compiled / 1e9:.1f} | {median * 1e6:.1f} | {eager * 1e6:.1f} | "
                  f"{compiled * 1e6:.1f} | {compiled / median:.2f} |")
            sys.stdout.flush()
qeng.stdin.close()
