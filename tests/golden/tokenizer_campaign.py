"""Compares qeng's ids with those of tiktoken and Hugging Face tokenizers, on data files and on random strings.

    python tests/golden/tokenizer_campaign.py DATA_FOLDER build/release/qeng_bench_tokenizers [STRINGS] [GRAMMAR ...]

needs tiktoken, tokenizers, and qwen.tiktoken in DATA_FOLDER. STRINGS: random strings a grammar, 1,000,000 unless given.
Every side has the vocabulary of qwen.tiktoken. NFC: qwen2 and qwen3.5 normalise, as their models do; the others do not.
What the sides are given, and why:
- Hugging Face reads qwen2 to o200k as published, cl100k without the plus behind {1,3}: to Oniguruma {1,3}+ is a repeated
  group and not a possessive one. "cl100k published" compares a tokenizer.json that holds the published text itself.
- tiktoken is given NFC text where the model normalises, since it does not itself.
- Code points are those assigned in Unicode 14 (Python 3.11's tables), so that newer tables agree.
- Bytes that are not UTF-8 go to qeng as they are, and to the others with each ill-formed piece replaced by U+FFFD.
Strings on which Hugging Face differs are explained if its normaliser makes of them something else than Python's does (its
tables are of before Unicode 10 and order few of the marks added since); any other difference is printed, and the exit
status is 1.
"""
import itertools, json, random, struct, subprocess, sys, tempfile, time, unicodedata
from pathlib import Path

import tiktoken
from tokenizers.normalizers import NFC

from tokenizer_oracle import PATTERNS, hugging_face, read_ranks

NORMALISED = {"qwen2", "qwen3.5"}
CHUNK = 20_000

LITERALS = (
    " |  |   |\t|\t\t|\n|\n\n|\r\n|\r|\r\n\r\n| \n|\n |  \n  |\u00a0|\u3000|\u2028|\u2029|\u0085|\x0b|\x0c|\u1680|\u2003|\u202f|\u200b|\ufeff|\x1c|"
    "'s|'t|'re|'ve|'m|'ll|'d|'S|'T|'Re|'vE|'M|'Ll|'LL|'D|'\u017f|'\u212a|'|''|\u2019s|'r|'l|'lL|'sx|'\u017ft|"
    "the| the|Hello| World|HTTPServer|iPhone|McDonald|camelCase|ABC|aB|Ab|\u01c5x|\u01c5|x\u01c8Y|\u00aa|\u02b0|\u05d0\u05d1|\u65e5\u672c|A\u65e5b|\u65e5A|"
    "1|12|123|1234|1234567|3.14|\u0663\u0664|\u096a|\u00bd|\u2160|\u00b2|\U0001d7d8|"
    "!|!!!|...\n|?\r\n|//|/|\n/|!/\n/|--|_|__init__|(a|(A|#|$%|\x00|\x7f|\u20ac|\u00d7|\u00b4|"
    "A\u030a|e\u0323\u0302|\u0301|\u0301\u0301|!\u0301|!\u0301a| \u0301| \u0301B|1\u0301|\u0301A|\u0301AB|A\u0301|AB\u0301C|\u0903|\u20dd|\ufe0f|"
    "\u1100\u1161\u11a8|\u0958|\ufb01|\u212b|\u0344|\u0130|\u0131|\u1e9e|\u03c2|\u0345|"
    "\U0001f468\u200d\U0001f469\u200d\U0001f467|\U0001f1eb\U0001f1f7|\u2764\ufe0f|\U0001f44d\U0001f3fd|<|im_start|>|<|endoftext|>|\U0001f600"
).split("|")
BAD = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\x80", b"\xfe\xff"]


def alphabets():
    """Code points by category, so that each class of the patterns is drawn often however small it is."""
    kinds = {}
    for code in range(0x110000):
        kinds.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    for unwanted in ("Cn", "Cs"):
        del kinds[unwanted]
    blocks = [[c for c in map(chr, range(first, last)) if unicodedata.category(c) not in ("Cn", "Cs")] for first, last in (
        (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0x1100, 0x1200), (0x1E00, 0x2000),
        (0x2000, 0x2070), (0x3000, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAE00), (0x1F300, 0x1F700))]
    return list(kinds.values()) + blocks


