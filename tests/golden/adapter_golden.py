#!/usr/bin/env python3
"""Writes tests/golden/adapters: a random Qwen2 and adapters that PEFT made of it, with the logits that PEFT computes (f32).

    python3 adapter_golden.py OUT_DIR      needs torch, transformers, peft

dora/: DoRA on layers given by role and by full path, ranks and alphas of their own; plain/: rank patterns with rsLoRA; whole/ and
embed/: embedding and head, or the first alone, trained beside, of a base that ties them. Every part is random, as training would leave it. expected.json: the tokens, the logits by adapter, and of dora/ the mean
loss over the next tokens with PyTorch's gradients of its magnitudes and of one lora_A."""
import json
import os
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

out = sys.argv[1]
tokens = [3, 1, 4, 1, 5, 9, 2, 6]


def base():
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=64, initializer_range=0.3)
    model = Qwen2ForCausalLM(config).float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


kinds = {
    "dora": dict(r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj", "model.layers.1.mlp.down_proj", "layers.0.mlp.up_proj"],
                 rank_pattern={"model.layers.1.mlp.down_proj": 2}, alpha_pattern={"q_proj": 6}),
    "plain": dict(r=4, lora_alpha=8, use_rslora=True, target_modules=["v_proj", "o_proj", "gate_proj"],
                  rank_pattern={"layers.1.mlp.gate_proj": 3}, alpha_pattern={"o_proj": 5}),
    "whole": dict(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    "embed": dict(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"]),
}
base().save_pretrained(f"{out}/base")
os.remove(f"{out}/base/generation_config.json")
expected = {"tokens": tokens, "logits": {}}
ids = torch.tensor([tokens])
for name, settings in kinds.items():
    model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    torch.manual_seed(1)
    for parameter_name, parameter in model.named_parameters():
        if "modules_to_save" in parameter_name:
            with torch.no_grad():
                parameter.add_(0.3 * torch.randn_like(parameter))
        elif "lora_" in parameter_name:
            with torch.no_grad():
                if "magnitude" in parameter_name:
                    parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
                else:
                    parameter.copy_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(f"{out}/{name}")
    os.remove(f"{out}/{name}/README.md")
    logits = model(ids).logits[0]
    expected["logits"][name] = [[round(float(x), 6) for x in row] for row in logits]
    if name == "dora":
        loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
        loss.backward()
        gradients = {n.removeprefix("base_model.model.").replace(".default.weight", "").replace(".default", ""):
                     [round(float(x), 7) for x in p.grad.flatten()] for n, p in model.named_parameters()
                     if p.grad is not None and ("magnitude" in n or "layers.1.mlp.down_proj.lora_A" in n)}
        expected["loss"], expected["gradients"] = round(float(loss), 6), gradients
json.dump(expected, open(f"{out}/expected.json", "w"))
