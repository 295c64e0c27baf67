"""recipes/own_model.lua: losses of 20 steps, those of the same architecture in PyTorch, from the same weights on the same pieces of a text."""
import json
import subprocess

import qeng
import torch_model  # first: it sets the environment
import safetensors.torch
import torch
from peers import HERE, WORK, check, expect, row

STEPS, LAYERS, WIDTH, HEADS, LENGTH, ROWS, RATE = 20, 2, 32, 4, 24, 3, 3e-3
MOST = 1e-4  # between two losses of a step


def norm(x, weight):
    return torch.nn.functional.layer_norm(x, (WIDTH,), weight, None, 1e-5)


def logits(w, tokens):
    x = w["embed"][tokens]
    place = torch.arange(LENGTH)
    distance = (place[:, None] - place[None, :]).float()
    slopes = 2.0 ** (-8.0 / HEADS * torch.arange(1, HEADS + 1))
    fading = torch.where(distance >= 0, -distance * slopes[:, None, None], torch.tensor(-1e30))
    for i in range(1, LAYERS + 1):
        three = norm(x, w[f"{i}norm1"]) @ w[f"{i}qkv"].T
        query, key, value = (t.view(ROWS, LENGTH, HEADS, -1).transpose(1, 2) for t in three.split(WIDTH, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=fading)
        x = x + mixed.transpose(1, 2).reshape(ROWS, LENGTH, WIDTH) @ w[f"{i}out"].T
        x = x + (norm(x, w[f"{i}norm2"]) @ w[f"{i}up"].T).relu().square() @ w[f"{i}down"].T
    return norm(x, None) @ w["embed"].T


def pieces(text):
    """For each step the tokens of its pieces, and what follows each."""
    code = f"""local q = require "qeng" q.device {{ device = "cpu" }} for step = 1, {STEPS} do
      print(table.concat(q.uniform({{ {ROWS} }}, {{ seed = 0, subsequence = 1000 + step }}):table(), " ")) end"""
    lines = subprocess.run([qeng.EXECUTABLE, "-e", code], capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:
        starts = [int(float(place) * (len(text) - LENGTH)) for place in line.split()]
        yield (torch.tensor([list(text[s:s + LENGTH]) for s in starts]), torch.tensor([list(text[s + 1:s + LENGTH + 1]) for s in starts]))


with check("losses are those of PyTorch"):
    text = HERE / "text.txt"
    given = ["--data", text, "--layers", LAYERS, "--width", WIDTH, "--heads", HEADS, "--length", LENGTH, "--rows", ROWS, "--lr", RATE, "--device", "cpu"]
    qeng.run("recipes/own_model.lua", *given, "--steps", 0, "--out", WORK / "own0")
    qeng.run("recipes/own_model.lua", *given, "--steps", STEPS, "--out", WORK / "own")
    rows = [json.loads(line) for line in open(WORK / "own/metrics.jsonl", encoding="utf-8")]
    w = {name: t.requires_grad_() for name, t in safetensors.torch.load_file(WORK / "own0/model.safetensors").items()}
    losses = (lambda tokens=tokens, targets=targets: torch.nn.functional.cross_entropy(logits(w, tokens).flatten(0, 1), targets.flatten())
              for tokens, targets in pieces(text.read_bytes()))
    theirs = torch_model.stepped(w.values(), [step["lr"] for step in rows], losses)
    ours = [step["loss"] for step in rows]
    off = max(abs(a - b) for a, b in zip(ours, theirs))
    row(f"{STEPS} steps of an own model", "first loss", "last loss", "from PyTorch at most")
    row("own_model.lua", f"{ours[0]:.4f}", f"{ours[-1]:.4f}", f"{off:.1e}")
    expect(len(ours) == STEPS and off <= MOST, f"{off:.1e} apart, at most {MOST:.0e}: {ours}, {theirs}")
    expect(ours[-1] < ours[0], f"the loss does not fall: {ours}")
