#!/usr/bin/env python3
"""What it costs a model to multiply its weights with activations that are rounded to four or eight bits in blocks, as tensor cores of 10.0 and 12.x
multiply them (mxfp4, nvfp4, mxfp8), and as qeng does (int8): computed in f32 by PyTorch on SmolLM2's released file, with weights in mxfp4 and exact.
   TORCH_USE_RTLD_GLOBAL=1 ~/.cache/qeng-peers/*/bin/python bench/fp4_activations.py TEXT [--windows 4] [--tokens 512]"""
import argparse
import math
import os
import pathlib
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

os.environ.setdefault("QENG_PEERS_WORK", tempfile.gettempdir())
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/peers"))
from peers import smollm2  # noqa: E402


def e2m1(x):
    """To the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, even ones at ties."""
    a = x.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.round(a / step) * step * x.sign()


def in_blocks(size, scale_of, code):
    def rounded(x):
        v = x.reshape(*x.shape[:-1], -1, size)
        scale = scale_of(v.abs().amax(-1, keepdim=True))
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return (code(v / scale) * scale).reshape(x.shape)
    return rounded


def power(below):
    return lambda largest: torch.exp2(torch.floor(torch.log2(largest.clamp_min(1e-30))) - below)


def e4m3_scales(largest):  # with one more of the tensor, so that the largest is 448
    whole = largest.amax() / (6 * 448)
    return (largest / 6 / whole).to(torch.float8_e4m3fn).float() * whole


FORMATS = {
    "int8": in_blocks(32, lambda largest: largest / 127, torch.round),
    "mxfp8": in_blocks(32, power(8), lambda v: v.clamp(-448, 448).to(torch.float8_e4m3fn).float()),
    "nvfp4": in_blocks(16, e4m3_scales, lambda v: e2m1(v.clamp(-6, 6))),
    "mxfp4": in_blocks(32, power(2), lambda v: e2m1(v.clamp(-6, 6))),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    path = pathlib.Path(smollm2())
    load = {"gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **load).eval()
    ids = torch.tensor(AutoTokenizer.from_pretrained(path.parent, **load)(pathlib.Path(options.text).read_text())["input_ids"])
    last = len(ids) - options.tokens
    windows = [ids[i * last // max(1, options.windows - 1):][None, :options.tokens] for i in range(options.windows)]
    layers = [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and name != "lm_head"]
    exact, activation = [m.weight.data for m in layers], [lambda x: x]
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, inputs: (activation[0](inputs[0]),))

    def measure(act):
        activation[0] = act
        return [model(window).logits[0].double().log_softmax(-1) for window in windows]

    def row(what, base, found):
        kl = torch.tensor([(p.exp() * (p - q)).sum(-1).mean() for p, q in zip(base, found)])
        same = sum((p.argmax(-1) == q.argmax(-1)).double().mean().item() for p, q in zip(base, found)) / len(base)
        nll = [sum(-p[:-1].gather(1, w[0][1:, None]).mean().item() for p, w in zip(side, windows)) / len(windows) for side in (base, found)]
        spread = 1.96 * kl.std().item() / math.sqrt(len(kl))
        print(f"| {what} | {kl.mean():.5f} ± {spread:.5f} | {100 * same:.2f} | {math.exp(nll[1] - nll[0]):.4f} |", flush=True)

    print(f"{len(windows)} windows of {options.tokens} tokens\n\n| weights, activations | KL to exact activations, nats | same likeliest token, % | perplexity ratio |\n|---|---|---|---|")
    for weights in (None, "mxfp4"):
        for layer, own in zip(layers, exact):
            layer.weight.data = FORMATS[weights](own) if weights else own
        base = measure(lambda x: x)
        for name, act in FORMATS.items():
            row(f"{weights or 'exact'}, {name}", base, measure(act))


main()
