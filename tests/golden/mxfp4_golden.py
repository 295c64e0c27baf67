"""Makes tests/golden/mxfp4: a tiny gpt-oss folder whose experts are stored in MXFP4, as openai/gpt-oss-20b is, and the logits that
transformers has for it (values.json). transformers decodes it by its own code.

    TORCH_USE_RTLD_GLOBAL=1 $(tests/peers/environment) tests/golden/mxfp4_golden.py
"""
import json
import os

import numpy
import torch
from models_golden import BASE, MODELS, TOKENS, formula
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Mxfp4Config

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mxfp4")
os.makedirs(here, exist_ok=True)
model = MODELS["gpt_oss"]
values = dict(architectures=[model["hf"]], model_type="gpt_oss") | BASE | model["values"]
values |= dict(quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"]),
               experts_per_token=values["num_experts_per_tok"], torch_dtype="bfloat16")
experts, hidden, ffn = values["num_local_experts"], values["hidden_size"], values["intermediate_size"]
tensors = {}


def plain(name, *shape):
    tensors[name] = torch.from_numpy(formula(name, shape)).bfloat16()


def blocks(name, rows, columns):
    """Each code and many exponents, near those of weights of a size of 0.1."""
    codes = numpy.random.RandomState(rows).randint(0, 256, (experts, rows, columns // 32, 16))
    tensors[name + "_blocks"] = torch.from_numpy(codes.astype(numpy.uint8))
    scales = numpy.arange(experts * rows * columns // 32).reshape(experts, rows, columns // 32) % 5 + 122
    tensors[name + "_scales"] = torch.from_numpy(scales.astype(numpy.uint8))


plain("model.embed_tokens.weight", values["vocab_size"], hidden)
plain("model.norm.weight", hidden)
plain("lm_head.weight", values["vocab_size"], hidden)
for layer in range(values["num_hidden_layers"]):
    at = f"model.layers.{layer}."
    wide, narrow = values["num_attention_heads"] * values["head_dim"], values["num_key_value_heads"] * values["head_dim"]
    for part, rows, columns in (("q_proj", wide, hidden), ("k_proj", narrow, hidden), ("v_proj", narrow, hidden), ("o_proj", hidden, wide)):
        plain(f"{at}self_attn.{part}.weight", rows, columns)
        plain(f"{at}self_attn.{part}.bias", rows)
    plain(at + "self_attn.sinks", values["num_attention_heads"])
    plain(at + "input_layernorm.weight", hidden)
    plain(at + "post_attention_layernorm.weight", hidden)
    plain(at + "mlp.router.weight", experts, hidden)
    plain(at + "mlp.router.bias", experts)
    blocks(at + "mlp.experts.gate_up_proj", 2 * ffn, hidden)
    plain(at + "mlp.experts.gate_up_proj_bias", experts, 2 * ffn)
    blocks(at + "mlp.experts.down_proj", hidden, ffn)
    plain(at + "mlp.experts.down_proj_bias", experts, hidden)
save_file(tensors, os.path.join(here, "model.safetensors"), metadata={"format": "pt"})
with open(os.path.join(here, "config.json"), "w") as file:
    json.dump(values, file, indent=1)
decoded = AutoModelForCausalLM.from_pretrained(here, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)).float().eval()
decoded.set_attn_implementation("eager")
with torch.no_grad():
    logits = decoded(torch.tensor([TOKENS])).logits[0, -1]
with open(os.path.join(here, "values.json"), "w") as file:
    json.dump(dict(tokens=TOKENS, logits=[float(f"{x:.8g}") for x in logits.tolist()]), file)
