"""Random READMEs of datasets with `configs`, and whether qeng takes the files that the library datasets takes.

    python3 tests/campaigns/hub_configs.py --qeng build/release/qeng --count 2000 [--seed 1]      (needs datasets and PyYAML)

Each case is a list of paths and a README by PyYAML in any of its styles, some with a slip. The library resolves every config and
split by its own code, with a file system that lists these paths; qeng answers every name that may be asked for (hub_configs.lua).
Exit status 1 where both take files and not the same, or where qeng refuses what the library takes, but for what qeng refuses in
any README: keys that are there twice or end with a colon, ? keys, empty entries, configs without a name, a default that is no truth value. qeng
may take what the library does not: other configs may have slips, and of two defaults the one marked counts.
"""
import argparse, collections, json, logging, random, re, subprocess, sys, tempfile
from pathlib import Path

import yaml
from datasets import DownloadConfig
from datasets.data_files import DataFilesPatternsDict
from datasets.load import create_builder_configs_from_metadata_configs
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard, HfApi, HfFileSystem
from huggingface_hub.hf_api import RepoFile, RepoFolder
from huggingface_hub.utils import EntryNotFoundError

FOLDERS = ["", "", "data", "data", "data/en", "data/fr", "data/en/old", "train", "test", "en-train", "x/validation", "dev", "data/train", ".hidden", "data/.h", "__c", "data/__s"]
NAMES = ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl", "train.jsonl", "validation.parquet", "val.csv", "a.jsonl", "b.jsonl", "c.txt", "a1.jsonl",
         "B.jsonl", "train_1.json", "my-train.tsv", "eval.jsonl.gz", "README.md", "config.json", ".x.jsonl", "zh中.jsonl", "中1.jsonl", "[a].jsonl", "custom-00000-of-00001.parquet",
         "notes.md", "img.png", "a b.jsonl", "it's.jsonl", "x!y.jsonl", "a^b.jsonl"]
CONFIGS = ["default", "en", "all", "20220301.en", "v1-x", "train", "test", "zh 中", "no"]
SPLITS = ["train", "test", "validation", "dev", "train.clean", "v_2", "中", "default", "en"]
SETS = ["[%s]", "[!%s]", "[a-c]", "[0-9]", "[!0-9]", "[a-]", "[]a]", "[!]a]", "[^a]", "[-a]", "[z-a]", "[a-c0-9]", "[中-龥]", "[%s", "[a-z-9]", "[!z-a]"]
SLIPS = ["[", "]", "{", "}", ":", " ", "\n", "- ", "'", '"', "\\", "#", "|", ">", "*", "~", ",", "?", "  ", " # c", "\n  "]
AROUND = ["license: mit\n", "tags:\n- a\n- 'b: c'\n", "pretty_name: |\n  configs: x\n   y\n", "language: [en,\n  fr]\n", "# configs: comment\n", "extra: {configs: 3}\n", "\n"]
READ = re.compile(r"\.(jsonl|ndjson|json|parquet|csv|tsv|txt)(\.(gz|zst|bz2|xz))?$", re.I)
BASE = "hf://datasets/org/name@"
trees = {}


def list_tree(self, repo, folder=None, *, recursive=False, revision=None, **_):
    front = folder + "/" if folder else ""
    inside = [path for path in trees[revision] if path.startswith(front)]
    if not inside:
        raise EntryNotFoundError.__new__(EntryNotFoundError)
    found = {}
    for path in inside:
        parts = path[len(front):].split("/")
        for depth in range(1, len(parts) + 1 if recursive else 2):
            name = front + "/".join(parts[:depth])
            found[name] = RepoFile(path=name, size=1, oid="0") if name == path else RepoFolder(path=name, oid="0")
    return iter(found.values())


def pattern(r, path):
    parts = path.split("/")
    for i, part in enumerate(parts):
        at = r.randrange(len(part))
        how = r.random()
        if how < .25: parts[i] = r.choice(["*", "**"])
        elif how < .35: parts[i] = part[:at] + "?" + part[at + 1:]
        elif how < .55: parts[i] = part[:at] + "*" + part[r.randrange(at, len(part)):]
        elif how < .7: parts[i] = part[:at] + r.choice(SETS).replace("%s", part[at]) + part[at + 1:]
        elif how < .72: parts[i] = part[:at] + "**" + part[at:]
    return "/".join((["**"] if r.random() < .1 else []) + parts)


