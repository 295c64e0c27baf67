"""More clients of recipes/serve.lua: llama-benchy, whose counts are the server's own, and the examples of recipes/SERVER.md, as they stand
there."""
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time

import qeng
from peers import TEXT, WORK, Skip, check, expect, row
from serving import KEY, ask, figures, serving

PAGE = (qeng.ROOT / "recipes/SERVER.md").read_text()
PROMPT, ANSWER, RUNS, CLIENTS = 96, 24, 3, 4


def benchmark(address):
    """What llama-benchy says of each request."""
    home, book = WORK / "home", "http://localhost/book"
    cache = home / ".cache/llama-benchy"
    cache.mkdir(parents=True)  # where it looks for a book before it asks the network
    (cache / f"{hashlib.md5(book.encode()).hexdigest()}.txt").write_text(TEXT)
    events, tiny = WORK / "events.jsonl", qeng.ROOT / "recipes/tiny"
    command = [sys.executable, "-m", "llama_benchy", "--base-url", address + "/v1", "--api-key", KEY, "--model", "tiny", "--tokenizer", tiny,
               "--book-url", book, "--pp", PROMPT, "--tg", ANSWER, "--runs", RUNS, "--concurrency", 1, CLIENTS, "--no-warmup",
               "--no-adapt-prompt", "--skip-coherence", "--extra-body", "grammar=root ::= [a-z ]{999}",  # each token has a text, which it counts
               "--exit-on-first-fail", "--emit-progress", events]
    done = subprocess.run([str(each) for each in command], env={**os.environ, "HOME": str(home), "HF_HUB_OFFLINE": "1"}, capture_output=True,
                          text=True, timeout=300)
    expect(done.returncode == 0, f"status {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
    return [json.loads(line) for line in events.read_text().splitlines()]


def counts(address):
    before = figures(address)
    events = benchmark(address)
    after = figures(address)
    ended = [event for event in events if event["type"] == "request_end"]
    expect(not any(event["error"] for event in ended), f"{ended}")
    expect(events[-1] == {**events[-1], "type": "bench_complete", "status": "ok"}, f"{events[-1]}")
    expect(len(ended) == RUNS * (1 + CLIENTS), f"{len(ended)} requests ended")
    expect({event["total_tokens"] for event in ended} == {ANSWER}, f"{ended}")
    chunks = [event for event in events if event["type"] == "tokens"]
    expect(not any(event.get("estimated") for event in chunks), "tokens were guessed")

    def grown(name):
        return after.get(name, 0) - before.get(name, 0)

    found = {"requests": grown('qeng_requests_total{method="POST",path="/v1/chat/completions",status="200"}'),
             "output": grown('qeng_tokens_total{kind="output"}'),
             "prompt": grown('qeng_tokens_total{kind="prompt"}') + grown('qeng_tokens_total{kind="cached"}')}
    expected = {"requests": len(ended), "output": sum(event["total_tokens"] for event in ended),
                "prompt": sum(event["prompt_tokens"] for event in ended)}
    expect(found == expected, f"/metrics counts {found}, llama-benchy {expected}")
    row("llama-benchy", importlib.metadata.version("llama-benchy"), f"{len(ended)} requests, {expected['prompt']} + {expected['output']} tokens")


def prepared():
    """A folder that --root opens, with what the examples name, and a home where curl finds the key."""
    root, home = WORK / "examples", WORK / "home"
    home.mkdir(exist_ok=True)
    (home / ".curlrc").write_text(f'header = "x-api-key: {KEY}"\nsilent\nshow-error\nfail-with-body\nmax-time = 60\n')
    shutil.copytree(qeng.ROOT / "recipes/tiny", root / "tiny")
    said = [{"messages": [{"role": "user", "content": f"Number {i}?"}, {"role": "assistant", "content": f"It is {i}."}]} for i in range(24)]
    (root / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in said))
    qeng.run("recipes/convert.lua", root / "data.jsonl", "--tokenizer", "recipes/tiny", "--output", root / "data.qubgpu")
    return root, home


def curl(command, home):
    """What an example prints; of one that goes on for ever, the first line."""
    command = ["bash", "-c", "exec " + command]
    with subprocess.Popen(command, env={**os.environ, "HOME": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        if " -N " in command[2]:
            said = running.stdout.readline()
            running.terminate()
            return said
        said, _ = running.communicate(timeout=90)
    expect(running.returncode == 0, f"{command[2]}: status {running.returncode}: {said}")
    return said


def finished(address, job):
    """Waits until a job is no more under way: its state."""
    for _ in range(600):
        state = json.loads(ask(address, f"/api/jobs/{job}")[2])["state"]
        if state not in ("queued", "running"):
            return state
        time.sleep(0.2)
    return "without an end"


def examples(address, home):
    """Those of curl as they stand, but for the port, the names of jobs, and two steps."""
    found = re.findall(r"^    (curl (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    expect(len(found) == 12, f"{len(found)} examples of curl, this knows 12")
    ask(address, "/v1/completions", {"prompt": TEXT[:200], "max_tokens": 1, "id_slot": 1})  # what the slots' are about
    job = ""
    for command in found:
        command = command.replace("localhost:8080", address).replace('"steps": 200', '"steps": 2')
        said = curl(re.sub(r"train-\d+-\d+-1", job, re.sub(r"jobs/convert-\d+-\d+-1/", "", command)), home)
        if "/v1/chat/completions" in command:
            expect(json.loads(said)["choices"][0]["message"]["role"] == "assistant", said)
        elif '"kind"' in command:
            job = json.loads(said)["id"]
            state = finished(address, job)
            expect(state == "done", f"the job is {state}")
        elif "/slots/" in command:
            expect(json.loads(said)["filename"] == "manual", said)
        elif "/records" in command:
            expect(json.loads(said)["records"] == 24, said)
        elif "/verify" in command:
            expect(json.loads(said)["ok"], said)
        elif "/api/datasets/" in command:
            expect(json.loads(said)["totals"]["records"] == 24, said)
        elif "/api/kernels" in command:
            expect(json.loads(said)["decode"]["ops"][0]["ms"] > 0, said)
        elif "/api/plan" in command:
            expect("lora" in json.loads(said)["text"], said)
        elif "/live" in command:
            expect(said == "event: record\n", said)
    status, _, said = ask(address, "/v1/completions", {"model": "mine", "prompt": "Number 1?", "max_tokens": 4})
    expect(status == 200, f"the adapter of the job does not answer: {said}")


def programs(address):
    block = re.search(r"## From Python\n\n((?:    .*\n|\n)+)", PAGE)[1]
    program = textwrap.dedent(block).replace("http://127.0.0.1:8080", address).replace('"none"', repr(KEY))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    expect(done.returncode == 0, done.stderr[-800:])


with serving() as address:
    with check("llama-benchy: no request fails, and its counts are those of /metrics"):
        counts(address)
with check("recipes/SERVER.md: its examples of curl and of Python do what they say"):
    if not shutil.which("curl"):
        raise Skip("there is no curl")
    root, home = prepared()
    with serving("--root", str(root)) as address:
        examples(address, home)
        programs(address)
