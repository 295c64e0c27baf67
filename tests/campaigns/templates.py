#!/usr/bin/env python3
"""Draws random templates and renders them by Jinja2, as transformers sets it up, and by qeng: the same text, or an error from both.
   python3 tests/campaigns/templates.py --qeng build/release/qeng [--count 20000] [--seed 1]         needs jinja2"""
import argparse
import copy
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "golden"))
import make_template_goldens as goldens

NAMES = list(goldens.VALUES) + ["gone", "t.items()", "calls[0].n", "t['items'].a", "loop", "x"]
LITERALS = ["0", "1", "-3", "2.5", "1.0", "1e3", "true", "none", "''", "'a'", "'aéB c'", "' x\\n'", "'a,b,c'", "'%s-%s'", "[]", "[1, 2, 3]", "['b', 'A']", "{}", "{'a': 1, 'b': [2.0]}", "(1, 'x')", "'12'", "'3.7'"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
FILTERS = ["abs", "capitalize", "center(9)", "count", "d('z')", "default('z', true)", "dictsort", "first", "float", "indent(2)", "int", "items | list", "join('-')", "join", "last", "length",
           "list", "lower", "map('string') | list", "map(attribute='n') | list", "max", "min", "reject('odd') | list", "replace('a', 'zz')", "reverse | list", "round", "round(1)",
           "select | list", "selectattr('n') | list", "sort", "string", "sum", "title", "tojson", "tojson(indent=1)", "trim", "unique | list", "upper", "rejectattr('n', 'gt', 1.5) | list", "sort(reverse=true)"]
METHODS = ["upper()", "lower()", "strip()", "split()", "split(',')", "split('a', 1)", "rsplit(none, 1)", "startswith('a')", "endswith('c')", "find('b')", "replace('a', 'b', 1)", "title()", "capitalize()",
           "items() | list", "keys() | list", "values() | list", "get('a')", "get('z', 3)", "index(1)", "count('a')", "splitlines()", "join(['p', 'q'])", "isdigit()", "zfill(5)", "format(1, x=2)", "nosuch", "append(1)"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "odd", "even", "divisibleby(2)", "in [1, 'a']", "eq(1)", "true", "callable", "lower", "upper"]


def expression(rng, depth):
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(NAMES if rng.random() < 0.4 else LITERALS)
    inner = lambda: expression(rng, depth - 1)
    kind = rng.randrange(10)
    if kind < 3:
        return f"({inner()}) {rng.choice(BINARY)} ({inner()})" if rng.random() < 0.6 else f"{inner()} {rng.choice(BINARY)} {inner()}"
    if kind < 5:
        return f"({inner()}) | {rng.choice(FILTERS)}"
    if kind == 5:
        return f"({inner()}).{rng.choice(METHODS)}"
    if kind == 6:
        return f"({inner()}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind == 7:
        return f"({inner()})[{rng.choice(['0', '-1', '1:', ':-1', '::2', '::-1', repr('a'), '5', inner()])}]"
    if kind == 8:
        return f"({inner()} if {inner()} else {inner()})"
    return rng.choice(["[{}, {}]", "({}, {})", "{{'k': {}, 'l': {}}}"]).format(inner(), inner())


def template(rng):
    e = lambda depth=3: expression(rng, rng.randrange(1, depth + 1))
    kind = rng.randrange(8)
    if kind < 4:
        return "{{ " + e() + " }}"
    space = lambda: rng.choice(["", " ", "\n", "\n  ", "a\n", "  b"])
    sign = lambda: rng.choice(["", "", "-", "+"])
    tag = lambda text: "{%" + rng.choice(["", "-", "+"]) + " " + text + " " + rng.choice(["", "-"]) + "%}" + space()
    if kind == 4:
        return space() + tag("if " + e(2)) + "{{ " + e(2) + " }}" + space() + tag("else") + "no" + tag("endif") + "."
    if kind == 5:
        return tag("for x in " + e(2)) + "{{ x }}" + space() + "{{ loop.index }}" + tag("else") + "none" + tag("endfor") + "|"
    if kind == 6:
        return tag("set x = " + e(2)) + "{{ x }}" + space() + tag("set y | trim") + " {{ x }} " + tag("endset") + "[{{ y }}]"
    return tag("macro m(a, b=" + rng.choice(LITERALS) + ")") + "{{ a }}{{ b }}" + tag("endmacro") + "{{ m(" + e(2) + ") }}{#" + sign() + " c " + rng.choice(["", "-"]) + "#}" + space() + "."


# What Python prints of a generator or function holds an address, and of work without end nothing comes.
UNKNOWN = re.compile(r" at 0x|<bound method|<built-in|<Macro|<function|Undefined|<class", re.I)


# What qeng says it does not do: long integers' arithmetic, and slices of what has none (Jinja2 errs on those too, but for constants).
REFUSED = re.compile(r"beyond 2\^53|a slice of a")


class Late(Exception):
    pass


def late(*_):
    raise Late()


def reference(env, text):
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        return env.from_string(text).render(**copy.deepcopy(goldens.VALUES))  # the filter indent changes a list
    except Late:
        return None
    except Exception:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


LUA = """
local jinja, q = require "qeng.jinja", require "qeng"
local given = q.json.decode(q.fs.read(arg[1]), { ordered = true, exact = true })
for _, text in ipairs(given.templates) do
  local ok, result = pcall(function() return (jinja.compile(text)(given.values)) end)
  if not ok and (type(result) ~= "table" or result.code ~= "template") then error(text .. ": " .. tostring(result)) end
  io.write(q.json.encode { ok and result or false, not ok and result.message or "" }, "\\n")
end
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--qeng", required=True)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng, env, cases = random.Random(given.seed), goldens.environment(), []
    signal.signal(signal.SIGALRM, late)
    while len(cases) < given.count:
        text = template(rng)
        expected = reference(env, text)
        if expected is not None and not (expected and (UNKNOWN.search(expected) or len(expected) > 10000)):
            cases.append((text, expected))
    with tempfile.TemporaryDirectory() as folder:
        program, data = os.path.join(folder, "render.lua"), os.path.join(folder, "cases.json")
        open(program, "w").write(LUA)
        json.dump({"templates": [text for text, _ in cases], "values": goldens.VALUES}, open(data, "w"))
        out = subprocess.run([given.qeng, program, data], capture_output=True, text=True)
    lines = out.stdout.splitlines()
    if len(lines) != len(cases):
        sys.exit(f"{len(lines)} answers: {out.stderr[-2000:]}")
    wrong, errors, refused = 0, 0, 0
    for (text, expected), line in zip(cases, lines):
        got, why = json.loads(line)
        errors += expected is False
        if got is False and REFUSED.search(why):
            refused += 1
        elif got != expected:
            wrong += 1
            if wrong <= 40:
                print(f"{text!r}\n  Jinja2 {expected!r}\n  qeng   {got!r} {why}")
    print(f"{len(cases) - wrong - refused} of {len(cases)} templates as Jinja2 renders them, {errors} of them errors; {refused} refused by design")
    sys.exit(wrong > 0)


main()
