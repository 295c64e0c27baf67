#!/usr/bin/env python3
"""Loads what qeng wrote in the tools of others and compares logits.

    python3 tests/golden/check_outputs.py --base DIR --adapter DIR --merged DIR --ours FILE.json [--tolerance 1e-4]

--base is the HF folder the adapter was trained on, --adapter the PEFT folder and --merged the model folder that qeng wrote;
either may be left out. FILE.json is {"tokens": [...], "logits": [[...], ...]} (or a list of such) from qeng's adapted model:
logits is [length, vocab]. All are computed in f32, one document at a time. Exit status 0 if every pair of
{ours, adapter, merged} agrees within the absolute tolerance, 1 if not.
"""
import argparse
import itertools
import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    strays = {k: sorted(v) for k, v in info.items() if v}
    if strays:
        sys.exit(f"{folder}: {strays}")
    return model.eval()


def load_adapter(base, folder):
    """The base with the adapter on it, after checking that every tensor of the file reached a place of its own."""
    from peft import load_peft_weights
    model = PeftModel.from_pretrained(load(base), folder).eval()
    stored = load_peft_weights(folder, device="cpu")
    placed = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    if set(stored) != set(placed):
        sys.exit(f"{folder}: only in the file: {sorted(set(stored) - set(placed))[:4]}, only in the model: {sorted(set(placed) - set(stored))[:4]}")
    for name, tensor in stored.items():
        if not torch.equal(placed[name].float(), tensor.float()):
            sys.exit(f"{folder}: {name} did not load as stored")
    if all(not tensor.any() for name, tensor in stored.items() if "lora_B" in name):
        sys.exit(f"{folder}: every lora_B is zero, so the comparison would show nothing about the adapter")
    return model


def logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True)
    parser.add_argument("--adapter")
    parser.add_argument("--merged")
    parser.add_argument("--ours")
    parser.add_argument("--tokens", help="token ids to compare on where --ours is left out, separated by commas")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.ours:
        with open(options.ours) as f:
            documents = json.load(f)
        documents = documents if isinstance(documents, list) else [documents]
    elif options.tokens:
        documents = [{"tokens": [int(t) for t in options.tokens.split(",")]}]
    else:
        parser.error("give --ours or --tokens")
    models = {}
    if options.adapter:
        models["adapter"] = load_adapter(options.base, options.adapter)
    if options.merged:
        models["merged"] = load(options.merged)
    if len(models) + bool(options.ours) < 2:
        parser.error("nothing to compare: give two of --ours, --adapter, --merged")
    base, worst, effect = load(options.base), {}, 0.0
    for document in documents:
        found = {name: logits(model, document["tokens"]) for name, model in models.items()}
        if "logits" in document:
            found["ours"] = torch.tensor(document["logits"], dtype=torch.float32)
        for (a, x), (b, y) in itertools.combinations(found.items(), 2):
            if x.shape != y.shape:
                sys.exit(f"{a} has logits {tuple(x.shape)}, {b} {tuple(y.shape)}")
            difference = (x - y).abs().max().item()
            worst[f"{a} - {b}"] = max(worst.get(f"{a} - {b}", 0.0), difference if difference == difference else float("inf"))
        effect = max(effect, (next(iter(found.values())) - logits(base, document["tokens"])).abs().max().item())
    failed = False
    for pair, difference in worst.items():
        verdict = "ok" if difference <= options.tolerance else "FAILED"
        failed |= verdict == "FAILED"
        print(f"{pair:20s} largest difference {difference:.3e}   (tolerance {options.tolerance:.0e})  {verdict}")
    print(f"the adapter moves the base model's logits by up to {effect:.3e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
