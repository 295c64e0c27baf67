#!/usr/bin/env python3
"""Writes random llama, qwen2 and qwen3 models with vocabularies of some 2,000 tokens as HF folders OUT/llama, OUT/qwen2 and
OUT/qwen3: small enough for the perplexity of a whole text in every type of weights (llama_perplexity.py).

    python small_models.py OUT QWEN.tiktoken LLAMA2_TOKENIZER.model

The tokenizers are the first merges of the given ones. Needs torch, transformers, tokenizers, tiktoken, sentencepiece, protobuf.
"""
import json
import os
import sys
import tempfile

import torch
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden"))
import make_random_model  # noqa: E402

MERGES = 2048
SHAPE = dict(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=512,
             max_position_embeddings=2048)


def write_model(folder, config):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.06)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.02)
            else:
                parameter.normal_(1, 0.1)
    model.to(torch.bfloat16).save_pretrained(folder)


def write_qwen(folder, kind, tiktoken, **more):
    special = MERGES  # they follow the ranks
    write_model(folder, kind(vocab_size=MERGES + 64, tie_word_embeddings=True, rope_theta=1e6, bos_token_id=special,
                             eos_token_id=special + 2, **SHAPE, **more))
    with tempfile.NamedTemporaryFile("w", suffix=".tiktoken") as first, open(tiktoken) as all_of_them:
        first.writelines(line for line in all_of_them if line.strip() and int(line.split()[1]) < MERGES)
        first.flush()
        make_random_model.write_tokenizer(first.name, folder)


def write_llama(folder, sentencepiece):
    vocabulary = sentencepiece_model_pb2.ModelProto()
    with open(sentencepiece, "rb") as f:
        vocabulary.ParseFromString(f.read())
    kept = list(vocabulary.pieces)[:259 + MERGES]  # <unk>, <s>, </s> and the bytes come first
    have = {piece.piece for piece in kept}
    kept += [piece for piece in vocabulary.pieces[len(kept):] if len(piece.piece) == 1 and ord(piece.piece) < 0x2800 and piece.piece not in have]
    kept = kept[:len(kept) // 64 * 64]
    del vocabulary.pieces[:]
    vocabulary.pieces.extend(kept)
    write_model(folder, LlamaConfig(vocab_size=len(kept), tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, **SHAPE))
    with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
        f.write(vocabulary.SerializeToString())
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(dict(tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=False, bos_token="<s>", eos_token="</s>",
                       unk_token="<unk>", model_max_length=2048, legacy=True), f)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    out, tiktoken, sentencepiece = sys.argv[1:]
    torch.manual_seed(7)
    write_qwen(os.path.join(out, "qwen2"), Qwen2Config, tiktoken)
    write_qwen(os.path.join(out, "qwen3"), Qwen3Config, tiktoken, head_dim=64)
    write_llama(os.path.join(out, "llama"), sentencepiece)


main()
