"""Writes config_golden.json: config.json files that are easily read another way, and the logits that transformers makes of each in
f32. Weights are a formula of their names, so that no file holds them (tests/lua/formula.lua has it too).

    python3 tests/golden/config_golden.py        (needs torch, transformers 5, safetensors)
"""
import json
import os
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = [3, 17, 5, 11, 2, 19, 7, 13, 1, 22]
BASE = dict(hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=24,
            max_position_embeddings=64, rms_norm_eps=1e-5)
KINDS = {
    "llama": dict(architectures=["LlamaForCausalLM"], model_type="llama"),
    "mistral": dict(architectures=["MistralForCausalLM"], model_type="mistral"),
    "qwen2": dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2"),
    "qwen3": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=8),
    "gemma": dict(architectures=["GemmaForCausalLM"], model_type="gemma", head_dim=8),
    "gemma3": dict(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", head_dim=8, query_pre_attn_scalar=8),
}
ABSENT = object()
yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
CASES = [  # name, architecture, what differs from BASE, a head of its own
    ("theta of rope_parameters before rope_theta", "llama", dict(rope_parameters=dict(rope_theta=50.0, rope_type="default"), rope_theta=1e4)),
    ("rope_scaling beside rope_theta", "llama", dict(rope_scaling=dict(type="linear", factor=3.0), rope_theta=70.0)),
    ("both objects, agreeing", "llama", dict(rope_scaling=dict(type="linear", factor=3.0), rope_theta=70.0,
                                             rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=70.0))),
    ("an empty rope_scaling beside rope_parameters", "llama", dict(rope_scaling={}, rope_parameters=dict(rope_type="default", rope_theta=70.0))),
    ("yarn without an original length", "llama", dict(rope_scaling=dict(rope_type="yarn", factor=4.0))),
    ("sections of mrope, in text", "qwen2", dict(rope_scaling=dict(type="mrope", rope_type="default", mrope_section=[1, 1, 2]), use_mrope=False)),
    ("sections of mrope under yarn", "qwen2", dict(rope_scaling=dict(yarn, mrope_section=[1, 1, 2]))),
    ("biases", "llama", dict(attention_bias=True, mlp_bias=True)),
    ("nulls", "llama", dict(head_dim=None, num_key_value_heads=None, rope_scaling=None, rope_parameters=None, sliding_window=3)),
    ("a head_dim of its own", "llama", dict(head_dim=16)),
    ("no window said", "mistral", dict(num_attention_heads=8, num_key_value_heads=ABSENT)),
    ("a window", "mistral", dict(sliding_window=3)),
    ("a null window", "mistral", dict(sliding_window=None)),
    ("a window of no layer", "qwen2", dict(use_sliding_window=True, sliding_window=3)),
    ("a window of all layers", "qwen2", dict(use_sliding_window=True, sliding_window=3, max_window_layers=0)),
    ("a window that is not used", "qwen2", dict(use_sliding_window=False, sliding_window=3, max_window_layers=0)),
    ("a window by layer_types", "qwen3", dict(use_sliding_window=True, sliding_window=3, layer_types=["sliding_attention"] * 2)),
    ("no window by layer_types", "qwen3", dict(use_sliding_window=True, sliding_window=3, layer_types=["full_attention"] * 2, max_window_layers=0)),
    ("no head_dim said", "qwen3", dict(head_dim=ABSENT, attention_bias=True)),
    ("no head_dim and key heads said", "gemma", dict(head_dim=ABSENT, num_attention_heads=16, num_key_value_heads=ABSENT)),
    ("rotations by kind", "gemma3", dict(sliding_window=3, layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=4.0, rope_theta=500.0), sliding_attention=dict(rope_type="default", rope_theta=90.0)))),
    ("rotations as older files say them", "gemma3", dict(sliding_window=3, sliding_window_pattern=2, rope_theta=500.0, rope_local_base_freq=90.0,
                                                         rope_scaling=dict(rope_type="linear", factor=4.0))),
    ("rotations of one kind said", "gemma3", dict(sliding_window=3, sliding_window_pattern=2, rope_parameters=dict(full_attention=dict(rope_theta=70.0)))),
    ("tied, and a head of its own", "llama", dict(tie_word_embeddings=True), True),
    ("tied by default, and a head of its own", "gemma", dict(), True),
    ("tied", "qwen2", dict(tie_word_embeddings=True)),
]


def formula(name, shape):
    seed = sum((i + 1) * byte for i, byte in enumerate(name.encode()))
    count = 1
    for size in shape:
        count *= size
    values = torch.tensor([((i * 7919 + seed * 104729) % 1009) / 1009 - 0.5 for i in range(count)], dtype=torch.float32)
    return ((0.4 * values if len(shape) == 1 else values) + (1 if name.endswith("norm.weight") else 0)).reshape(shape)


def logits(values, own_head):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(values, f)
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
        weights = {name: formula(name, tensor.shape) for name, tensor in empty.state_dict().items()}
        if empty.config.tie_word_embeddings and not own_head:
            del weights["lm_head.weight"]
        save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            return model(torch.tensor([TOKENS])).logits[0, -1]


cases = []
for name, kind, changes, *own_head in CASES:
    values = {key: value for key, value in {**BASE, **KINDS[kind], **changes}.items() if value is not ABSENT}
    cases.append(dict(name=name, config=values, own_head=bool(own_head), logits=[float(f"{x:.7g}") for x in logits(values, bool(own_head)).tolist()]))

# What is refused rather than followed: transformers turns whole heads whatever this says.
whole = logits(dict(BASE, **KINDS["llama"]), False)
assert torch.equal(whole, logits(dict(BASE, **KINDS["llama"], rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5)), False))

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "config_golden.json"), "w") as f:
    lines = ",\n".join(json.dumps(case) for case in cases)
    f.write('{"tokens": %s, "cases": [\n%s\n]}\n' % (json.dumps(TOKENS), lines))
