#!/usr/bin/env python3
"""Losses and their gradients by PyTorch in float64: tests/golden/losses.json.

    pip install torch && python3 tests/golden/losses_golden.py
"""
import json
import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(5)
TOKENS, CLASSES, PAIRS = 6, 9, 5


def leaf(*shape, scale=1.0):
    return (scale * torch.randn(*shape, dtype=torch.float64)).float().double().requires_grad_()


inputs = {"logits": leaf(TOKENS, CLASSES, scale=2), "teacher": leaf(TOKENS, CLASSES, scale=2),
          "chosen": leaf(PAIRS, scale=5), "rejected": leaf(PAIRS, scale=5), "reference_chosen": leaf(PAIRS, scale=5),
          "reference_rejected": leaf(PAIRS, scale=5)}
inputs["likely"] = (-(inputs["chosen"].detach().abs() / 5 + 0.05)).float().double().requires_grad_()
inputs["unlikely"] = (-(inputs["rejected"].detach().abs() / 5 + 0.05)).float().double().requires_grad_()
targets = torch.tensor([3, -1, 0, 8, 2, -1])
weight = torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64)
good = torch.tensor([1, 0, 1, 1, 0], dtype=torch.bool)
x = inputs


def cross_entropy(smoothing=0.0, z=0.0):
    loss = F.cross_entropy(x["logits"], targets, ignore_index=-1, label_smoothing=smoothing)
    return loss + z * x["logits"].logsumexp(-1)[targets >= 0].square().mean()


def dpo(smoothing=0.0):
    margin = 0.1 * ((x["chosen"] - x["rejected"]) - (x["reference_chosen"] - x["reference_rejected"]))
    return (-(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)).mean()


def orpo():
    c, r = x["likely"], x["unlikely"]
    odds = (c - torch.log1p(-c.exp())) - (r - torch.log1p(-r.exp()))
    return (-c - 0.2 * F.logsigmoid(odds)).mean()


def kto():
    ratio = x["chosen"] - x["reference_chosen"] - 0.3
    return torch.where(good, 1 - torch.sigmoid(0.1 * ratio), 1.5 * (1 - torch.sigmoid(-0.1 * ratio))).mean()


def distill(temperature=1.0, top=0, weighted=False):
    student = F.log_softmax(x["logits"] / temperature, -1)
    teacher = x["teacher"].detach()
    if top:
        teacher, index = teacher.topk(top, -1)
        student = student.gather(1, index)
    wanted = F.log_softmax(teacher / temperature, -1)
    each = F.kl_div(student, wanted, log_target=True, reduction="none").sum(-1) * temperature ** 2
    return (each * weight).sum() / weight.sum() if weighted else each.mean()


CASES = {
    "cross_entropy": cross_entropy, "smoothed": lambda: cross_entropy(0.1), "z": lambda: cross_entropy(0, 1e-2),
    "dpo": dpo, "dpo_smoothed": lambda: dpo(0.2), "orpo": orpo, "kto": kto, "distill": distill,
    "distill_soft": lambda: distill(2.0, 0, True), "distill_top": lambda: distill(1.5, 3),
}
result = {"inputs": {n: t.tolist() for n, t in inputs.items()}, "targets": targets.tolist(), "weight": weight.tolist(),
          "good": [int(g) for g in good], "cases": {}}
for name, make in CASES.items():
    for t in inputs.values():
        t.grad = None
    loss = make()
    loss.backward()
    result["cases"][name] = {"loss": loss.item(),
                             "gradients": {n: t.grad.flatten().tolist() for n, t in inputs.items() if t.grad is not None}}
path = pathlib.Path(__file__).with_name("losses.json")
path.write_text(json.dumps(result) + "\n")
print(path, {n: round(c["loss"], 4) for n, c in result["cases"].items()})
