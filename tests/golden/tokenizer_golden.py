"""Makes tests/golden/tokenizer_golden.json: what other tokenizers answer, as hashes.

    python tokenizer_golden.py DATA_FOLDER     (needs tiktoken, tokenizers, sentencepiece and qwen.tiktoken in DATA_FOLDER)

Texts are the two data files, whole, and 100,000 random strings of a generator that tests/unit/tokenizer_test.cpp repeats:
a 64-bit linear congruential generator draws literals and code points from the lists in the golden file. Only code points
assigned in Unicode 14 are drawn, so that oracles with newer tables agree. NFC is applied to the text before tiktoken, as the
Hugging Face tokenizers of Qwen2 and later do; the same vocabulary as a tokenizer.json in Hugging Face tokenizers is checked
to give the same ids on every tenth string.
"""
import json, sys, unicodedata
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers.normalizers import NFC

from tokenizer_oracle import PATTERNS, hugging_face, read_ranks

assert unicodedata.unidata_version == "14.0.0", "code points must come from Unicode 14"
BLOCKS = [  # first, last code point: scripts with and without case, marks that compose and reorder, digits, symbols, emoji
    (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x52F), (0x531, 0x5F4), (0x600, 0x6FF),
    (0x900, 0xDFF), (0xE01, 0xFFF), (0x10A0, 0x11FF), (0x1780, 0x17F9), (0x1AB0, 0x1ACE), (0x1DC0, 0x1EFF), (0x1F00, 0x1FFE),
    (0x2000, 0x20F0), (0x2100, 0x2BFF), (0x3000, 0x30FF), (0x3105, 0x33FF), (0x4E00, 0x9FFF), (0xA960, 0xA97C),
    (0xAC00, 0xD7FB), (0xF900, 0xFAD9), (0xFB00, 0xFDFF), (0xFE00, 0xFFFD), (0x10400, 0x1049D), (0x11080, 0x1114F),
    (0x16A40, 0x16AF5), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0100, 0xE01EF),
]
LITERALS = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\x0b", "\x0c", " \n ",
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'Re", "'VE", "'M", "'Ll", "'D", "'\u017f", "'\u212a", "'", "''",
    "\u2019s", "the", " the", "Hello", " world", "1234567", "3.14", "\u0663\u0664", "\u096a", "\u00bd", "\u2160", "!!!", "...\n",
    "<|im_start|>", "<|endoftext|>", "def f(x):\n    return x", "\u0041\u030a", "\u0065\u0323\u0302", "\u1100\u1161\u11a8",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1eb\U0001f1f7", "\ufeff", "\x00", "\u200b", "\u0130", "\ufb03",
]
STRINGS, GROUP, SEED, MASK = 100_000, 1000, 20240817, (1 << 64) - 1


def assigned_runs():
    runs = []
    for first, last in BLOCKS:
        start = None
        for code in range(first, last + 2):
            good = code <= last and unicodedata.category(chr(code)) not in ("Cn", "Cs")
            if good and start is None:
                start = code
            if not good and start is not None:
                runs.append([start, code - 1])
                start = None
    return runs


def random_strings(runs):
    state = SEED

    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        return (state >> 33) % n

    for _ in range(STRINGS):
        parts = []
        for _ in range(1 + draw(12)):
            kind = draw(4)
            if kind == 0:
                parts.append(LITERALS[draw(len(LITERALS))])
            elif kind == 1:
                parts.append("".join(chr(97 + draw(26)) for _ in range(1 + draw(8))))
            else:
                first, last = runs[draw(len(runs))]
                parts.append("".join(chr(first + draw(last - first + 1)) for _ in range(1 + draw(4))))
        yield "".join(parts)


def fnv(hash_value, ids):
    for number in [len(ids), *ids]:
        hash_value = ((hash_value ^ number) * 0x100000001B3) & MASK
    return hash_value


def hash_groups(texts, encode):
    hashes = []
    for i, text in enumerate(texts):
        if i % GROUP == 0:
            hashes.append(0xCBF29CE484222325)
        hashes[-1] = fnv(hashes[-1], encode(text))
    return [f"{value:016x}" for value in hashes]


def main():
    data = Path(sys.argv[1])
    ranks = read_ranks(data / "qwen.tiktoken")
    files = {name:(data / name).read_bytes().decode()
             for name in ("wikitext2_test.txt", "code_alpaca_2k.json")}
    runs = assigned_runs()
    strings = list(random_strings(runs))
    golden = {"seed": SEED, "strings": STRINGS, "group": GROUP, "runs": runs, "literals": LITERALS, "files": {}, "random": {}}
    normal = lambda text: unicodedata.normalize("NFC", text)
    for name, pattern in PATTERNS.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        encode = lambda text: encoding.encode_ordinary(normal(text))
        golden["random"][name] = hash_groups(strings, encode)
        golden["files"][name] = {file: hash_groups([text], encode)[0] for file, text in files.items()}
        peer = hugging_face(ranks, pattern.replace("{1,3}+", "{1,3}"))  # to Oniguruma {1,3}+ is not possessive
        sample = strings[::10]
        differ = [t for t, e in zip(sample, peer.encode_batch(sample)) if e.ids != encode(t)]
        # Its normaliser has tables of before Unicode 10 and leaves many marks of later versions where they are.
        unexplained = [ascii(t) for t in differ if NFC().normalize_str(t) == normal(t)]
        print(name, "Hugging Face differs on", len(differ), "of", len(sample), "unexplained:", unexplained, flush=True)
    llama = sentencepiece.SentencePieceProcessor(model_file=str(data / "llama2_tokenizer.model"))
    golden["random"]["llama2"] = hash_groups(strings[:20_000], lambda text: llama.encode(text))
    golden["files"]["llama2"] = {
        file: hash_groups([text.encode()[:100_000].decode(errors="replace")], lambda t: llama.encode(t))[0] for file, text in files.items()}
    out = Path(__file__).with_name("tokenizer_golden.json")
    out.write_text(json.dumps(golden, separators=(",", ":")).replace("],\"", "],\n\"") + "\n")
    print(out, out.stat().st_size, "bytes")


main()
