"""CONTRIBUTING.md says which files an addition touches. An operation that was added is the sample: every file that names it
is in the list, and every entry of the list names it. Of other additions, the files that stand there exist.

    python3 tests/additions_test.py [embedding_noise]
"""
import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["kernels", "engine", "bindings", "bench", "tests"]  # not scripts and recipes, which call operations
CALLERS = ["tests/lua/*", "tests/additions_test.py", "bench/results/*", "*.md"]
MOST = 12


def matches(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def files_naming(operation):
    type_name = re.search(r'struct (\w+) \{[^"]*"%s"' % operation, "".join(each.read_text() for each in (ROOT / "kernels/ops").glob("*.h"))).group(1)
    word = re.compile(rf"(?<![A-Za-z0-9])({type_name}|{operation})(?![A-Za-z0-9])".encode())  # fill_NAME counts
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and not matches(name, CALLERS) and (path.stem == operation or word.search(path.read_bytes())):
                yield name


operation = sys.argv[1] if len(sys.argv) > 1 else "embedding_noise"
text = (ROOT / "CONTRIBUTING.md").read_text().split("## Where additions go")[1].split("\n## ")[0]
table, rest = text.replace("NAME", operation).split("Where it applies:")
rows = re.findall(r"^\| `(\S+)` \|", table, re.M)
sometimes = re.findall(r"`([\w*/.-]+\.\w+)`", rest.split("\n\n")[0])
named = list(files_naming(operation))
wrong = [f"{name} names {operation} and is not in the list" for name in named if not matches(name, rows + sometimes)]
for row in rows:
    count = sum(fnmatch.fnmatch(name, row) for name in named)
    if count != 1:
        wrong.append(f"{row}: {count} files name {operation}; the list says one")
for pattern in re.findall(r"`([\w*/.-]+/[\w*.-]*)`", text):
    if not any(ROOT.glob(pattern.replace("NAME", "*").rstrip("/"))):
        wrong.append(f"{pattern} is in CONTRIBUTING.md and nowhere else")
if not 0 < len(rows) <= MOST:
    wrong.append(f"the list has {len(rows)} files, at most {MOST} are allowed")
print("\n".join(f"additions: {line}" for line in wrong) or f"additions: {operation} is in the {len(rows)} files of the list")
sys.exit(1 if wrong else 0)
