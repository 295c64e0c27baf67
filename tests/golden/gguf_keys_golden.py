"""Writes gguf_keys_golden.json: entries of GGUF metadata that are easily read another way, and the logits that llama.cpp makes of a
model that has them. Weights are a formula of their names (tests/lua/formula.lua has it too), so that no file holds them.

    python3 tests/golden/gguf_keys_golden.py        (needs gguf, numpy and llama-cpp-python 0.3.36)
"""
import json
import os
import tempfile

import gguf
import llama_cpp
import numpy as np

TOKENS = [3, 17, 5, 11, 2, 19, 7, 13, 1, 22]
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 32, 32, 4, 2, 8, 2, 32
BASE = {
    "block_count": ("u32", LAYERS), "context_length": ("u32", 64), "embedding_length": ("u32", HIDDEN), "feed_forward_length": ("u32", FFN),
    "attention.head_count": ("u32", HEADS), "attention.head_count_kv": ("u32", KV_HEADS), "attention.layer_norm_rms_epsilon": ("f32", 1e-5),
    "vocab_size": ("u32", VOCAB),
}


def yarn(**more):
    entries = {"type": ("string", "yarn"), "factor": ("f32", 4.0), "original_context_length": ("u32", 16)}
    entries.update({key: ("f32", value) for key, value in more.items()})
    return {"rope.scaling." + key: value for key, value in entries.items() if value[1] is not None}


swa = {"attention.sliding_window": ("u32", 3)}
swa3 = dict(swa, **{"attention.sliding_window_pattern": ("u32", 2)})
CASES = [  # name, architecture, entries, tensors beside those of all, what a line says of an entry that is not applied
    ("a factor without a type is linear", "llama", {"rope.scaling.factor": ("f32", 4.0)}),
    ("a factor of type none", "llama", {"rope.scaling.factor": ("f32", 4.0), "rope.scaling.type": ("string", "none")}),
    ("the old name of the factor", "qwen2", {"rope.scale_linear": ("f32", 4.0)}),
    ("a factor of 0 beside the old name", "llama", {"rope.scaling.factor": ("f32", 0.0), "rope.scale_linear": ("f32", 4.0)}),
    ("a base of frequencies", "qwen3", {"rope.freq_base": ("f32", 90.0)}),
    ("yarn", "llama", yarn()),
    ("yarn without an original length", "qwen2", {"rope.scaling.type": ("string", "yarn"), "rope.scaling.factor": ("f32", 4.0)}),
    ("yarn of a factor below 1", "qwen3", yarn(factor=0.5) | {"rope.scaling.factor": ("f32", 0.5)}),
    ("attn_factor multiplies", "llama", yarn(attn_factor=0.7)),
    ("yarn_attn_factor", "llama", yarn(yarn_attn_factor=0.5), [], "rope.scaling.yarn_attn_factor"),
    ("yarn_ext_factor", "qwen2", yarn(yarn_ext_factor=0.5), [], "rope.scaling.yarn_ext_factor"),
    ("yarn_beta_fast and yarn_beta_slow", "qwen3", yarn(yarn_beta_fast=8.0, yarn_beta_slow=0.5), [], "rope.scaling.yarn_beta_slow"),
    ("a window of llama", "llama", swa, [], "attention.sliding_window"),
    ("a window of qwen2", "qwen2", swa, [], "attention.sliding_window"),
    ("a window of qwen3", "qwen3", swa, [], "attention.sliding_window"),
    ("a window of gemma", "gemma", swa, [], "attention.sliding_window"),
    ("a window of gemma3", "gemma3", swa3),
    ("bases of gemma3", "gemma3", swa3 | {"rope.freq_base": ("f32", 500.0), "rope.freq_base_swa": ("f32", 90.0)}),
    ("yarn of gemma3", "gemma3", swa3 | yarn()),
    ("a head of its own", "llama", {}, ["output.weight"]),
    ("another head of its own", "gemma3", swa3, ["output.weight"]),
    ("causal said", "llama", {"attention.causal": ("bool", True)}),
]


def formula(name, shape):
    seed, count = sum((i + 1) * byte for i, byte in enumerate(name.encode())), int(np.prod(shape))
    values = np.array([((i * 7919 + seed * 104729) % 1009) / 1009 - 0.5 for i in range(count)])
    values = (0.4 * values if len(shape) == 1 else values) + (1 if name.endswith("norm.weight") else 0)
    return values.astype(np.float32).reshape(shape)


def tensors_of(arch, more):
    names = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        layer = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,), "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
                 "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
                 "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM), "ffn_gate.weight": (FFN, HIDDEN), "ffn_up.weight": (FFN, HIDDEN),
                 "ffn_down.weight": (HIDDEN, FFN)}
        if arch == "qwen2":
            layer |= {"attn_q.bias": (HEADS * HEAD_DIM,), "attn_k.bias": (KV_HEADS * HEAD_DIM,), "attn_v.bias": (KV_HEADS * HEAD_DIM,)}
        if arch in ("qwen3", "gemma3"):
            layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
        if arch == "gemma3":
            layer |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
        names |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return names | {name: (VOCAB, HIDDEN) for name in more}


def logits(arch, entries, more):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        w = gguf.GGUFWriter(path, arch)
        add = {"u32": w.add_uint32, "f32": w.add_float32, "string": w.add_string, "bool": w.add_bool}
        for key, (kind, value) in (BASE | entries).items():
            add[kind](f"{arch}.{key}", value)
        w.add_tokenizer_model("none")
        for name, shape in tensors_of(arch, more).items():
            w.add_tensor(name, formula(name, shape))
        w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
        model = llama_cpp.Llama(path, n_ctx=64, verbose=False, logits_all=True, n_threads=1, type_k=0, type_v=0)  # a cache of f32
        model.eval(TOKENS)
        return np.array(model.scores[len(TOKENS) - 1], dtype=np.float64)


cases = []
for name, arch, entries, *rest in CASES:
    more, said = (rest + [[], None])[:2] if len(rest) != 1 else (rest[0], None)
    cases.append(dict(name=name, architecture=arch, entries=entries, more=more, said=said, logits=[float(f"{x:.7g}") for x in logits(arch, entries, more)]))
    if said:  # not applied: the logits are those of a file without it
        without = {key: value for key, value in entries.items() if "yarn_" not in key and "window" not in key}
        assert np.array_equal(logits(arch, entries, more), logits(arch, without, more)), name

# What is refused rather than followed changes the logits.
for entries in ({"attention.causal": ("bool", False)}, {"rope.scaling.attn_factor": ("f32", 0.7)}):
    assert np.abs(logits("llama", entries, []) - logits("llama", {}, [])).max() > 0.01

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf_keys_golden.json"), "w") as f:
    lines = ",\n".join(json.dumps(case) for case in cases)
    shapes = {arch: tensors_of(arch, []) for arch in sorted({case["architecture"] for case in cases})}
    f.write('{"tokens": %s, "base": %s,\n"shapes": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(TOKENS), json.dumps(BASE), json.dumps(shapes), lines))
