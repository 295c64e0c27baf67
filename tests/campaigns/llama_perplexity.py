"""Perplexity of a text by qeng and by llama.cpp, on the same tokens and by llama.cpp's default method (512-token windows that
do not overlap, BOS first where the model adds one, second halves scored).

    python llama_perplexity.py QENG TEXT WINDOWS MODEL.gguf [MODEL.gguf ...]

Needs numpy and llama-cpp-python. WINDOWS 0: all.
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import llama_cpp as L
import numpy as np

CONTEXT = 512


def llama(path, text, windows):
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    vocab = L.llama_model_get_vocab(model)
    size, bos, adds = L.llama_vocab_n_tokens(vocab), L.llama_vocab_bos(vocab), L.llama_vocab_get_add_bos(vocab)
    raw = text.encode()
    room = len(raw) + 8
    ids = (L.llama_token * room)()
    count = L.llama_tokenize(vocab, raw, len(raw), ids, room, True, False)
    params = L.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
    params.n_threads = params.n_threads_batch = 2
    context = L.llama_init_from_model(model, params)
    memory, first, nll, scored = L.llama_get_memory(context), CONTEXT // 2, 0.0, 0
    total = count // CONTEXT
    for window in range(min(total, windows) if windows else total):
        piece = list(ids[window * CONTEXT : (window + 1) * CONTEXT])
        given = [bos] + piece[1:] if adds else piece
        L.llama_memory_clear(memory, True)
        batch = L.llama_batch_init(CONTEXT, 0, 1)
        batch.n_tokens = CONTEXT
        for i, token in enumerate(given):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, i >= first
        if L.llama_decode(context, batch):
            sys.exit(f"{path}: llama_decode failed")
        rows = np.ctypeslib.as_array(L.llama_get_logits(context), (CONTEXT - first, size))[:-1]
        top = rows.max(axis=1, keepdims=True)
        chosen = rows[np.arange(len(rows)), piece[first + 1 :]].astype(np.float64)
        nll += float((top[:, 0] + np.log(np.exp(rows - top).sum(axis=1, dtype=np.float64)) - chosen).sum())
        scored += len(rows)
        L.llama_batch_free(batch)
    L.llama_free(context)
    L.llama_model_free(model)
    return float(np.exp(nll / scored)), scored


def qeng(executable, path, text_file, windows):
    recipe = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../recipes/perplexity.lua")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "figures.json")
        command = [executable, recipe, "--model", path, "--data", text_file, "--windows", str(windows), "--kv", "f16", "--dtype", "f32", "--out", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        figures = json.load(open(out))
        return figures["ppl"], figures["count"]


def main():
    quiet = L.llama_log_callback(lambda level, text, user: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    executable, text_file, windows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    text = open(text_file, encoding="utf-8", newline="").read()
    for path in sys.argv[4:]:
        ours, count = qeng(executable, path, text_file, windows)
        theirs, scored = llama(path, text, windows)
        print(f"{os.path.basename(path):36} qeng {ours:12.4f} ({count})  llama.cpp {theirs:12.4f} ({scored})  {100 * (ours / theirs - 1):+.4f} %", flush=True)


main()
