"""Writes phi3_golden.json: small Phi-3 models, the logits that transformers and llama.cpp make of each in f32, the gradients of the
first, and the entries of its GGUF file. Weights are a formula of their names (tests/lua/formula.lua has it too).

    python3 tests/golden/phi3_golden.py        (needs torch, transformers 5, gguf, xllamacpp)
"""
import json
import os
import subprocess
import sys
import tempfile

TOKENS = [3, 17, 5, 11, 2, 19, 7, 13, 1, 22]
BASE = dict(architectures=["Phi3ForCausalLM"], model_type="phi3", hidden_size=32, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, vocab_size=24, max_position_embeddings=64, rms_norm_eps=1e-5,
            original_max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
short, long = [1.0, 1.1, 1.25], [1.0, 2.5, 6.0]
longrope = dict(rope_scaling=dict(type="longrope", short_factor=short, long_factor=long), partial_rotary_factor=0.75)
CASES = [  # name, what differs from BASE
    ("whole heads", dict(rope_theta=500.0)),
    ("a part of heads, and a head that is the embedding", dict(partial_rotary_factor=0.5, tie_word_embeddings=True)),
    ("longrope below the original length", dict(longrope, max_position_embeddings=1024, original_max_position_embeddings=256)),
    ("longrope beyond the original length", dict(longrope, original_max_position_embeddings=8)),
    ("a window, which llama.cpp does not know", dict(sliding_window=3)),
]
here = os.path.dirname(os.path.abspath(__file__))


def formula(name, shape):
    import numpy
    seed, count = sum((i + 1) * byte for i, byte in enumerate(name.encode())), int(numpy.prod(shape))
    values = numpy.array([((i * 7919 + seed * 104729) % 1009) / 1009 - 0.5 for i in range(count)])
    values = (0.4 * values if len(shape) == 1 else values) + (1 if name.endswith("norm.weight") else 0)
    return values.astype(numpy.float32).reshape(shape)


def of_transformers(values):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(values, f)
        config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(formula(name, tuple(parameter.shape)))
    model.tie_weights()
    ids = torch.tensor([TOKENS])
    out = model(ids, labels=ids)
    out.loss.backward()
    grads = {name: float(p.grad.norm()) for name, p in model.named_parameters() if ".0." in name}
    return dict(logits=out.logits[0, -1].tolist(), loss=float(out.loss), gradients=grads, shapes={
        name: list(p.shape) for name, p in model.named_parameters()})


def write_gguf(path, values, shapes):
    """As llama.cpp's convert_hf_to_gguf.py does; returns the entries."""
    import math

    import gguf
    import numpy
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.qkv_proj": "attn_qkv",
             "self_attn.o_proj": "attn_output", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    w = gguf.GGUFWriter(path, "phi3")
    original, most = values["original_max_position_embeddings"], values["max_position_embeddings"]
    rotary = int(values.get("partial_rotary_factor", 1) * 8)
    entries = {"context_length": most, "embedding_length": 32, "feed_forward_length": 24, "block_count": 2, "attention.head_count": 4,
               "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": rotary,
               "rope.freq_base": values.get("rope_theta", 1e4)}
    if "rope_scaling" in values:
        entries["rope.scaling.original_context_length"] = original
        entries["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(most / original) / math.log(original))
        for kind, factors in (("long", long), ("short", short)):
            w.add_tensor(f"rope_factors_{kind}.weight", numpy.array(factors, dtype=numpy.float32))
    for key, value in entries.items():
        (w.add_float32 if isinstance(value, float) else w.add_uint32)("phi3." + key, value)
    w.add_tokenizer_model("none")
    w.add_uint32("phi3.vocab_size", 24)
    for name, shape in shapes.items():
        stem = name.removesuffix(".weight")
        layer = stem.split(".", 3)
        w.add_tensor((whole[stem] if stem in whole else f"blk.{layer[2]}.{names[layer[3]]}") + ".weight", formula(name, shape))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
    return entries


def of_llama(path):  # a process of its own: torch and xllamacpp do not live in one
    sys.path.append(os.path.join(here, "..", "peers"))
    import llama
    with llama.Model(path, context=256) as model:
        print(json.dumps([float(x) for x in model.logits(TOKENS)[-1]]))


if len(sys.argv) > 1:
    of_llama(sys.argv[1])
    sys.exit()
cases = []
for name, more in CASES:
    values = BASE | more
    found = of_transformers(values)
    shapes = found.pop("shapes")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        entries = write_gguf(path, values, shapes)
        out = subprocess.run([sys.executable, __file__, path], check=True, capture_output=True, text=True).stdout
    case = dict(name=name, values=values, entries=entries, llama=json.loads(out.splitlines()[-1]), **found)
    if "sliding_window" in values:
        del case["llama"]
    case = json.loads(json.dumps(case), parse_float=lambda text: float(f"{float(text):.7g}"))
    cases.append(json.dumps(case))
with open(os.path.join(here, "phi3_golden.json"), "w") as f:
    f.write('{"tokens": %s, "cases": [\n%s\n]}\n' % (json.dumps(TOKENS), ",\n".join(cases)))
