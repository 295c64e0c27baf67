"""Logits of GGUF models by three engines: qeng, llama.cpp, and a float64 evaluation of the decoded weights.

    python llama_parity.py QENG [--adapter LORA.gguf] MODEL.gguf [MODEL.gguf ...]

With --adapter both run under that adapter, and there is no float64. Needs numpy, gguf, safetensors and llama-cpp-python. For each file, over the same token ids, prints the mean KL divergence of qeng from
llama.cpp, of each of the two from float64 (the noise of rounding activations is in there; nan where the gguf package lacks the type, and for rope scaling that is not linear), of llama.cpp one token at a time
from llama.cpp in one batch (its own noise), and how often the likeliest token agrees with llama.cpp's. Then llama.cpp continues the
first 16 tokens greedily: of its tokens, how many are qeng's choice too, given those before, and how many of the others are ties: tokens
that llama.cpp sets apart by less than the rounding of activations moved its own logits there (its distance from float64), or qeng's.
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import gguf
import llama_cpp as L
import numpy as np
import safetensors.numpy

TOKENS = 96
adapter_file = None
PROMPT, GREEDY = 16, 64


def log_softmax(z):
    z = z.astype(np.float64)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def divergence(p, q):
    if p is None:
        return float("nan")
    p, q = log_softmax(p), log_softmax(q)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def vocab_of(path):
    params = L.llama_model_default_params()
    params.vocab_only = True
    model = L.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"{path}: llama.cpp does not load it")
    count = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    L.llama_model_free(model)
    return count


def llama_logits(path, ids, batch, greedy=0):
    """Logits of ids, in batches of so many; with greedy, ids grows by so many of the likeliest tokens."""
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    if not model:
        sys.exit(f"{path}: llama.cpp does not load it")
    params = L.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 512, 512, 512, 2, 2
    params.type_k = params.type_v = 0  # f32
    params.flash_attn_type = 0
    context = L.llama_init_from_model(model, params)
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    if adapter_file:
        adapter = L.llama_adapter_lora_init(model, adapter_file.encode())
        if not adapter:
            sys.exit(f"{adapter_file}: llama.cpp does not load it")
        L.llama_set_adapters_lora(context, (L.llama_adapter_lora_p_ctypes * 1)(adapter), 1, (ctypes.c_float * 1)(1.0))
    rows = []
    begin, target = 0, len(ids) + greedy
    while begin < target:
        if begin == len(ids):
            ids.append(int(rows[-1].argmax()))
        piece = ids[begin : begin + batch]
        request = L.llama_batch_init(len(piece), 0, 1)
        request.n_tokens = len(piece)
        for i, token in enumerate(piece):
            request.token[i], request.pos[i], request.n_seq_id[i], request.seq_id[i][0] = token, begin + i, 1, 0
            request.logits[i] = 1
        if L.llama_decode(context, request):
            sys.exit(f"{path}: llama_decode failed")
        for i in range(len(piece)):
            rows.append(np.ctypeslib.as_array(L.llama_get_logits_ith(context, i), (vocab,)).copy())
        L.llama_batch_free(request)
        begin += len(piece)
    L.llama_free(context)
    L.llama_model_free(model)
    return np.array(rows)


def exact_logits(path, ids):
    if adapter_file:
        return None
    try:
        reader = gguf.GGUFReader(path)
    except ValueError:  # a type number that the package does not know
        return None
    field = lambda key, default=None: reader.fields[key].contents() if key in reader.fields else default
    arch = field("general.architecture")
    key = lambda name, default=None: field(f"{arch}.{name}", default)
    heads, hidden = key("attention.head_count"), key("embedding_length")
    kv, dim = key("attention.head_count_kv", heads), key("attention.key_length", hidden // heads)
    eps, theta = key("attention.layer_norm_rms_epsilon"), key("rope.freq_base", 1e4)
    stored = {t.name: t for t in reader.tensors}

    def weight(name):
        t = stored.get(name)
        if t is None:
            return None
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64).reshape([int(n) for n in t.shape[::-1]])

    def norm(x, w):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w

    def linear(x, name):
        y = x @ weight(name + ".weight").T
        bias = weight(name + ".bias")
        return y if bias is None else y + bias

    count = len(ids)
    gemma = arch in ("gemma", "gemma3")
    window = key("attention.sliding_window", 0) if arch == "gemma3" else 0
    if key("rope.scaling.type", "linear") != "linear":
        return None
    positions = np.arange(count)
    whole = positions[:, None] / key("rope.scaling.factor", 1.0) * theta ** (-2.0 * np.arange(dim // 2) / dim)
    near = positions[:, None] * 1e4 ** (-2.0 * np.arange(dim // 2) / dim)

    def rope(x, angles):
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        y = np.empty_like(x)
        if arch == "llama":  # neighbours
            a, b = x[..., 0::2], x[..., 1::2]
            y[..., 0::2], y[..., 1::2] = a * cos - b * sin, a * sin + b * cos
        else:  # halves
            a, b = x[..., : dim // 2], x[..., dim // 2 :]
            y[..., : dim // 2], y[..., dim // 2 :] = a * cos - b * sin, a * sin + b * cos
        return y

    def post(x, name):
        return x if weight(name) is None else norm(x, weight(name))

    table = weight("token_embd.weight")
    x = table[ids] * (np.sqrt(hidden) if gemma else 1)
    for layer in range(key("block_count")):
        at = lambda name: f"blk.{layer}.{name}"
        y = norm(x, weight(at("attn_norm.weight")))
        q = linear(y, at("attn_q")).reshape(count, heads, dim)
        k = linear(y, at("attn_k")).reshape(count, kv, dim)
        v = linear(y, at("attn_v")).reshape(count, kv, dim)
        if weight(at("attn_q_norm.weight")) is not None:
            q, k = norm(q, weight(at("attn_q_norm.weight"))), norm(k, weight(at("attn_k_norm.weight")))
        local = window > 0 and layer % 6 < 5
        q, k = rope(q, near if local else whole), rope(k, near if local else whole)
        k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        if local:
            scores[:, positions[None] <= positions[:, None] - window] = -np.inf
        mixed = np.einsum("hqk,khd->qhd", np.exp(log_softmax(scores)), v).reshape(count, heads * dim)
        x = x + post(linear(mixed, at("attn_output")), at("post_attention_norm.weight"))
        y = norm(x, weight(at("ffn_norm.weight")))
        gate = linear(y, at("ffn_gate"))
        if gemma:
            gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        x = x + post(linear(gate * linear(y, at("ffn_up")), at("ffn_down")), at("post_ffw_norm.weight"))
    head = weight("output.weight")
    return norm(x, weight("output_norm.weight")) @ (table if head is None else head).T


def qeng_logits(qeng, path, ids):
    recipe = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_parity.lua")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits.safetensors")
        subprocess.run([qeng, recipe, path, json.dumps(ids), out] + ([adapter_file] if adapter_file else []), check=True)
        return safetensors.numpy.load_file(out)["logits"]


def greedy_agreement(qeng, path, prompt):
    """(tokens that are the choice of both, others that are ties, the rest) of llama.cpp's greedy continuation."""
    ids = list(prompt)
    llama = llama_logits(path, ids, 512, GREEDY)[PROMPT - 1 : -1]
    ours, exact = qeng_logits(qeng, path, ids)[PROMPT - 1 : -1], None
    try:
        exact = exact_logits(path, ids)
    except NotImplementedError:
        pass
    same = ties = 0
    for i, wanted in enumerate(ids[PROMPT:]):
        chosen = int(ours[i].argmax())
        if chosen == wanted:
            same += 1
            continue
        pair = [wanted, chosen]
        moved = [llama[i] - ours[i]] if exact is None else [each[i] - exact[PROMPT - 1 + i] for each in (llama, ours)]
        noise = sum(np.abs(each[pair]).max() for each in moved)
        ties += bool(llama[i][wanted] - llama[i][chosen] <= 2 * noise)
    return same, ties, GREEDY - same - ties


