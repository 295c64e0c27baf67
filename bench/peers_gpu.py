#!/usr/bin/env python3
"""What PyTorch needs for the operations that qeng_bench_ops timed, on the same machine in the same hour.

    build/release/qeng_bench_ops --device cuda --json ops.jsonl
    python3 bench/peers_gpu.py --ops ops.jsonl [--json peers.jsonl]

Each operation is timed in every form that PyTorch offers for it, by name; README.md says what the columns mean. A line of
the JSON file is written as soon as it is measured. Needs torch.
"""
import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F

CYCLE = 512 << 20  # bytes that the operands of one operation are spread over, as in ops.cpp
MOST_SETS, TRIES = 32, 5


class Timer:
    """Seconds of one call of each function, median and least of a few tries; the functions differ in their operands only.

    On a GPU the calls are queued behind a kernel that does nothing for as long as queueing takes, so that neither Python
    nor launching is in the time, whatever the number of kernels."""

    def __init__(self, device, seconds):
        self.device, self.seconds = device, seconds

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def clock(self, work, hidden):
        if self.device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(hidden * 2e9))  # cycles
            begin.record()
            work()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def __call__(self, functions):
        def cycle():
            for f in functions:
                f()

        cycle()
        self.wait()
        start = time.perf_counter()
        cycle()
        queued = time.perf_counter() - start
        self.wait()
        once = self.clock(cycle, 2 * queued + 1e-3)
        repeats = max(1, min(int(self.seconds / max(1e-7, once)), 100 // len(functions)))  # the queue holds about 1000 kernels

        def work():
            for _ in range(repeats):
                cycle()

        hidden = min(0.1, 2 * queued * repeats + 1e-3)
        tries = sorted(self.clock(work, hidden) / repeats / len(functions) for _ in range(TRIES))
        return statistics.median(tries), tries[0]


class Operands:
    """Tensors of the shapes that qeng used."""

    def __init__(self, row, device):
        self.row, self.device, self.views = row, device, row["views"]

    def shape(self, label):
        return self.views[label]["shape"]

    def has(self, label):
        return label in self.views

    def random(self, label, deviation=1.0, grad=False):
        dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[self.views[label]["dtype"]]
        return (torch.randn(self.shape(label), device=self.device, dtype=dtype) * deviation).requires_grad_(grad)

    def tokens(self, label, vocab):
        draw = torch.rand(self.shape(label), device=self.device)
        return (torch.exp(draw * math.log(vocab)).long() - 1).clamp(0, vocab - 1)


def backward(out, inputs, dout):
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


# ---- one function an operation: {name of the peer: maker of a function to time}; a maker is called once per operand set

def attention_peers(row, device, gradient):
    o = Operands(row, device)
    tokens, heads, dim = o.shape("q")
    ends = row["documents"]
    packed = len(ends) > 2

    def inputs():
        return o.random("q", grad=gradient), o.random("k", grad=gradient), o.random("v", grad=gradient)

    def sdpa(backend, expand):
        from torch.nn.attention import sdpa_kernel

        def run(q, k, v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not expand)

        def make():
            # [1, heads, tokens, head_dim]; contiguous, as a model has them after its own transpose.
            q, k, v = (x.detach().transpose(0, 1)[None].contiguous().requires_grad_(gradient) for x in inputs())
            if expand:
                k, v = (x.detach().repeat_interleave(heads // x.shape[1], dim=1).requires_grad_(gradient) for x in (k, v))
            spans = list(zip(ends, ends[1:]))

            def forward():
                if not packed:
                    return run(q, k, v)
                return torch.cat([run(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b]) for a, b in spans if b > a], dim=2)

            if not gradient:
                return forward
            out = forward()
            return backward(out, (q, k, v), torch.randn_like(out))
        return make

    def varlen(repeat):
        from torch.nn.attention.varlen import varlen_attn
        cu = torch.tensor(ends, device=device, dtype=torch.int32)
        longest = max(b - a for a, b in zip(ends, ends[1:]))
        q, k, v = inputs()
        if repeat:
            k, v = (x.detach().repeat_interleave(heads // x.shape[1], dim=1).requires_grad_(gradient) for x in (k, v))
        options = {"is_causal": True}
        try:
            import inspect
            if "is_causal" not in inspect.signature(varlen_attn).parameters:
                options = {"window_size": (-1, 0)}
        except (TypeError, ValueError):
            pass
        forward = lambda: varlen_attn(q, k, v, cu, cu, longest, longest, **options)
        if not gradient:
            return forward
        out = forward()
        return backward(out, (q, k, v), torch.randn_like(out))

    from torch.nn.attention import SDPBackend
    peers = {"sdpa flash": sdpa(SDPBackend.FLASH_ATTENTION, False), "sdpa cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, False),
             "sdpa cudnn, k and v repeated": sdpa(SDPBackend.CUDNN_ATTENTION, True),
             "sdpa efficient, k and v repeated": sdpa(SDPBackend.EFFICIENT_ATTENTION, True)}
    if packed:
        peers = {"varlen_attn": lambda: varlen(False), "varlen_attn, k and v repeated": lambda: varlen(True), **{k + " by document": v for k, v in peers.items()}}
    return peers


def norm_peers(row, device, gradient):
    o = Operands(row, device)

    def by(function):
        def make():
            x, w = o.random("x", grad=gradient), o.random("w", grad=o.has("dw"))
            if not gradient:
                return lambda: function(x, w)
            out = function(x, w)
            return backward(out, (x, w) if o.has("dw") else (x,), torch.randn_like(out))
        return make

    norm = lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6)
    return {"rms_norm": by(norm), "rms_norm compiled": by(compiled(norm))}


def layer_norm_peers(row, device, gradient):
    o = Operands(row, device)

    def make():
        x, w, b = (o.random(label, grad=gradient) for label in ("x", "w", "w"))
        out = F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)
        if gradient:
            return backward(out, (x, w, b), torch.randn_like(out))
        return lambda: F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)
    return {"layer_norm": make}


def add_norm_peers(row, device):
    o = Operands(row, device)

    def add_norm(a, b, w):
        x = a + b
        return x, F.rms_norm(x, (x.shape[-1],), w, 1e-6)

    def by(function):
        def make():
            a, b, w = o.random("a"), o.random("b"), o.random("w")
            return lambda: function(a, b, w)
        return make

    return {"add, rms_norm": by(add_norm), "add, rms_norm compiled": by(compiled(add_norm))}


def swiglu_peers(row, device, gradient):
    o = Operands(row, device)

    def by(function):
        def make():
            gate, up = o.random("gate", grad=gradient), o.random("up", grad=gradient)
            if not gradient:
                return lambda: function(gate, up)
            out = function(gate, up)
            return backward(out, (gate, up), torch.randn_like(out))
        return make

    swiglu = lambda gate, up: F.silu(gate) * up
    return {"silu, mul": by(swiglu), "silu, mul compiled": by(compiled(swiglu))}


def rope_peers(row, device):
    o = Operands(row, device)

    def rotate_one(x, cos, sin):
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

    def rotate(x, x2, cos, sin):
        return rotate_one(x, cos, sin), rotate_one(x2, cos, sin)

    def by(function):
        def make():
            x, x2 = o.random("x"), o.random("x2")
            tokens, _, dim = x.shape
            angle = torch.randn(tokens, 1, dim, device=device)
            return lambda: function(x, x2, angle.cos().to(x.dtype), angle.sin().to(x.dtype))
        return make

    return {"as transformers": by(rotate), "as transformers, compiled": by(compiled(rotate))}


def head_peers(row, device):
    o = Operands(row, device)

    def make():
        vocab = o.shape("w")[0]
        h, w, targets = o.random("h", grad=True), o.random("w", 0.02, grad=o.has("dw")), o.tokens("targets", vocab)
        rows = torch.arange(len(targets), device=device)
        keep = rows[rows // 256 % 2 == 1] if "trained" in row else slice(None)  # as bench/ops.cpp has prompts

        def run():
            loss = F.cross_entropy(F.linear(h[keep], w).float(), targets[keep])
            return torch.autograd.grad(loss, (h, w) if o.has("dw") else (h,))
        return run
    return {"linear, cross_entropy": make}


def matmul_peers(row, device):
    o = Operands(row, device)
    transposed_a, transposed_b = row["views"]["transposed"]

    def make():
        a, b = o.random("a"), o.random("b", 0.02)
        x, y = a.t() if transposed_a else a, b.t() if transposed_b else b
        out = torch.empty(o.shape("c"), device=device, dtype=a.dtype)
        return lambda: torch.mm(x, y, out=out)
    return {"mm": make}


def adamw_peers(row, device):
    o = Operands(row, device)

    def make():
        w = torch.nn.Parameter(o.random("w"))
        w.grad = o.random("grad")
        optimizer = torch.optim.AdamW([w], lr=1e-5, fused=True, capturable=device == "cuda")
        return optimizer.step
    return {"AdamW fused": make}


def embedding_grad_peers(row, device):
    o = Operands(row, device)

    def make():
        vocab = o.shape("dtable")[0]
        tokens, dy = o.tokens("tokens", vocab), o.random("dy")

        def run():  # deterministic, as qeng's is; set here alone, because it slows other operations
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.ops.aten.embedding_dense_backward(dy, tokens, vocab, -1, False)
            torch.use_deterministic_algorithms(False)
        return run
    return {"embedding backward": make}


def simple(function, *labels):
    """A peer that is one call on tensors of those views."""
    def peers(row, device):
        o = Operands(row, device)

        def make():
            tensors = [o.random(label) for label in labels]
            return lambda: function(*tensors)
        return {function.__name__.lstrip("_"): make}
    return peers


def add(a, b): return a + b
def vector_norm(x): return torch.linalg.vector_norm(x)
def sum_rows(x): return x.sum(0, dtype=torch.float32)
def dropout(x): return F.dropout(x, 0.1)
def copy_(x, y): return y.copy_(x)
def mul(x): return x * 0.5
def fill_(y): return y.fill_(0)


def embedding_peers(row, device):
    o = Operands(row, device)

    def make():
        table = o.random("table")
        tokens = o.tokens("tokens", table.shape[0])
        return lambda: F.embedding(tokens, table)
    return {"embedding": make}


PEERS = {
    "attention": lambda row, device: attention_peers(row, device, False),
    "attention_grad": lambda row, device: attention_peers(row, device, True),
    "rmsnorm": lambda row, device: norm_peers(row, device, False),
    "rmsnorm_grad": lambda row, device: norm_peers(row, device, True),
    "add_rmsnorm": add_norm_peers,
    "layer_norm": lambda row, device: layer_norm_peers(row, device, False),
    "layer_norm_grad": lambda row, device: layer_norm_peers(row, device, True),
    "swiglu": lambda row, device: swiglu_peers(row, device, False),
    "swiglu_grad": lambda row, device: swiglu_peers(row, device, True),
    "rope": rope_peers, "lm_head_loss": head_peers, "matmul": matmul_peers, "adamw": adamw_peers,
    "embedding": embedding_peers, "embedding_grad": embedding_grad_peers,
    "add": simple(add, "a", "b"), "sum_squares": simple(vector_norm, "x"), "bias_grad": simple(sum_rows, "dy"),
    "dropout": simple(dropout, "x"), "copy": simple(copy_, "x", "y"), "cast": simple(copy_, "x", "y"), "scale": simple(mul, "x"),
    "fill": simple(fill_, "y"),
}


def compiled(function):
    """torch.compile on first call, so that a peer that is not timed costs nothing."""
    made = []

    def call(*inputs):
        if not made:
            made.append(torch.compile(function, dynamic=False))
        return made[0](*inputs)
    return call


def size_of(row):
    width = {"bf16": 2, "f32": 4, "i32": 4, "i64": 8, "u8": 1}
    return sum(math.prod(v["shape"]) * width[v["dtype"]] for label, v in row["views"].items() if label not in ("transposed", "workspace"))


def limits(timer, device):
    """What a copy and a large product reach, in PyTorch's hands."""
    small = device != "cuda"
    source = torch.randn((1 << 22) if small else (1 << 29), device=device)
    copy = torch.empty_like(source)
    seconds = timer([lambda: copy.copy_(source)])[1]
    found = {"copy_bytes_s": 2 * source.numel() * 4 / seconds}
    del source, copy
    for n in (512,) if small else (8192, 16384):
        a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
        found[f"mm_{n}_flops_s"] = 2 * n ** 3 / timer([lambda: a @ b])[1]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", required=True, help="what qeng_bench_ops --json wrote")
    parser.add_argument("--json", help="a line for each peer measured")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=0.02, help="of one try")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which nothing new is begun")
    parser.add_argument("--no-compile", action="store_true", help="leave out the peers that torch.compile makes")
    options = parser.parse_args()
    started = time.perf_counter()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"SKIPPED: torch {torch.__version__} finds no GPU")
        return 0
    torch.manual_seed(0)
    if options.device == "cpu":
        torch.set_num_threads(1)
    timer = Timer(options.device, options.seconds)
    out = open(options.json, "w") if options.json else None

    def keep(row):
        if out:
            print(json.dumps(row), file=out, flush=True)

    with open(options.ops) as f:
        rows = [json.loads(line) for line in f if line.strip()]
    ours = [r for r in rows if "us" in r]
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    measured = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "device": name,
                **limits(timer, options.device)}
    print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in measured.items()), flush=True)
    keep(measured)

    best, left_out = {}, 0
    for compiling in (False,) if options.no_compile else (False, True):  # the compiled ones last: each compiles for seconds
        for row in ours:
            for peer, make in PEERS.get(row["op"], lambda *_: {})(row, options.device).items():
                if ("compiled" in peer) != compiling:
                    continue
                if time.perf_counter() - started > options.budget:
                    left_out += 1
                    continue
                try:
                    count = min(MOST_SETS, max(1, math.ceil(CYCLE / size_of(row)))) if options.device == "cuda" else 1
                    median, least = timer([make() for _ in range(count)])
                except Exception as error:  # a backend that refuses the shape says so; the others are still of interest
                    why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]
                    keep({"model": row["model"], "case": row["case"], "peer": peer, "error": why})
                    print(f"{row['model']:5s} {row['case']:36s} {peer:28s} not available: {why}", flush=True)
                    continue
                ratio = median * 1e6 / row["us"]
                keep({"model": row["model"], "case": row["case"], "peer": peer, "us": median * 1e6, "us_least": least * 1e6,
                      "ours_us": row["us"], "ratio": ratio})
                print(f"{row['model']:5s} {row['case']:36s} {peer:28s} {median * 1e6:10.1f} us  qeng {row['us']:10.1f} us  ratio {ratio:.2f}", flush=True)
                key = (row["model"], row["case"])
                if key not in best or median < best[key][1]:
                    best[key] = (peer, median, ratio)
            if options.device == "cuda":
                torch.cuda.empty_cache()
    if left_out:
        print(f"{left_out} measurements left out: the budget of {options.budget:.0f} s was used up")
    print(f"\n{'model':5s} {'operation':36s} {'qeng us':>10s} {'peer us':>10s} {'ratio':>6s}  fastest peer (ratio over 1: qeng is faster)")
    for row in ours:
        found = best.get((row["model"], row["case"]))
        if found:
            print(f"{row['model']:5s} {row['case']:36s} {row['us']:10.1f} {found[1] * 1e6:10.1f} {found[2]:6.2f}  {found[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
