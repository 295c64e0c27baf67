#!/usr/bin/env python3
"""Writes tests/golden/python_text.json: hashes of what Python's str says of every code point that Unicode 14 assigns.
   python3 tests/golden/python_text_golden.py        needs Python 3.11 (Unicode 14), xxhash"""
import json
import os
import unicodedata

import xxhash

assert unicodedata.unidata_version == "14.0.0"
codes = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
ranges = []
for code in codes:
    if ranges and ranges[-1][1] == code - 1:
        ranges[-1][1] = code
    else:
        ranges.append([code, code])


def hashed(of):
    return xxhash.xxh3_64_hexdigest("\n".join(of(chr(c)) for c in codes).encode())


out = {
    "ranges": ranges, "lower": hashed(str.lower), "upper": hashed(str.upper), "quoted": hashed(repr),
    "alpha": hashed(lambda c: str(c.isalpha())), "alnum": hashed(lambda c: str(c.isalnum())), "space": hashed(lambda c: str(c.isspace())),
}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_text.json"), "w") as f:
    json.dump(out, f)
    f.write("\n")
