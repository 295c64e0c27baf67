#!/usr/bin/env python3
"""Imports run one way: every include of kernels, engine and bindings and every require of scripts/qeng, against the orders below.

    tests/layers.py        exit status 0 is a pass; run by ctest

Each exception has its reason, and one that is not needed any more is a failure: whoever mends it removes it here. Also: no message of
kernels or engine names an option of a recipe, the words that scripts/qeng/console/hints.lua waits for are in their sources, and no
test names Catch2 itself, whose versions 2 and 3 differ. Who names an algorithm of the standard library includes <algorithm>, or its own header does: other headers
of g++ 12 have most of them, and those of g++ 14 have not.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Rooms of the engine: each may include itself and those before it.
ENGINE = "net formats tokenizer packets parquet convert generate grammar hub blocks peers tensor autograd stream program quantize weights train runtime ranks".split()

# Rooms of the Lua library, likewise; rooms of one line may use each other. `face` is what lies in scripts/qeng itself.
LUA = ["console", "jinja", "chat", "hub", "data", "codes", "model gguf models", "report", "infer", "turboquant", "edit", "optim", "onebit", "train", "plan", "peers", "wizard", "server", "face"]

# (file, what it reaches): why.
EXCEPTIONS = {
    ("kernels/blocks.cpp", "kernels/cpu"): "encodes blocks and counts bits with the loops for the machine's instruction set",
    ("scripts/qeng/console/help.lua", "face"): "looks for names in the whole of q",
    ("scripts/qeng/model/init.lua", "onebit"): "files of one-bit weights give their layers a scale",
    ("scripts/qeng/gguf/metadata.lua", "infer"): "asks which tokens end an answer",
    ("scripts/qeng/onebit/compare.lua", "train"): "one-bit training is a loop of its own over pieces of train",
    ("scripts/qeng/onebit/convert.lua", "train"): "as compare.lua",
    ("scripts/qeng/onebit/inertia.lua", "train"): "as compare.lua",
    ("scripts/qeng/onebit/pretrain.lua", "train"): "as compare.lua",
    ("scripts/qeng/onebit/compare_run.lua", "train"): "as compare.lua",
}

failures = []
needed = set()


def refuse(path, reaches, why):
    if (path, reaches) in EXCEPTIONS:
        needed.add((path, reaches))
    else:
        failures.append(f"{path}: {why}")


def sources(folder, *endings):
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in endings:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def room_of(path):
    """kernels/cpu, kernels/math, kernels; engine/ROOM; bindings, tests, bench."""
    parts = path.split("/")
    inner = parts[0] in ("kernels", "engine") and len(parts) > 2
    return "/".join(parts[:2]) if inner else parts[0]


def may_include(room, other):
    if room == other:
        return True
    layer = room.split("/")[0]
    if layer == "kernels":
        return other in ("kernels/math", "kernels/ops") or room != "kernels" and other == "kernels"  # the types that formulas are of
    if other in ("kernels", "kernels/math"):
        return True
    if layer == "bindings":
        return other.startswith("engine/")
    return other.startswith("engine/") and ENGINE.index(other[7:]) < ENGINE.index(room[7:])


emulator = {path.name for path in (ROOT / "tests").rglob("*.h")}
for layer in ("kernels", "engine", "bindings"):
    for path, text in sources(layer, ".h", ".cpp", ".cu"):
        room = room_of(path)
        if layer == "engine" and room[7:] not in ENGINE:
            failures.append(f"{path}: the room {room} has no place in the order of tests/layers.py")
            continue
        for header in re.findall(r'^\s*#\s*include "([^"]+)"', text, re.M):
            other = room_of(header)
            if "/" not in header:  # by the include path of the emulator's build, in sources that it compiles
                if header in emulator and room == "kernels/cuda" and f'#ifdef QENG_EMULATED\n#include "{header}"' in text:
                    continue
                failures.append(f'{path}: includes "{header}"; expected a path from the top of the repository')
            elif other.startswith("engine/") and other[7:] not in ENGINE or not may_include(room, other):
                refuse(path, other, f"includes {header}, which {room} may not know")

rank = {room: i for i, line in enumerate(LUA) for room in line.split()}
for path, text in sources("scripts/qeng", ".lua"):
    parts = path.split("/")[2:]
    room = parts[0] if len(parts) > 1 else "face"
    if room not in rank:
        failures.append(f"{path}: the room {room} has no place in the order of tests/layers.py")
        continue
    for module in re.findall(r'require\s*\(?\s*"(qeng[\w.]*)"', text):
        if module in ("qeng.core", "qeng.library_file", "qeng.library_files"):
            continue
        named = module.split(".")[1:]
        other = named[0] if named and named[0] in rank else "face"
        if rank[other] > rank[room]:
            refuse(path, other, f"requires {module}, of a room above {room}")

strings = ""
for layer in ("kernels", "engine"):
    for path, text in sources(layer, ".h", ".cpp", ".cu"):
        for line in text.split("\n"):
            for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line.split(" // ")[0]):
                strings += literal + "\n"
                if re.search(r"(^|[\s(])--[a-z]{3}|recipes/", literal):
                    failures.append(f'{path}: "{literal}" names what a recipe calls something; say what helps, and add the words to console/hints.lua')
for words in re.findall(r'^  \{ "([^"]+)", ', (ROOT / "scripts/qeng/console/hints.lua").read_text(), re.M):
    if words not in strings:
        failures.append(f'scripts/qeng/console/hints.lua: no message of kernels or engine says "{words}"')

for path, text in sources("tests", ".h", ".cpp"):
    if path not in ("tests/catch.h", "tests/catch_main.cpp") and re.search(r"\bCatch::|<catch2/", text):
        failures.append(f"{path}: names Catch2 itself; tests/catch.h has what both of its versions have")

algorithms = re.compile(
    r"\bstd::(?:adjacent_find|all_of|any_of|binary_search|clamp|copy|copy_backward|copy_if|copy_n|count|count_if|equal|equal_range|fill|fill_n"
    r"|find|find_if|find_if_not|for_each|generate|includes|is_sorted|lexicographical_compare|lower_bound|max_element|merge|min_element|minmax"
    r"|minmax_element|mismatch|move_backward|none_of|nth_element|partial_sort|partition|remove|remove_if|replace|reverse|rotate|search"
    r"|set_difference|set_intersection|set_union|shuffle|sort|stable_partition|stable_sort|swap_ranges|transform|unique|upper_bound"
    r")\b|\bstd::(?:min|max)\(\{")
for folder in ("kernels", "engine", "bindings", "tests", "bench"):
    for path, text in sources(folder, ".h", ".cpp", ".cu"):
        own = ROOT / re.sub(r"\.\w+$", ".h", path)
        used = algorithms.search(re.sub(r"//.*", "", text))
        if used and "#include <algorithm>" not in text + (own.read_text() if own.exists() else ""):
            failures.append(f"{path}: names {used.group(0)} and does not include <algorithm>")

for exception in sorted(set(EXCEPTIONS) - needed):
    failures.append(f"tests/layers.py: the exception {exception} is not needed any more: remove it")
for failure in failures:
    print(failure)
print("layers:", f"{len(failures)} failures" if failures else "imports run one way")
sys.exit(1 if failures else 0)
