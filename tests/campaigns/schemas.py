"""Random JSON schemas, and whether what qeng's masks let through is valid under them, by a validator written here.

    python3 tests/campaigns/schemas.py --qeng build/release/qeng --count 10000 [--seed 1] [--tokenizer DIR]

Each schema is drawn, compiled by qeng, and several outputs are drawn by random walks over the masks (schemas.lua). An
output has to be JSON, valid, and as many as the walks began: what the length limit cut off is counted apart. Exit status 1
on any invalid output, any refusal but that nothing satisfies the schema or that what joins schemas is not supported there (5 % at
most), or over 2 % cut off. Standard library only; where the package jsonschema is installed it judges each output as well.
"""
import argparse, decimal, json, os, random, re, subprocess, sys, tempfile

try:
    import jsonschema
except ImportError:
    jsonschema = None

NAMES = ["a", "name", "count", "x y", "é", 'q"uote', "back\\slash", "items", "ab", "abc", "日本", "type", "$ref"]
PATTERNS = [r"^[a-z]{1,4}$", r"^\d{3}-\d{4}$", r"^(foo|bar)+$", r"^[^\"\\]{2}$", r'^\w+"\w*$', r"ab", r"^a?b*c+$|^[A-Z]\d$", r"^(?:x|yz){2,3}\.$", r"^[\u00e9\u20ac]+$", r"^\\\/\n$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "uri", "ipv4"]


def draw(r, depth, refs):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "list"]
    if depth > 0:
        kinds += ["object"] * 4 + ["array"] * 3 + ["anyOf", "oneOf", "allOf", "map", "pattern_map", "any", "ref", "mixed", "tagged", "one_of_required", "not"]
    kind = r.choice(kinds)
    if kind == "string":
        s = {"type": "string"}
        how = r.randrange(5)
        if how == 0: s["pattern"] = r.choice(PATTERNS)
        elif how == 1: s["format"] = r.choice(FORMATS)
        elif how == 2:
            if r.random() < 0.6: s["minLength"] = r.randrange(5)
            if r.random() < 0.8: s["maxLength"] = s.get("minLength", 0) + r.randrange(12)
        elif how == 3: s.update({"pattern": r.choice(PATTERNS), "minLength": r.randrange(4), "maxLength": 4 + r.randrange(20)})
        if r.random() < 0.1: s["not"] = {"enum": ["a", "foo", "123-4567"]} if r.random() < 0.7 else {"pattern": "b"}
        return s
    if kind in ("integer", "number"):
        s = {"type": kind}
        a, b = sorted(r.choice([r.randrange(-5, 6), r.randrange(-1200, 1200), r.randrange(-10**9, 10**9)]) for _ in range(2))
        if r.random() < 0.5: s[r.choice(["minimum", "exclusiveMinimum"])] = a
        if r.random() < 0.5: s[r.choice(["maximum", "exclusiveMaximum"])] = b + 2
        if r.random() < 0.2: s[r.choice(["minimum", "exclusiveMinimum"])] = r.randrange(-8000, 1000) / r.choice([1, 8, 10, 100])
        if r.random() < 0.2: s[r.choice(["maximum", "exclusiveMaximum"])] = r.randrange(1000, 9000) / r.choice([1, 8, 10, 100])
        if r.random() < 0.05: s = {"type": kind, "minimum": 2**53 + r.randrange(9), "maximum": 2**63 - r.randrange(1, 9)}
        if r.random() < 0.2: s["multipleOf"] = r.choice([2, 3, 7, 10, 100, 1000, 2.5, 0.5, 0.25, 0.1, 0.01])
        if r.random() < 0.1: s["not"] = {"enum": [0, 1, 2, 10, 0.5]}
        return s
    if kind in ("boolean", "null"): return {"type": kind, "title": "t"}
    if kind == "enum": return {"enum": [value(r, 2) for _ in range(r.randrange(1, 5))]}
    if kind == "const": return {"const": value(r, 2)}
    if kind == "list": return {"type": r.sample(["string", "integer", "null", "boolean", "number"], r.randrange(1, 4))}
    if kind == "any": return r.choice([True, {}, {"description": "anything"}])
    if kind == "object":
        names = r.sample(NAMES, r.randrange(0, 5))
        s = {"type": "object", "properties": {n: draw(r, depth - 1, refs) for n in names}}
        if r.random() < 0.7: s["required"] = [n for n in names if r.random() < 0.6]
        how = r.randrange(4)
        if how == 0: s["additionalProperties"] = False
        elif how == 1: s["additionalProperties"] = draw(r, depth - 1, refs)
        if how != 0 and r.random() < 0.1: s.setdefault("required", []).append("more")
        if r.random() < 0.2: del s["type"]
        if r.random() < 0.15: s["minProperties"] = r.randrange(2)
        if r.random() < 0.15: s["maxProperties"] = 1 + r.randrange(4)
        return s
    if kind == "array":
        s = {"type": "array"}
        if r.random() < 0.3: s["prefixItems"] = [draw(r, depth - 1, refs) for _ in range(r.randrange(1, 4))]
        if r.random() < 0.8: s["items"] = draw(r, depth - 1, refs)
        if r.random() < 0.4: s["minItems"] = r.randrange(4)
        if r.random() < 0.5: s["maxItems"] = s.get("minItems", 0) + r.randrange(4)
        how = r.randrange(8)
        if how == 0: s["contains"] = draw(r, 0, refs)
        elif how == 1:
            del s["type"]
            s = {"type": "array", "items": r.choice([{"enum": [value(r, 1) for _ in range(r.randrange(1, 6))]}, {"type": ["boolean", "null"]}]), "uniqueItems": True}
            if r.random() < 0.5: s["minItems"] = r.randrange(3)
            if r.random() < 0.5: s["maxItems"] = 2 + r.randrange(4)
        return s
    if kind == "tagged":
        names = r.sample(NAMES, 2)
        return {"oneOf": [{"type": "object", "properties": {"tag": {"const": t}, names[0]: draw(r, depth - 1, refs)}, "required": ["tag"]} for t in "pqr"[:r.randrange(1, 4)]]}
    if kind == "one_of_required":
        names = r.sample(NAMES, r.randrange(2, 4))
        return {"type": "object", "properties": {n: draw(r, depth - 1, refs) for n in names}, "oneOf": [{"required": [n]} for n in names]}
    if kind == "not": return {"type": r.sample(["string", "integer", "null", "boolean", "array"], 3), "not": draw(r, 0, refs)}
    if kind in ("anyOf", "oneOf"): return {kind: [draw(r, depth - 1, refs) for _ in range(r.randrange(1, 4))]}
    if kind == "allOf":
        parts = []
        for _ in range(2):
            names = r.sample(NAMES, r.randrange(1, 3))
            part = {"type": "object", "properties": {n: draw(r, 0, refs) for n in names}}
            if r.random() < 0.5: part["required"] = names[:1]
            parts.append(part)
        return {"allOf": parts + ([{"required": ["a"]}] if r.random() < 0.3 else [])}
    if kind == "map": return {"type": "object", "additionalProperties": draw(r, depth - 1, refs)}
    if kind == "pattern_map": return {"type": "object", "patternProperties": {r.choice(["^[a-z]{1,3}$", "^x_"]): draw(r, depth - 1, refs)}, "additionalProperties": False}
    if kind == "ref": return {"$ref": "#/$defs/" + r.choice(refs)}
    return {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"],
            "anyOf": [{"properties": {"kind": {"const": "p"}, "p": {"type": "integer"}}, "required": ["p"]}, {"properties": {"kind": {"const": "q"}}}]}


