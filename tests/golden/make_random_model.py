#!/usr/bin/env python3
"""Writes a randomly initialised HF folder of a real model's shape, with a tokenizer that works.

    python3 tests/golden/make_random_model.py --preset qwen2.5-0.5b --out /tmp/qwen05 --tokenizer ../shared/data/qwen.tiktoken

So the Qwen benchmark and its recipe run where nothing can be downloaded. Needs torch, transformers, tokenizers, tiktoken.
"""
import argparse
import base64
import json
import os

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

SHAPES = {
    "qwen2.5-0.5b": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
                         intermediate_size=4864, max_position_embeddings=32768),
    "small": dict(hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=352, max_position_embeddings=2048),
}
VOCAB = 151936  # rows of the embedding; the tokenizer uses fewer
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # follow the ranks: 151643, 151644, 151645
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_letters():
    """The printable character that stands for each byte in a ByteLevel vocabulary."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {b: chr(b) for b in kept}, 256
    for b in range(256):
        if b not in letters:
            letters[b], extra = chr(extra), extra + 1
    return letters


def halves(token, ranks):
    """The two pieces whose merge made `token`: byte-pair encoding of it with only the ranks below its own."""
    pieces, own = [token[i:i + 1] for i in range(len(token))], ranks[token]
    while len(pieces) > 2:
        rank, i = min((ranks.get(a + b, own), i) for i, (a, b) in enumerate(zip(pieces, pieces[1:])))
        if rank >= own:
            raise ValueError(f"{token!r}: no chain of merges leads to it")
        pieces[i:i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces


def write_tokenizer(tiktoken_file, out):
    with open(tiktoken_file, "rb") as f:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in f if line.strip())}
    letters = byte_letters()
    spell = lambda token: "".join(letters[b] for b in token)
    vocab = {spell(t): r for t, r in ranks.items()}
    merges = [[spell(p) for p in halves(t, ranks)] for t, _ in sorted(ranks.items(), key=lambda x: x[1]) if len(t) > 1]
    added = [dict(id=len(vocab) + i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, s in enumerate(SPECIAL)]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer = dict(
        version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=dict(type="NFC"),
        pre_tokenizer=dict(type="Sequence", pretokenizers=[
            dict(type="Split", pattern=dict(Regex=SPLIT), behavior="Isolated", invert=False), level]),
        post_processor=level, decoder=level,
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="",
                   fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab, merges=merges))
    save(out, "tokenizer.json", tokenizer)
    save(out, "tokenizer_config.json", dict(
        tokenizer_class="Qwen2Tokenizer", add_bos_token=False, add_prefix_space=False, bos_token=None, eos_token="<|im_end|>",
        pad_token="<|endoftext|>", unk_token=None, errors="replace", clean_up_tokenization_spaces=False, split_special_tokens=False,
        model_max_length=32768, chat_template=TEMPLATE, additional_special_tokens=SPECIAL[1:],
        added_tokens_decoder={str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in added}))
    check_tokenizer(out, ranks)


def check_tokenizer(out, ranks):
    import tiktoken
    from transformers import AutoTokenizer
    ours = AutoTokenizer.from_pretrained(out)
    theirs = tiktoken.Encoding("qwen", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    text = "def f(x):\n    return x[1:]  # naïve 12345 我们 \u0915\u093f ½ 🙂\r\n\n  \t x  y'LL don't\n"
    assert ours.encode(text) == theirs.encode(text), "tokenizer.json differs from tiktoken"
    assert ours.encode("<|im_start|>a<|im_end|>") == [len(ranks) + 1, ranks[b"a"], len(ranks) + 2]


def save(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", choices=["qwen2"], default="qwen2")
    parser.add_argument("--preset", choices=list(SHAPES), default="qwen2.5-0.5b")
    parser.add_argument("--out", required=True)
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--tokenizer", help="a .tiktoken file, written out as tokenizer.json")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    os.makedirs(options.out, exist_ok=True)
    config = Qwen2Config(vocab_size=VOCAB, tie_word_embeddings=True, rms_norm_eps=1e-6, bos_token_id=151643, eos_token_id=151645,
                         rope_parameters=dict(rope_type="default", rope_theta=1e6), **SHAPES[options.preset])
    model = AutoModelForCausalLM.from_config(config, dtype=dict(bf16=torch.bfloat16, f32=torch.float32)[options.dtype])
    model.save_pretrained(options.out)
    save(options.out, "generation_config.json", dict(bos_token_id=151643, eos_token_id=[151645, 151643], pad_token_id=151643,
                                                     do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1))
    if options.tokenizer:
        write_tokenizer(options.tokenizer, options.out)
    print(f"{options.out}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters, {options.dtype}")


if __name__ == "__main__":
    main()