def random_texts(count, seed):
    draw, groups = random.Random(seed), alphabets()
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 10)):
            kind = draw.random()
            if kind < 0.5:
                parts.append(draw.choice(LITERALS))
            elif kind < 0.65:
                parts.append("".join(draw.choices("abcdefghijklmnopqrstuvwxyzABCDEF", k=draw.randint(1, 24))))
            elif kind < 0.7:
                parts.append(draw.choice(" \t\n\r!/a1A'") * draw.randint(1, 20))
            else:
                group = draw.choice(groups)
                parts.append("".join(draw.choices(group, k=draw.randint(1, 4))))
        data = "".join(parts).encode()
        if draw.random() < 0.05:
            at = draw.randint(0, len(data))
            data = data[:at] + draw.choice(BAD) + data[at:]
        yield data


def qeng_ids(command, texts):
    """The ids of each text, from a process that reads them with their lengths in front and answers in the same form."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(struct.pack("<I", len(text)) + text for text in texts))
        file.flush()
        answer = subprocess.run([*command[:2], file.name, *command[2:]], check=True, capture_output=True).stdout
    numbers = memoryview(answer).cast("i")
    at, results = 0, []
    while at < len(numbers):
        results.append(numbers[at + 1:at + 1 + numbers[at]].tolist())
        at += 1 + numbers[at]
    return results


def main():
    data, bench = Path(sys.argv[1]), sys.argv[2]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
    names = sys.argv[4:] or ["qwen2", "qwen3.5", "llama3", "cl100k", "o200k", "tekken", "gpt2", "cl100k published"]
    ranks = read_ranks(data / "qwen.tiktoken")
    failed = False
    for name in names:
        grammar = name.split()[0]
        pattern, normalise = PATTERNS[grammar], grammar in NORMALISED
        published = name.endswith("published")
        peer = hugging_face(ranks, pattern if published else pattern.replace("{1,3}+", "{1,3}"), normalise)
        encoding = tiktoken.Encoding(grammar, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        with tempfile.TemporaryDirectory() as folder:
            source = data / "qwen.tiktoken"
            if published:
                source = Path(folder) / "tokenizer.json"
                source.write_text(peer.to_str())
            command = [bench, str(source), grammar, "nfc" if normalise else "raw", "--ids"]
            texts = itertools.chain(((data / file).read_bytes() for file in ("wikitext2_test.txt", "code_alpaca_2k.json", "tiny_shakespeare.txt")),
                                    random_texts(count, f"{name} 1"))
            seen = ids = differ_tiktoken = differ_peer = explained = 0
            start = time.time()
            while chunk := list(itertools.islice(texts, CHUNK)):
                answers = qeng_ids(command, chunk)
                assert len(answers) == len(chunk)
                valid = [text.decode(errors="replace") for text in chunk]
                normal = [unicodedata.normalize("NFC", text) for text in valid] if normalise else valid
                for given, text, answer, peers in zip(valid, normal, answers, peer.encode_batch(valid, add_special_tokens=False)):
                    seen, ids = seen + 1, ids + len(answer)
                    if not published and answer != encoding.encode_ordinary(text):
                        differ_tiktoken += 1
                        print("tiktoken", name, ascii(text)[:300], answer[:20], encoding.encode_ordinary(text)[:20])
                    if answer != peers.ids:
                        differ_peer += 1
                        if normalise and NFC().normalize_str(given) != text:
                            explained += 1
                        else:
                            print("Hugging Face", name, ascii(text)[:300], answer[:20], peers.ids[:20])
                if differ_tiktoken + differ_peer - explained > 20:
                    break
            failed = failed or differ_tiktoken + differ_peer - explained > 0
            print(f"{name}: {seen} texts, {ids} ids; tiktoken differs on {'(not compared)' if published else differ_tiktoken}, Hugging Face on "
                  f"{differ_peer}, of which its normaliser's tables explain {explained}; {time.time() - start:.0f} s", flush=True)
    sys.exit(failed)


main()