def value(r, depth):
    kind = r.randrange(8 if depth else 6)
    if kind == 0: return None
    if kind == 1: return r.random() < 0.5
    if kind == 2: return r.randrange(-1000, 1000)
    if kind == 3: return r.randrange(-1000, 1000) / 8
    if kind < 6: return r.choice(['', 'a', 'é"\\', 'line\nend', '日本', "\x01\x7f", "/"])
    if kind == 6: return [value(r, depth - 1) for _ in range(r.randrange(3))]
    return {n: value(r, depth - 1) for n in r.sample(NAMES, r.randrange(3))}


def schema(r):
    refs = ["tree", "leaf", "list"]
    s = draw(r, 3, refs)
    if not isinstance(s, dict): s = {"anyOf": [s]}
    s["$defs"] = {
        "tree": {"type": "object", "properties": {"v": draw(r, 0, refs), "l": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}, "required": ["l"], "additionalProperties": False},
        "leaf": draw(r, 0, refs),
        "list": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/list"}, {"$ref": "#/$defs/leaf"}]}},
    }
    return s


# ---- the validator

NUMBER = (int, float, decimal.Decimal)
decimal.getcontext().prec = 400  # what any double takes


def same(a, b):
    if isinstance(a, bool) or isinstance(b, bool): return a is b
    if isinstance(a, NUMBER) and isinstance(b, NUMBER): return a == b
    if type(a) is not type(b): return False
    if isinstance(a, list): return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict): return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b


