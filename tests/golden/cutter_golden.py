#!/usr/bin/env python3
"""Pieces that Hugging Face's tokenizers cut texts into, for tests/unit/cutter_test.cpp: python3 cutter_golden.py > cutter_golden.json
The patterns of GGUF's labels are those of llama.cpp and of the models' tokenizer.json (engine/tokenizer/gguf_pretokenizers.cpp)."""
import json
import random
import re
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

PARTS = [
    "Hello", "world", "don't", "I'LL", "we've", "naïve", "e\u0301tude", "12", "1234567", "3.14", "１２３４", "½Ⅷ", " ", "  ", "   ", "\n", "\r\n",
    "\n\n", "\t", "\u00a0", "\u3000", "\u2003", "\x85", "你好世界", "こんにちは", "カタカナ", "안녕하세요", "ㄅㄆㄇ", "नमस्ते", "مرحبا", "ไทย", "Привет", "…", "，。！", "()[]{}",
    "->", "!=", "_x_", "$", "€9", "#tag", "😀", "👩\u200d👧", "ſK", "\u2126\u212a\u1fbe\u1fd3", "/path/x.py", "a.b,c", "'s", "''", "ⓐ🄰", "\u0e01\u0301",
]
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def build(part):
    if part["type"] == "Split":
        name = re.sub(r"(?<!^)([A-Z])", r"_\1", part["behavior"]).lower()
        return pre_tokenizers.Split(Regex(part["pattern"]["Regex"]), name, part["invert"])
    if part["type"] == "Digits":
        return pre_tokenizers.Digits(part["individual_digits"])
    if part["type"] == "Punctuation":
        return pre_tokenizers.Punctuation(re.sub(r"(?<!^)([A-Z])", r"_\1", part["behavior"]).lower())
    return {"Whitespace": pre_tokenizers.Whitespace, "WhitespaceSplit": pre_tokenizers.WhitespaceSplit}[part["type"]]()


def patterns_of_labels():
    """The lists of gguf_pretokenizers.cpp, from the golden file's own copy: written once by hand in LABELS."""
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    words = " ?[^(\\s|.,!?…。，、।۔،)]+"
    cjk = "[一-龥ࠀ-一가-\ud7ff]+"
    contractions, ends = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    letters, signs = r"[^\r\n\p{L}\p{N}]?\p{L}+|", r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    upper, lower = (r"(?:(?!\p{Han})[\p{L%s}\p{L%s}\p{Lm}\p{Lo}\p{M}])" % pair for pair in (("u", "t"), ("l", "l")))
    before = r"[^\r\n\p{L}\p{N}]?"
    runs = "".join(r"|\s{%s}(?!\S)" % n for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    return {
        "kimi-k2": [rf"[\p{{Han}}]+|{before}{upper}*{lower}+{contractions}?|{before}{upper}+{lower}*{contractions}?|" r"\p{N}{1,3}" + signs + ends],
        "minicpm5": [r"\p{N}{1,3}", contractions + "|" + letters + r"\p{N}+" + signs + ends],
        "laguna": [r"[^\n]+|[\n]+", contractions + "|" + letters + r"\p{N}" + signs + ends],
        "ufakzeka": [letters + r"\p{N}" + signs + ends],
        "jais-2": [contractions + "|" + letters + r"\p{N}{1,3}" + signs + r"|\s*[\r\n]+" + runs + r"|\s{1}"],
        "spark2_5": [
            r"\p{N}{1,3}",
            "[一-龥\u3040-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+""",
            r"\p{N}",
        ],
        "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", cjk, r"\p{N}"],
        "deepseek-v3": [
            r"\p{N}{1,3}",
            "[一-龥\u3040-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
        ],
        "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", gpt2, "[0-9][0-9][0-9]"],
        "bloom": [words],
        "viking": [words, r"\p{N}"],
        "smollm": [r"\p{N}", gpt2],
        "afmoe": [
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            "[一-\u9fff㐀-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
        ],
        "chameleon": [r"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", gpt2],
        "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
        "tiny_aya": [
            r"\d{1,3}(?=(?:\d{3})*\b)",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    }


def main():
    random.seed(7)
    texts = ["".join(random.choice(PARTS) for _ in range(random.randrange(1, 14))) for _ in range(60)]
    steps = {name: [split(pattern) for pattern in patterns] for name, patterns in patterns_of_labels().items()}
    own = {
        "digits": [{"type": "Digits", "individual_digits": False}],
        "single digits": [{"type": "Digits", "individual_digits": True}],
        "whitespace": [{"type": "Whitespace"}],
        "whitespace split": [{"type": "WhitespaceSplit"}],
        "words and lines": [split(r"\b\w+\b|^ +| +$|\S+")],
        "letters that fold": [split("(?i:k|s)+")],
        "intersections": [split(pattern) for pattern in (r"[\p{L}&&[^\p{Lu}]]+", r"[a-z1-9&&b-y&&[^c]]{2,3}")],
        "negated intersections": [split(r"[^\s&&[^a-f]]+|[^\p{L}&&\p{Ll}]")],
        "classes in classes": [split(r"[a-f[\p{N}[_]]]+|[^lo[\p{P}\s]^]+")],
        "what is no class": [split(r"[\Sé]+?[^\S\n]|[\W\d]+")],
        "many ways to match": [split(r"[\w[\p{L}[a-z]]\S]+#")],
        "scripts": [split(r"\p{Han}+|[\p{Hiragana}\p{Thai}]+|\P{Katakana}")],
        "posix brackets": [split("[[:" + name + ":]]+") for name in ("digit", "upper", "space", "word", "alnum", "alpha")],
    }
    for behavior in BEHAVIORS:
        own["punctuation " + behavior] = [{"type": "Punctuation", "behavior": behavior}]
        for invert in (False, True):
            own[f"digits {behavior} {invert}"] = [split(r"\p{N}", behavior, invert)]
    cuts = {}
    for group, sets in (("labels", steps), ("steps", own)):
        cuts[group] = {}
        for name, parts in sets.items():
            cutter = pre_tokenizers.Sequence([build(part) for part in parts])
            pieces = [[piece for piece, _ in cutter.pre_tokenize_str(text)] for text in texts]
            cuts[group][name] = {"parts": parts, "pieces": pieces}
    print(json.dumps({"texts": texts, **cuts}, ensure_ascii=True, separators=(",", ":")))


if __name__ == "__main__":
    main()
