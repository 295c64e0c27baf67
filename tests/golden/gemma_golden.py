"""Writes small_gemma.gguf and small_gemma3.gguf with the gguf package, random models, the second with Gemma's kind of
vocabulary (no space before a text, user-defined tokens); and small_gemma.json: what llama.cpp makes of them (ids of texts,
logits behind a prompt).

    python3 tests/golden/gemma_golden.py        (needs gguf, numpy and llama-cpp-python)
"""
import json
import os

import gguf
import llama_cpp
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
hidden, ffn, heads, kv_heads, head_dim = 16, 16, 2, 1, 16


def add_vocabulary(w):
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>"] + ["<0x%02X>" % b for b in range(256)]
    types = [3, 3, 3, 2] + [6] * 256
    scores = [0.0] * 260
    for i, piece in enumerate("▁t he ▁the ▁a er ▁ca cat ll ello ▁▁".split() + list("▁acehlort,!")):
        pieces.append(piece), types.append(1), scores.append(-float(i))
    for piece, kind in (("\n\n", 4), ("<table>", 4), ("<start_of_turn>", 3), ("<end_of_turn>", 3)):
        pieces.append(piece), types.append(kind), scores.append(-1000.0)
    w.add_tokenizer_model("llama"), w.add_tokenizer_pre("default")
    w.add_token_list(pieces), w.add_token_scores(scores), w.add_token_types(types)
    w.add_bos_token_id(2), w.add_eos_token_id(1), w.add_unk_token_id(3), w.add_pad_token_id(0)
    w.add_eot_token_id(len(pieces) - 1), w.add_add_bos_token(True), w.add_add_space_prefix(False)
    return len(pieces)


def write(arch, layers, seed):
    rng = np.random.default_rng(seed)
    path = os.path.join(here, f"small_{arch}.gguf")
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(layers), w.add_context_length(128), w.add_embedding_length(hidden), w.add_feed_forward_length(ffn)
    w.add_head_count(heads), w.add_head_count_kv(kv_heads), w.add_layer_norm_rms_eps(1e-6)
    w.add_key_length(head_dim), w.add_value_length(head_dim)

    def matrix(name, rows, columns):
        x = rng.standard_normal((rows, columns), dtype=np.float32) * 0.3
        w.add_tensor(name, x.astype(np.float16))

    def norm(name, size=hidden):
        w.add_tensor(name, 1 + 0.2 * rng.standard_normal(size, dtype=np.float32))

    if arch == "gemma3":
        w.add_rope_freq_base(1e6), w.add_sliding_window(4)
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR), w.add_rope_scaling_factor(2.0)
        vocab = add_vocabulary(w)
    else:
        vocab = 64
        w.add_tokenizer_model("none"), w.add_vocab_size(vocab)
    matrix("token_embd.weight", vocab, hidden)
    for i in range(layers):
        b = "blk.%d." % i
        norm(b + "attn_norm.weight"), norm(b + "ffn_norm.weight")
        if arch == "gemma3":
            norm(b + "attn_q_norm.weight", head_dim), norm(b + "attn_k_norm.weight", head_dim)
            norm(b + "post_attention_norm.weight"), norm(b + "post_ffw_norm.weight")
        matrix(b + "attn_q.weight", heads * head_dim, hidden), matrix(b + "attn_k.weight", kv_heads * head_dim, hidden)
        matrix(b + "attn_v.weight", kv_heads * head_dim, hidden), matrix(b + "attn_output.weight", hidden, heads * head_dim)
        matrix(b + "ffn_gate.weight", ffn, hidden), matrix(b + "ffn_up.weight", ffn, hidden), matrix(b + "ffn_down.weight", hidden, ffn)
    norm("output_norm.weight")
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
    return llama_cpp.Llama(path, n_ctx=128, verbose=False, logits_all=True, n_threads=1)


def behind(model, prompt):
    model.eval(prompt)
    return {"prompt": prompt, "logits": [round(float(x), 5) for x in model.scores[len(prompt) - 1]]}


gemma, gemma3 = write("gemma", 2, 1), write("gemma3", 6, 2)
texts = ["the cat", "hello,  the caterer!", " two  spaces", "a\n\nb\n\n\nc<table>the", "caf\u00e9 \u4e2d\u6587\n", "", "<end_of_turn> stays text"]
values = {
    "texts": texts,
    "ids": [gemma3.tokenize(text.encode(), add_bos=False, special=False) for text in texts],
    "gemma": behind(gemma, [2, 17, 3, 63, 40, 8, 8, 21, 5, 60, 33]),
    "gemma3": behind(gemma3, gemma3.tokenize(b"the hello cat, he ate the rat", add_bos=True)),
}
with open(os.path.join(here, "small_gemma.json"), "w") as f:
    json.dump(values, f)
    f.write("\n")
