"""Random strings by tokenizers of every kind: whether qeng's ids are those of Hugging Face's tokenizers, tiktoken and SentencePiece.

    QENG_PEERS_WORK=DIR PYTHON tests/campaigns/tokens.py STRINGS [KIND=FILE ...]

PYTHON has tokenizers, tiktoken and sentencepiece. Each kind of tokenizer.json (tests/golden/pipeline_golden.py), each list of
patterns that a label of GGUF stands for (cutter_golden.py) before byte-level BPE, and SentencePiece's two kinds are trained
here; FILE is another: KIND tiktoken:GRAMMAR (tokenizer_oracle.py), sentencepiece or tokenizers. Strings on which the two
differ are printed, three a kind; exit status 1.
"""

import json
import os
import pathlib
import random
import sys
import tempfile
import unicodedata

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "golden"), str(HERE.parent / "peers")]
import cutter_golden  # noqa: E402
import pipeline_golden  # noqa: E402
import qeng  # noqa: E402
import sentencepiece  # noqa: E402
import tiktoken  # noqa: E402
from tokenizer_oracle import PATTERNS, read_ranks  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

r = random.Random(5)
KINDS = {}  # code points by category, of those that stand there since Unicode 3.2: tables differ in the later ones
for code in range(0x110000):
    kind = unicodedata.category(chr(code))
    if kind == unicodedata.ucd_3_2_0.category(chr(code)):
        KINDS.setdefault(kind, []).append(chr(code))
KINDS = [codes for kind, codes in KINDS.items() if kind not in ("Cn", "Cs", "Co")]
PARTS = cutter_golden.PARTS + pipeline_golden.PARTS


def text():
    parts = []
    for _ in range(r.randint(1, 10)):
        kind = r.random()
        letters = "abcdefghijklmnopqrstuvwxyzABC 0123456789\n.,!'-"
        parts.append(
            r.choice(PARTS)
            if kind < 0.6
            else r.choice(r.choice(KINDS)) if kind < 0.8 else "".join(r.choices(letters, k=r.randint(1, 6)))
        )
    return "".join(parts)


def byte_level(patterns, corpus):
    """Byte-level BPE behind these patterns."""
    tokenizer = Tokenizer(models.BPE())
    cuts = [cutter_golden.build(cutter_golden.split(pattern)) for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def of_tokenizers(tokenizer, path):
    path.mkdir(), tokenizer.save(str(path / "tokenizer.json"))
    return path, lambda texts: [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def of_sentencepiece(path):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return path, processor.encode


def of_tiktoken(path, grammar):
    encoding = tiktoken.Encoding(
        grammar, pat_str=PATTERNS[grammar], mergeable_ranks=read_ranks(path), special_tokens={}
    )
    normal = (lambda one: unicodedata.normalize("NFC", one)) if grammar in ("qwen2", "qwen3.5") else str
    return path, lambda texts: [encoding.encode_ordinary(normal(one)) for one in texts]


def trained(folder, corpus):
    """(name, path, texts -> ids) of what is made here."""
    for name, tokenizer in pipeline_golden.kinds(corpus, 3000):
        yield name, *of_tokenizers(tokenizer, folder / name)
    for name, patterns in cutter_golden.patterns_of_labels().items():
        yield f"patterns of {name}", *of_tokenizers(byte_level(patterns, corpus), folder / f"patterns of {name}")
    for kind in "unigram", "bpe":
        for rule in "nmt_nfkc", "identity":
            path = folder / f"{kind}.{rule}.model"
            with open(path, "wb") as file:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=iter([one.replace("\0", "").replace("\n", " ") for one in corpus]),
                    model_writer=file,
                    model_type=kind,
                    vocab_size=4000,
                    byte_fallback=True,
                    normalization_rule_name=rule,
                    hard_vocab_limit=False,
                    character_coverage=0.99,
                    minloglevel=2,
                )
            yield f"SentencePiece {kind} {rule}", *of_sentencepiece(path)


def given(arguments):
    for argument in arguments:
        kind, _, path = argument.partition("=")
        path, (kind, _, grammar) = pathlib.Path(path), kind.partition(":")
        of = {"tiktoken": lambda: of_tiktoken(path, grammar), "sentencepiece": lambda: of_sentencepiece(path)}
        made = of[kind]() if kind in of else None
        if not made:
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
            made = path, lambda texts: [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
        yield argument, *made


def main():
    texts, failed = [text() for _ in range(int(sys.argv[1]))], False
    corpus = [text() for _ in range(6000)]
    with tempfile.TemporaryDirectory() as folder:
        made = given(sys.argv[2:]) if len(sys.argv) > 2 else trained(pathlib.Path(folder), corpus)
        for name, path, ids in made:
            want, got = ids(texts), qeng.answers(tokenizer=str(path), texts=texts, special=path.is_dir())["tokens"]
            differ = [i for i in range(len(texts)) if got[i] != list(want[i])]
            print(f"{name}: {len(texts) - len(differ):,} of {len(texts):,} strings", flush=True)
            for i in differ[:3]:
                print(f"  {texts[i]!r}: {got[i]}, expected {list(want[i])}")
            failed |= bool(differ)
    sys.exit(failed)


if __name__ == "__main__":
    main()
