"""What the scripts that compare tokenizers share: the published patterns, and qwen.tiktoken's vocabulary in other libraries."""
import base64
import json

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = {
    "qwen2": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL,
    "qwen3.5": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL,
    "llama3": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL,
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": O200K_LOWER + "|" + O200K_UPPER + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL,
    "tekken": O200K_LOWER.removesuffix(CONTRACTION + "?") + "|" + O200K_UPPER.removesuffix(CONTRACTION + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL,
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


def read_ranks(path):
    ranks = {}
    for line in path.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return ranks


def printable_codes():
    codes, spare = [], 256
    for byte in range(256):
        shows = 33 <= byte <= 126 or 0xA1 <= byte <= 0xAC or byte >= 0xAE
        codes.append(chr(byte if shows else spare))
        spare += not shows
    return codes


PRINTABLE = printable_codes()


def printable(data):
    """GPT-2's spelling of bytes."""
    return "".join(PRINTABLE[byte] for byte in data)


def tokenizer_json(ranks, pattern, nfc=True):
    """The vocabulary as the object of a tokenizer.json. Two neighbours merge wherever their concatenation is a token."""
    merges = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            if token[:cut] in ranks and token[cut:] in ranks:
                merges.append((rank, ranks[token[:cut]], ranks[token[cut:]], printable(token[:cut]), printable(token[cut:])))
    merges.sort()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                      "vocab": {printable(token): rank for token, rank in ranks.items()},
                      "merges": [[left, right] for *_, left, right in merges]}}


def hugging_face(ranks, pattern, nfc=True):
    from tokenizers import Tokenizer
    return Tokenizer.from_str(json.dumps(tokenizer_json(ranks, pattern, nfc)))
