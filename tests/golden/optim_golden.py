#!/usr/bin/env python3
"""Steps of optimizers by PyTorch and transformers, in float64 where they have it: tests/golden/optim.json.

    pip install torch transformers && python3 tests/golden/optim_golden.py
"""
import json
import pathlib

import torch
from transformers.optimization import Adafactor

torch.bfloat16 = torch.float64  # to which Muon rounds
torch.manual_seed(3)
SHAPES = {"wide": (3, 5), "tall": (6, 2), "bias": (4,)}
STEPS = 4
start = {name: torch.randn(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
gradients = [{name: torch.randn(shape, dtype=torch.float64) for name, shape in SHAPES.items()} for _ in range(STEPS)]
LR = 0.05


class Lion(torch.optim.Optimizer):
    """The update as its paper's algorithm 2 has it: PyTorch has none."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self):
        for p in self.param_groups[0]["params"]:
            m = self.state[p].setdefault("m", torch.zeros_like(p))
            p.data -= LR * (torch.sign(0.9 * m + 0.1 * p.grad) + (0.1 * p.data if p.dim() > 1 else 0))
            m.mul_(0.99).add_(p.grad, alpha=0.01)


def muon(params):
    matrices = [p for p in params if p.dim() == 2]
    rest = [p for p in params if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=LR, weight_decay=0.1, momentum=0.95, nesterov=True, eps=1e-7,
                             adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW(rest, lr=LR, weight_decay=0)]


CASES = {
    "sgd": lambda params: [torch.optim.SGD(params, lr=LR, momentum=0.9)],
    "nesterov": lambda params: [torch.optim.SGD(params, lr=LR, momentum=0.9, nesterov=True)],
    "lion": lambda params: [Lion(params)],
    "muon": muon,
    "adafactor": lambda params: [Adafactor(params, lr=LR, eps=(1e-30, 1e-3), scale_parameter=False,
                                           relative_step=False, warmup_init=False)],
    "clipped": lambda params: [torch.optim.SGD(params, lr=LR, momentum=0)],
}
result = {"lr": LR, "shapes": SHAPES, "start": {n: t.flatten().tolist() for n, t in start.items()},
          "gradients": [{n: t.flatten().tolist() for n, t in step.items()} for step in gradients], "after": {}}
for case, make in CASES.items():
    params = {name: torch.nn.Parameter(t.clone()) for name, t in start.items()}
    optimizers = make(list(params.values()))
    for step in gradients:
        for name, p in params.items():
            p.grad = step[name].clone()
        if case == "clipped":
            torch.nn.utils.clip_grad_norm_(list(params.values()), 1.0)
        for optimizer in optimizers:
            optimizer.step()
    result["after"][case] = {n: p.detach().flatten().tolist() for n, p in params.items()}
path = pathlib.Path(__file__).with_name("optim.json")
path.write_text(json.dumps(result) + "\n")
print(path, {case: [round(x, 4) for x in after["wide"][:3]] for case, after in result["after"].items()})