def draw(r):
    files = sorted({"/".join(filter(None, (r.choice(FOLDERS), r.choice(NAMES)))) for _ in range(r.randrange(2, 25))})
    configs = []
    for name in r.sample(CONFIGS, r.choice([1, 1, 2, 2, 3, 5])):
        config = {"config_name": name}
        if r.random() < .25: config["data_dir"] = r.choice(["data", "data/en", "train", "", "x", "data/", "nothing"])
        if r.random() < .15: config["default"] = r.random() < .7
        def one():
            path = r.choice(files).removeprefix(config.get("data_dir", "").strip("/") + "/")
            return path if r.random() < .3 else r.choice(["nothing.jsonl", "no*thing", "**", "data", "data/**", "*.jsonl"]) if r.random() < .05 else pattern(r, path)
        def some(): return [one() for _ in range(r.randrange(1, 4))]
        how = r.random()
        if how < .2: config["data_files"] = one()
        elif how < .35: config["data_files"] = some()
        elif how < .85: config["data_files"] = [{"split": s, "path": one() if r.random() < .6 else some()} for s in r.sample(SPLITS, r.randrange(1, 4))]
        elif how < .88: config["data_files"] = r.choice([3, {"train": "x"}, [{"split": "train"}], [{"split": "a-b", "path": "x"}], ["x", {"split": "a", "path": "b"}], None])
        if r.random() < .05: config["description"] = "a long text: it has # signs, 'quotes' and more of them, so that it is folded"
        configs.append(dict(r.sample(list(config.items()), len(config)) if r.random() < .2 else config))
    typed = any("default" in c or not isinstance(c.get("data_files", ""), (str, list)) for c in configs)  # PyYAML gives them tags
    text = yaml.safe_dump({"configs": configs}, sort_keys=False, default_flow_style=r.choice([False, False, None, True]), width=r.choice([20, 40, 80, 1000]),
                          default_style=None if typed else r.choice([None, None, '"', "'"]), indent=r.choice([2, 3, 4]), allow_unicode=r.random() < .7)
    if not text.startswith("{"):
        around = [line for line in AROUND if r.random() < .3]
        text = "".join(around[:1]) + text + "".join(around[1:])
    if r.random() < .3:
        at = r.randrange(len(text))
        text = text[:at] + r.choice(SLIPS) + text[at + r.randrange(2):]
    readme = f"---\n{text}---\n# Title\nconfigs: none\n"
    return files, readme.replace("\n", "\r\n") if r.random() < .1 else readme


def by_library(files, readme, commit):
    """{config: {split: paths, or None where it refuses}} and the default's name; None where it refuses the README."""
    trees[commit] = files
    try:
        given = MetadataConfigs.from_dataset_card_data(DatasetCard(readme).data)
    except Exception:
        return None
    try:
        default = given.get_default_config_name()
    except ValueError:
        marked = [name for name, config in given.items() if config.get("default")]
        default = marked[0] if len(marked) == 1 else None
    result = {}
    for name, config in given.items():
        result[name] = {}
        try:
            [built], _ = create_builder_configs_from_metadata_configs("datasets.packaged_modules.json.json", MetadataConfigs({name: config}), base_path=BASE + commit, download_config=DownloadConfig())
        except Exception:
            continue
        for split, patterns in built.data_files.items():
            try:
                built.data_files = DataFilesPatternsDict({split: patterns})
                built._resolve_data_files(base_path=BASE + commit, download_config=DownloadConfig())
                paths = [path.removeprefix(f"{BASE}{commit}/") for path in built.data_files[split]]
                result[name][str(split)] = [path for path in paths if READ.search(path)] or None
            except Exception:
                result[name][str(split)] = None
    return result, default


def wanted(known, words):
    if known is None: return None
    configs, default = known
    words = [word for word in words.split(":") if word]
    config, split = words if len(words) == 2 else (default, None)
    if len(words) == 1:
        if words[0] in configs.get(default, {}): split = words[0]
        elif words[0] in configs: config = words[0]
        else: return None
    if default and not configs[default]: return None  # the library refuses it, and with it all
    splits = configs.get(config, {})
    if split is None: split = "train" if "train" in splits else next(iter(splits), None) if len(splits) == 1 else None
    return {"config": config, "split": split, "paths": splits[split]} if splits.get(split) else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--qeng", required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    opt = parser.parse_args()
    logging.disable(logging.CRITICAL)
    HfApi.list_repo_tree = list_tree
    HfFileSystem._repo_and_revision_exist = lambda *_, **__: (True, None)
    HfFileSystem.max_workers = property(lambda _: 1, lambda *_: None)
    r, cases, counts, bad = random.Random(opt.seed), [], collections.Counter(), 0
    for i in range(opt.count):
        files, readme = draw(r)
        known = by_library(files, readme, f"{i + 1:040x}")
        words = [""] + [f":{w}" for w in r.sample(SPLITS, 2)]
        for name, splits in (known[0] if known else {}).items():
            words += [f":{name}"] + [f":{name}:{split}" for split in splits]
        cases.append((known, {"files": files, "readme": readme, "words": [w for w in words if not re.search("[/\x00-\x1f]|::|:$", w)]}))
    with tempfile.TemporaryDirectory() as folder:
        questions, answers = Path(folder, "questions"), Path(folder, "answers")
        questions.write_text("".join(json.dumps(case) + "\n" for _, case in cases))
        subprocess.run([opt.qeng, Path(__file__).with_suffix(".lua"), questions, answers], check=True)
        given = [json.loads(line) for line in answers.read_text().splitlines()]
    for (known, case), results in zip(cases, given, strict=True):
        for words, got in zip(case["words"], results, strict=True):
            want = wanted(known, words)
            if want is None: kind = "both refuse" if "error" in got else "qeng takes files, the library none"
            elif want == got: kind = "the same files"
            elif "error" in got and re.search("is there twice|an empty entry|no config_name|a colon in it|not in the part of YAML|is not read here|neither true nor false", got["error"]): kind = "qeng refuses, as is meant"
            else:
                kind, bad = "DIFFER", bad + 1
                print(case["readme"], case["files"], f"{words}\n library: {want}\n qeng:    {got}", sep="\n", file=sys.stderr)
            counts[kind] += 1
    print(f"{opt.count} READMEs: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
