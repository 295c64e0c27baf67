"""Qwen's rank file: the same ids as tiktoken and Hugging Face's tokenizers have."""
import pathlib
import sys

import qeng
import tiktoken
from peers import DATA, HERE, TEXT, Skip, check, same_ids

sys.path.insert(0, str(HERE.parent / "golden"))
from tokenizer_oracle import PATTERNS, hugging_face, read_ranks  # noqa: E402

LETTERS = 300_000  # of a file: seconds


def texts():
    yield "text.txt", TEXT
    for name in "wikitext2_test.txt", "code_alpaca_2k.json":
        path = pathlib.Path(DATA, name)
        if path.is_file():
            yield name, path.read_text(encoding="utf-8")[:LETTERS]


with check("tokens of qwen.tiktoken"):
    ranks = pathlib.Path(DATA, "qwen.tiktoken")
    if not DATA or not ranks.is_file():
        raise Skip("QENG_DATA has no qwen.tiktoken")
    table, named = read_ranks(ranks), dict(texts())
    tiktokens = tiktoken.Encoding("qwen", pat_str=PATTERNS["qwen2"], mergeable_ranks=table, special_tokens={})
    tokenizers = hugging_face(table, PATTERNS["qwen2"])
    ours = qeng.answers(tokenizer=str(ranks), texts=list(named.values()))["tokens"]
    for (name, text), ids in zip(named.items(), ours):
        with check(f"tokens of tiktoken: {name}"):
            same_ids(ids, tiktokens.encode_ordinary(text), name, "tiktoken")
        with check(f"tokens of Hugging Face's tokenizers: {name}"):
            same_ids(ids, tokenizers.encode(text, add_special_tokens=False).ids, name, "tokenizers")
