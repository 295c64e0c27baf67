"""Makes tests/golden/int4: tiny llama folders packed as AutoAWQ (gemm) and AutoGPTQ (v1) pack them, and what they stand for.
act_order/ is GPTQ's with desc_act: inputs are in groups of 32 as g_idx says.

    python int4_golden.py          (needs numpy and torch)

awq/, gptq/, act_order/: config.json, model.safetensors.   values.safetensors: METHOD.NAME [out, in] f32, the weight of layer NAME.
Written from the packing formulas of the two projects, independently of engine/formats/int4_read.cpp:
  awq   word (i, c) of qweight [in, out/8] is sum_j q[i, 8c + ORDER[j]] << 4j, ORDER = 0 2 4 6 1 3 5 7; qzeros alike
  gptq  word (r, o) of qweight [in/8, out] is sum_j q[8r + j, o] << 4j; word (g, c) of qzeros is sum_j (z[g, 8c + j] - 1) << 4j
  w[o, i] = scales[g, o] * (q[i, o] - z[g, o]),  g = i / group; of act_order g_idx[i], and the product is torch's of halves
"""
import json
import struct
from pathlib import Path

import numpy as np
import torch

ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
HIDDEN, FFN, HEADS, KV_HEADS, VOCAB = 64, 96, 2, 1, 40
LINEARS = {"self_attn.q_proj": (64, HIDDEN), "self_attn.k_proj": (32, HIDDEN), "self_attn.v_proj": (32, HIDDEN),
           "self_attn.o_proj": (HIDDEN, 64), "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
           "mlp.down_proj": (HIDDEN, FFN)}
SHOWN = ["self_attn.k_proj", "mlp.down_proj"]


def words(nibbles):  # [..., 8] -> i32 [...]
    return (nibbles.astype(np.uint64) << (4 * np.arange(8, dtype=np.uint64))).sum(-1).astype(np.uint32).view(np.int32)


def awq(q, z):
    def packed(x):
        return words(x.reshape(x.shape[0], -1, 8)[:, :, ORDER])
    return packed(q), packed(z)


def gptq(q, z):
    rows = words(np.moveaxis(q.reshape(-1, 8, q.shape[1]), 1, 2))
    return rows, words((z - 1).reshape(z.shape[0], -1, 8))


def save(path, tensors):
    header, body = {}, b""
    kinds = {"int32": "I32", "float16": "F16", "float32": "F32"}
    for name, tensor in tensors.items():
        raw = np.ascontiguousarray(tensor).tobytes()
        header[name] = {"dtype": kinds[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(path, path.stat().st_size, "bytes")


def main():
    rng = np.random.default_rng(11)
    folder = Path(__file__).with_name("int4")
    values = {}
    for method, group in (("awq", 32), ("gptq", -1), ("act_order", 32)):
        tensors = {"model.embed_tokens.weight": rng.normal(size=(VOCAB, HIDDEN)).astype(np.float16),
                   "model.norm.weight": np.ones(HIDDEN, np.float16)}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.0.{norm}.weight"] = np.ones(HIDDEN, np.float16)
        for name, (out, inputs) in LINEARS.items():
            size = group if group > 0 else inputs
            groups = inputs // size
            q = rng.integers(0, 16, (inputs, out))
            z = rng.integers(0 if method == "awq" else 1, 16 if method == "awq" else 17, (groups, out))
            scales = (rng.uniform(0.5, 2, (groups, out)) * 0.02).astype(np.float16)
            layer = f"model.layers.0.{name}"
            tensors[layer + ".qweight"], tensors[layer + ".qzeros"] = (awq if method == "awq" else gptq)(q, z)
            tensors[layer + ".scales"] = scales
            of_row = np.arange(inputs) // size
            if method == "act_order":
                of_row = rng.permutation(of_row)
            if method != "awq":
                tensors[layer + ".g_idx"] = of_row.astype(np.int32)
                tensors[layer + ".bias"] = np.zeros(out, np.float16)
            if name in SHOWN:
                values[f"{method}.{layer}"] = (scales[of_row].astype(np.float32) * (q - z[of_row]).astype(np.float32)).T
                if method == "act_order":
                    halves = torch.from_numpy(scales[of_row]) * torch.from_numpy(q - z[of_row]).to(torch.float16)
                    values[f"{method}.{layer}"] = halves.T.float().numpy()
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
                  "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": 32,
                  "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu",
                  "tie_word_embeddings": True, "torch_dtype": "float16",
                  "quantization_config": {
                      "awq": {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
                              "modules_to_not_convert": None},
                      "gptq": {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": method == "act_order",
                               "sym": False, "damp_percent": 0.01}}["awq" if method == "awq" else "gptq"]}
        (folder / method).mkdir(parents=True, exist_ok=True)
        (folder / method / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save(folder / method / "model.safetensors", tensors)
    save(folder / "values.safetensors", values)


main()
