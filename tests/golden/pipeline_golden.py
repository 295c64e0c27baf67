#!/usr/bin/env python3
"""Small tokenizers of every kind of tokenizer.json, and what Hugging Face's tokenizers answer with them, for
tests/unit/pipeline_test.cpp: python3 pipeline_golden.py > pipeline_golden.json

With --campaign N FOLDER: larger ones, N random strings, written as FOLDER/KIND.json, strings.json and KIND.ids.json."""
import io
import json
import random
import sys
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PARTS = [
    "Hello", "world", "the", "then", "there", "don't", "naïve", "e\u0301tude", "Ａｂｃ", "ﬁn", "12", "1234567", "½", " ", " ", "  ", "   ", "\n", "\t", "\u00a0", "\u3000",
    "你好世界", "こんにちは", "カタカナ", "안녕", "नमस्ते", "مرحبا", "ไทย", "Привет", "İSTANBUL", "Σας", "…", "，。", "()", "->", "_x_", "$9", "😀", "👩\u200d👧", "ſK", "a.b,c", "'s",
    "\u0001", "\u200b", "\ufeff", "▁", "<s>", "</s>", "<unk>", "[MASK]",
]


def draw(most=12):
    return "".join(random.choice(PARTS) for _ in range(random.randrange(1, most)))


def charsmap(whole):
    """SentencePiece's own map, or one of a few rules."""
    model, rules = io.BytesIO(), Path("/tmp/pipeline_golden_rules.tsv")
    rules.write_text("".join("".join(f"{ord(c):X} " for c in a).strip() + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n"
                             for a, b in [("ﬁ", "fi"), ("Ａ", "A"), ("\u3000", " "), ("\u00a0", " "), ("½", "1/2"), ("…", "..."), ("\u200b", " "), ("e\u0301", "é"), ("\t", " ")]))
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c", "the cat"] * 50), model_writer=model, vocab_size=12,
                                             hard_vocab_limit=False, minloglevel=2, **({} if whole else {"normalization_rule_tsv": str(rules)}))
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def bytes_and(specials):
    return specials + [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(corpus, size, normalizer, pre, decoder, suffix=None, byte_fallback=True, fuse=True, **options):
    """BPE trained on the normalized text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=byte_fallback, **({"end_of_word_suffix": suffix} if suffix else {})))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre
    if decoder:
        tokenizer.decoder = decoder
    specials = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=bytes_and(specials) if byte_fallback else specials, show_progress=False, limit_alphabet=90,
                                  **({"end_of_word_suffix": suffix} if suffix else {}), **options)
    tokenizer.train_from_iterator(corpus, trainer)
    made = json.loads(tokenizer.to_str())
    made["added_tokens"] = [token for token in made["added_tokens"] if token["content"] in specials]
    return Tokenizer.from_str(json.dumps(made))


def kinds(corpus, size):
    space = normalizers.Replace(" ", "▁")
    back = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    yield "llama2", bpe(corpus, size, normalizers.Sequence([normalizers.Prepend("▁"), space]), None, back)
    yield "mistral", bpe(corpus, size, None, pre_tokenizers.Metaspace("▁", "first", False), back)
    yield "gemma", bpe(corpus, size, space, pre_tokenizers.Split(" ", "merged_with_previous"),
                       decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]))
    yield "metaspace", bpe(corpus, size, normalizers.NFKD(), pre_tokenizers.Metaspace("▁", "always", True),
                           decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))
    yield "clip", bpe(corpus, size, normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
                      pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                      decoders.ByteLevel(), suffix="</w>", byte_fallback=False)
    lower = Tokenizer(models.BPE())
    lower.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()])
    lower.pre_tokenizer, lower.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    lower.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    yield "lowercase", lower

    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap(size > 1000)), normalizers.Replace(Regex(" {2,}"), " ")])
    unigram.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    unigram.decoder = decoders.Metaspace()
    unigram.train_from_iterator(corpus, trainers.UnigramTrainer(vocab_size=size, unk_token="<unk>", special_tokens=["<s>", "</s>", "<unk>"], show_progress=False))
    yield "unigram", unigram

    bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    bert.normalizer, bert.pre_tokenizer, bert.decoder = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    bert.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=size, special_tokens=["[UNK]", "[MASK]"], show_progress=False, limit_alphabet=60))
    bert.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    yield "bert", bert

    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.normalizer, words.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Whitespace()
    words.train_from_iterator(corpus, trainers.WordLevelTrainer(vocab_size=size, special_tokens=["<unk>"], show_progress=False))
    yield "words", words

    yield "white space", bpe(corpus, size, normalizers.Lowercase(), pre_tokenizers.Whitespace(), None, byte_fallback=False, fuse=False)


def main():
    random.seed(3)
    campaign = len(sys.argv) > 1
    corpus = [draw() for _ in range(4000)]
    made = {}
    if campaign:
        count, folder = int(sys.argv[2]), Path(sys.argv[3])
        extra = [Path(__file__).read_text()[i : i + 60] for i in range(0, 6000, 60)]
        texts = [draw(14) if random.random() < 0.7 else draw(4) + random.choice(extra) + chr(random.randrange(0xA0, 0xD7FF)) for _ in range(count)]
        (folder / "strings.json").write_text(json.dumps(texts))
        corpus += extra
    else:
        texts = [draw() for _ in range(40)] + ["", " ", "  the", "<s>the</s> world"]
    for name, tokenizer in kinds(corpus, 3000 if campaign else 420):
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
        if campaign:
            (folder / f"{name}.json").write_text(tokenizer.to_str())
            (folder / f"{name}.ids.json").write_text(json.dumps(ids))
        else:
            plain = [tokenizer.decode(line, skip_special_tokens=False) for line in ids]
            made[name] = {"tokenizer": json.loads(tokenizer.to_str()), "ids": ids, "decoded": plain}
    if not campaign:
        print(json.dumps({"texts": texts, "kinds": made}, separators=(",", ":")))


if __name__ == "__main__":
    main()
