"""More clients of recipes/serve.lua: llama-benchy, whose counts are the server's own, and the examples of recipes/SERVER.md, as they stand
there."""
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import qeng
from peers import TEXT, WORK, Skip, check, expect, row
from serving import KEY, ask, serving

PROMPT, ANSWER, RUNS, CLIENTS = 96, 24, 3, 4


def measured(address):
    """The server's counters: {name and labels: value}."""
    _, _, text = ask(address, "/metrics")
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def benchmark(address):
    """What llama-benchy says of each request."""
    home, book = WORK / "home", "http://localhost/book"
    cache = home / ".cache/llama-benchy"
    cache.mkdir(parents=True)  # where it looks for a book before it asks the network
    (cache / f"{hashlib.md5(book.encode()).hexdigest()}.txt").write_text(TEXT)
    events, tiny = WORK / "events.jsonl", qeng.ROOT / "recipes/tiny"
    command = [sys.executable, "-m", "llama_benchy", "--base-url", address + "/v1", "--api-key", KEY, "--model", "tiny", "--tokenizer", tiny,
               "--book-url", book, "--pp", PROMPT, "--tg", ANSWER, "--runs", RUNS, "--concurrency", 1, CLIENTS, "--no-warmup",
               "--no-adapt-prompt", "--skip-coherence", "--extra-body", "grammar=root ::= [a-z ]{999}", "--exit-on-first-fail", "--emit-progress", events]
    done = subprocess.run([str(each) for each in command], env={**os.environ, "HOME": str(home), "HF_HUB_OFFLINE": "1"}, capture_output=True,
                          text=True, timeout=300)
    expect(done.returncode == 0, f"status {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
    return [json.loads(line) for line in events.read_text().splitlines()]


def counts(address):
    before = measured(address)
    events = benchmark(address)
    after = measured(address)
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


with serving() as address:
    with check("llama-benchy: no request fails, and its counts are those of /metrics"):
        counts(address)
