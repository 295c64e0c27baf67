#!/usr/bin/env python3
"""Writes tests/golden/nf4: a random Qwen2 that bitsandbytes quantized to NF4, with scales in f32 (single/) and quantized once more
(double/), and what transformers makes of the weights that bitsandbytes dequantizes: expected.json, {"tokens": [...], "logits": {name:
[[...]...]}} in f32.

    python3 nf4_golden.py OUT_DIR      needs torch, transformers, bitsandbytes (its CPU backend)"""
import json
import os
import sys

import bitsandbytes
import torch
from transformers import BitsAndBytesConfig, Qwen2Config, Qwen2ForCausalLM

out = sys.argv[1]
tokens = [3, 1, 4, 1, 5, 9, 2, 6]
torch.manual_seed(0)
config = Qwen2Config(vocab_size=24, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                     tie_word_embeddings=True, max_position_embeddings=64, initializer_range=0.2)
plain = Qwen2ForCausalLM(config).to(torch.bfloat16)
plain.save_pretrained("/tmp/nf4_plain")
expected = {"tokens": tokens, "logits": {}}
for name, double in (("single", False), ("double", True)):
    quantized = Qwen2ForCausalLM.from_pretrained("/tmp/nf4_plain", device_map="cpu", quantization_config=BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double, bnb_4bit_compute_dtype=torch.bfloat16))
    quantized.save_pretrained(f"{out}/{name}")
    os.remove(f"{out}/{name}/generation_config.json")
    decoded = Qwen2ForCausalLM(config).float().eval()
    weights = plain.float().state_dict()
    for module_name, module in quantized.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            weights[module_name + ".weight"] = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state).float()
    decoded.load_state_dict(weights)
    logits = decoded(torch.tensor([tokens])).logits[0]
    expected["logits"][name] = [[round(float(x), 6) for x in row] for row in logits]
    plain = plain.to(torch.bfloat16)
json.dump(expected, open(f"{out}/expected.json", "w"))
