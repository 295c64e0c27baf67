"""Writes small_llama.gguf with the gguf package, a random model with a SentencePiece vocabulary, and small_llama.json: what
llama.cpp makes of it (ids of texts, logits behind a prompt).

    python3 tests/golden/gguf_model_golden.py        (needs gguf, numpy and llama-cpp-python)
"""
import json
import os

import gguf
import llama_cpp
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
path = os.path.join(here, "small_llama.gguf")
hidden, ffn, layers, heads, kv_heads, head_dim = 32, 64, 2, 4, 2, 8
rng = np.random.default_rng(1)

pieces = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
types = [2, 3, 3] + [6] * 256
scores = [0.0] * 259
for i, piece in enumerate("▁t he ▁the ▁a er ing ▁ca cat ▁cat ll ello ▁hello".split() + list("▁abcdefghijklmnopqrstuvwxyz.,!é")):
    pieces.append(piece), types.append(1), scores.append(-float(i))
vocab = len(pieces)

w = gguf.GGUFWriter(path, "llama")
w.add_block_count(layers), w.add_context_length(128), w.add_embedding_length(hidden), w.add_feed_forward_length(ffn)
w.add_head_count(heads), w.add_head_count_kv(kv_heads), w.add_layer_norm_rms_eps(1e-5), w.add_rope_freq_base(10000.0)
w.add_rope_dimension_count(head_dim), w.add_vocab_size(vocab)
w.add_tokenizer_model("llama"), w.add_tokenizer_pre("default")
w.add_token_list(pieces), w.add_token_scores(scores), w.add_token_types(types)
w.add_bos_token_id(1), w.add_eos_token_id(2), w.add_unk_token_id(0)


def matrix(name, rows, columns):
    x = rng.standard_normal((rows, columns), dtype=np.float32) * 0.2
    w.add_tensor(name, x.astype(np.float16))


def norm(name):
    w.add_tensor(name, 1 + 0.1 * rng.standard_normal(hidden, dtype=np.float32))


matrix("token_embd.weight", vocab, hidden)
for i in range(layers):
    b = "blk.%d." % i
    norm(b + "attn_norm.weight"), norm(b + "ffn_norm.weight")
    matrix(b + "attn_q.weight", heads * head_dim, hidden), matrix(b + "attn_k.weight", kv_heads * head_dim, hidden)
    matrix(b + "attn_v.weight", kv_heads * head_dim, hidden), matrix(b + "attn_output.weight", hidden, heads * head_dim)
    matrix(b + "ffn_gate.weight", ffn, hidden), matrix(b + "ffn_up.weight", ffn, hidden), matrix(b + "ffn_down.weight", hidden, ffn)
norm("output_norm.weight")
w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()

model = llama_cpp.Llama(path, n_ctx=128, verbose=False, logits_all=True, n_threads=1)
texts = ["the cat", "hello, the caterer!", " two  spaces", "caf\u00e9 \u4e2d\u6587\n", "", "<s> stays text"]
ids = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
prompt = model.tokenize(b"the hello cat sings", add_bos=True)
model.eval(prompt)
logits = [round(float(x), 5) for x in model.scores[len(prompt) - 1]]
with open(os.path.join(here, "small_llama.json"), "w") as f:
    json.dump({"texts": texts, "ids": ids, "prompt": prompt, "logits": logits}, f)
    f.write("\n")
