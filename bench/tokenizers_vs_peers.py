"""Encoding on one thread: qeng, tiktoken and Hugging Face tokenizers, side by side on the same texts.

    python bench/tokenizers_vs_peers.py DATA_FOLDER build/release/qeng_bench_tokenizers [GRAMMAR] [--cpu N]

needs tiktoken and tokenizers, and qwen.tiktoken, wikitext2_test.txt, code_alpaca_2k.json in DATA_FOLDER. All three have the
vocabulary of qwen.tiktoken and the pattern of GRAMMAR (qwen2), the peers as an Encoding and as a tokenizer.json read back.
Texts: each file whole, and document by document (articles' paragraphs; each string of a record). Each side encodes all
of a text six times; the first pass, caches cold, is a column of its own, the others' median is the figure. Time is the
thread's processor time, so that other programs on the machine do not count. The three take
turns, text by text, and must agree on every id. Prints a Markdown table.
"""
import json, os, statistics, struct, subprocess, sys, tempfile, time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden"))

import tiktoken
import tokenizers

from tokenizer_oracle import PATTERNS, hugging_face, read_ranks

PASSES, MASK = 6, (1 << 64) - 1


def documents(data):
    wikitext = (data / "wikitext2_test.txt").read_bytes().decode()
    yield "wikitext2_test.txt", "whole", [wikitext]
    yield "wikitext2_test.txt", "by paragraph", [line for line in wikitext.splitlines(keepends=True) if line.strip()]
    alpaca = (data / "code_alpaca_2k.json").read_bytes().decode()
    yield "code_alpaca_2k.json", "whole", [alpaca]
    yield "code_alpaca_2k.json", "by string", [text for record in json.loads(alpaca) for text in record.values() if text]


def fnv(lists):
    value = 0xCBF29CE484222325
    for ids in lists:
        for number in ids:
            value = ((value ^ number) * 0x100000001B3) & MASK
    return f"{value:016x}"


def measure(encode, texts):
    seconds = []
    for _ in range(PASSES):
        start = time.thread_time()
        results = [encode(text) for text in texts]
        seconds.append(time.thread_time() - start)
    return seconds, results


def main():
    arguments = sys.argv[1:]
    if "--cpu" in arguments:
        at = arguments.index("--cpu")
        os.sched_setaffinity(0, {int(arguments[at + 1])})
        del arguments[at:at + 2]
    data, bench = Path(arguments[0]), arguments[1]
    grammar = arguments[2] if len(arguments) > 2 else "qwen2"
    ranks = read_ranks(data / "qwen.tiktoken")
    encoding = tiktoken.Encoding(grammar, pat_str=PATTERNS[grammar], mergeable_ranks=ranks, special_tokens={})
    peer = hugging_face(ranks, PATTERNS[grammar])
    print(f"tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}, grammar {grammar}; MB/s, median of "
          f"{PASSES - 1} (first pass); load average {os.getloadavg()[0]:.2f}\n")
    print("| text | MB | tokens | qeng | tiktoken | HF tokenizers | qeng / tiktoken | qeng / HF |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, cut, texts in documents(data):
            raw = [text.encode() for text in texts]
            size = sum(map(len, raw))
            path = Path(folder) / "documents"
            path.write_bytes(b"".join(struct.pack("<I", len(text)) + text for text in raw))
            ours = json.loads(subprocess.run([bench, data / "qwen.tiktoken", path, grammar], check=True, capture_output=True).stdout)
            sides = [ours["seconds"]]
            for encode in (encoding.encode_ordinary, lambda text: peer.encode(text, add_special_tokens=False).ids):
                seconds, results = measure(encode, texts)
                sides.append(seconds)
                if fnv(results) != ours["fnv"]:
                    print(f"ids of {name} {cut} differ: {ours['ids']} and {sum(map(len, results))}", file=sys.stderr)
                    sys.exit(1)
            rates = [size / statistics.median(seconds[1:]) / 1e6 for seconds in sides]
            cells = [f"{rate:.1f} ({size / seconds[0] / 1e6:.1f})" for rate, seconds in zip(rates, sides)]
            print(f"| {name} {cut} | {size / 1e6:.2f} | {ours['ids']} | {' | '.join(cells)} | "
                  f"{rates[0] / rates[1]:.1f} | {rates[0] / rates[2]:.1f} |", flush=True)


main()