def is_type(v, t):
    number = isinstance(v, NUMBER) and not isinstance(v, bool)
    return {"object": isinstance(v, dict), "array": isinstance(v, list), "string": isinstance(v, str), "boolean": isinstance(v, bool),
            "null": v is None, "number": number, "integer": number and v % 1 == 0}[t]


def is_date(text):
    import datetime
    try: return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text)) and datetime.date.fromisoformat(text) is not None
    except ValueError: return False


TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
CHECKS = {"date": is_date, "time": lambda t: re.fullmatch(TIME, t), "date-time": lambda t: is_date(t[:10]) and t[10:11] == "T" and re.fullmatch(TIME, t[11:]),
          "uuid": lambda t: re.fullmatch(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", t),
          "email": lambda t: re.fullmatch(r"[\w.+-]{1,64}@([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]+", t),
          "uri": lambda t: re.fullmatch(r"[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:\d+)?(/([^\s%?#]|%[0-9A-Fa-f]{2})*)?(\?([^\s%#]|%[0-9A-Fa-f]{2})*)?(#([^\s%#]|%[0-9A-Fa-f]{2})*)?", t),
          "ipv4": lambda t: re.fullmatch(r"(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])(\.(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])){3}", t)}


def problem(v, s, root):
    """What is wrong with v under s, or None."""
    if s is True: return None
    if s is False: return "false allows nothing"
    if "$ref" in s:
        t = root
        for part in s["$ref"].split("/")[1:]: t = t[part]
        p = problem(v, t, root)
        if p: return p
    for part in s.get("allOf", []):
        p = problem(v, part, root)
        if p: return "allOf: " + p
    if "anyOf" in s and all(problem(v, part, root) for part in s["anyOf"]): return f"anyOf: none fits {v!r}"
    if "oneOf" in s:
        fit = sum(problem(v, part, root) is None for part in s["oneOf"])
        if fit != 1: return f"oneOf: {fit} fit {v!r}"
    if "not" in s and problem(v, s["not"], root) is None: return f"not: {v!r}"
    if "type" in s:
        types = s["type"] if isinstance(s["type"], list) else [s["type"]]
        if not any(is_type(v, t) for t in types): return f"{v!r} is not {types}"
    if "enum" in s and not any(same(v, e) for e in s["enum"]): return f"{v!r} not in enum"
    if "const" in s and not same(v, s["const"]): return f"{v!r} is not const"
    if isinstance(v, str):
        if len(v) < s.get("minLength", 0) or len(v) > s.get("maxLength", 1 << 60): return f"length {len(v)}"
        if "pattern" in s and not re.search(s["pattern"].replace("$", r"\Z"), v): return f"{v!r} does not match {s['pattern']}"
        if "format" in s and not CHECKS[s["format"]](v): return f"{v!r} is no {s['format']}"
    if isinstance(v, NUMBER) and not isinstance(v, bool):
        if v < s.get("minimum", v) or v > s.get("maximum", v): return f"{v} out of bounds"
        if "exclusiveMinimum" in s and v <= s["exclusiveMinimum"] or "exclusiveMaximum" in s and v >= s["exclusiveMaximum"]: return f"{v} out of bounds"
        if "multipleOf" in s and decimal.Decimal(str(v)) % decimal.Decimal(str(s["multipleOf"])) != 0: return f"{v} is no multiple of {s['multipleOf']}"
    if isinstance(v, list):
        if s.get("uniqueItems") and any(same(v[i], v[j]) for i in range(len(v)) for j in range(i)): return f"{v} has one twice"
        if "contains" in s and all(problem(item, s["contains"], root) for item in v): return f"{v} lacks what it has to contain"
        if len(v) < s.get("minItems", 0) or len(v) > s.get("maxItems", 1 << 60): return f"{len(v)} items"
        prefix = s.get("prefixItems", [])
        for i, item in enumerate(v):
            p = problem(item, prefix[i] if i < len(prefix) else s.get("items", True), root)
            if p: return f"[{i}]: {p}"
    if isinstance(v, dict):
        if not s.get("minProperties", 0) <= len(v) <= s.get("maxProperties", 1 << 60): return f"{len(v)} properties"
        for name in s.get("required", []):
            if name not in v: return f"{name} is missing"
        for name, item in v.items():
            named = False
            if name in s.get("properties", {}):
                named, p = True, problem(item, s["properties"][name], root)
                if p: return f"{name}: {p}"
            for pattern, sub in s.get("patternProperties", {}).items():
                if re.search(pattern, name):
                    named, p = True, problem(item, sub, root)
                    if p: return f"{name}: {p}"
            if not named:
                p = problem(item, s.get("additionalProperties", True), root)
                if p: return f"{name}: {p}"
    return None


def exact(text):
    """The value, its fractions as decimals: 0.3 is a multiple of 0.1, and as floats it is not."""
    text.encode("utf-8")
    return json.loads(text, parse_float=decimal.Decimal)


def judged(v, s):
    if jsonschema is None: return None
    decimal_schema = json.loads(json.dumps(s), parse_float=decimal.Decimal)
    checker = jsonschema.Draft202012Validator(decimal_schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    return next((f"jsonschema: {e.message}" for e in checker.iter_errors(v)), None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--qeng", default="build/release/qeng")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--walks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print what is refused")
    parser.add_argument("--tokenizer", default="recipes/tiny")
    opt = parser.parse_args()
    r = random.Random(opt.seed)
    schemas = [schema(r) for _ in range(opt.count)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "schemas.jsonl")
        with open(path, "w", encoding="utf-8") as f:
            for s in schemas: f.write(json.dumps(s, ensure_ascii=r.random() < 0.5) + "\n")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas.lua")
        out = subprocess.run([opt.qeng, script, path, opt.tokenizer, str(opt.walks), str(opt.seed)], stdout=subprocess.PIPE, check=True).stdout
    valid = cut = unsatisfiable = unmerged = bad = tokens = 0
    lines = out.split(b"\n")[:-1]
    if len(lines) != len(schemas): sys.exit(f"{len(lines)} answers to {len(schemas)} schemas")
    for s, line in zip(schemas, lines):
        answer = json.loads(line)
        if "refused" in answer:
            if "never ends" in answer["refused"]: unsatisfiable += 1
            elif re.search('"(allOf|oneOf|anyOf|not|minProperties)"', json.dumps(s)) and re.search("supported|cannot be told", answer["refused"]): unmerged += 1; opt.verbose and print(answer["refused"])
            else: bad += 1; print("refused:", answer["refused"], json.dumps(s))
            continue
        for walk in answer["walks"]:
            tokens += walk["tokens"]
            if not walk["done"]: cut += 1; continue
            try: p = problem(exact(walk["text"]), s, s) or judged(exact(walk["text"]), s)
            except ValueError as error: p = f"not JSON: {error}"
            if p: bad += 1; print("invalid:", p, "\n ", json.dumps(s), "\n ", walk["text"])
            else: valid += 1
    print(f"{opt.count} schemas: {valid} outputs valid, {bad} wrong, {cut} cut off, {unsatisfiable} schemas that nothing satisfies, {unmerged} refused by name, {tokens} tokens" + ("" if jsonschema is None else "; jsonschema agrees where it counts as valid"))
    if bad or cut * 50 > valid or (unsatisfiable + unmerged) * 20 > opt.count: sys.exit(1)


if __name__ == "__main__": main()