def main():
    quiet = L.llama_log_callback(lambda level, text, user: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    worst = 0.0
    print(f"{'file':40} {'qeng|llama':>11} {'qeng|f64':>11} {'llama|f64':>11} {'llama|self':>11} {'top-1':>7} {'greedy':>7} {'ties':>5} {'other':>5}")
    global adapter_file
    files = sys.argv[2:]
    if files[0] == "--adapter":
        adapter_file, files = files[1], files[2:]
    for path in files:
        ids = [int(i) for i in np.random.default_rng(7).integers(0, vocab_of(path), TOKENS)]
        llama, single = llama_logits(path, ids, 512), llama_logits(path, ids, 1)
        ours = qeng_logits(sys.argv[1], path, ids)
        try:
            exact = exact_logits(path, ids)
        except NotImplementedError:  # a type that the package does not decode
            exact = None
        top = float((ours.argmax(-1) == llama.argmax(-1)).mean())
        kl = divergence(llama, ours)
        worst = max(worst, kl)
        print(f"{os.path.basename(path):40} {kl:11.3e} {divergence(exact, ours):11.3e} {divergence(exact, llama):11.3e} "
              f"{divergence(llama, single):11.3e} {top:7.1%} {'%7d %5d %5d' % greedy_agreement(sys.argv[1], path, ids[:PROMPT])}", flush=True)
    print(f"worst divergence from llama.cpp: {worst:.3e}")


main()
