#!/usr/bin/env python3
"""The server under random load for long: bench/server_soak.py [--minutes 60] [--clients 6] [--qeng build/release/qeng]

Clients ask whole and streamed, with and without an adapter and a schema, of models that are loaded and leave again, leave in the middle,
send what is refused; adapters are loaded and unloaded, slots saved and restored, and figures read. Counted are requests by what came
of them. Lost is an answer that never came, was cut off, failed with 5xx other than 503, or is another than the first to the same
question. Memory is the process's resident bytes, every 5 s: what counts is its course.
"""
import argparse
import collections
import http.client
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = "hat brush ladder kettle dog river jar lamp".split()


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class Soak:
    def __init__(self, address, seed):
        host, port = address.split("//")[1].rsplit(":", 1)
        self.at, self.seed, self.counts, self.lost = (host, int(port)), seed, collections.Counter(), []
        self.known, self.lock, self.over = {}, threading.Lock(), False

    def ask(self, method, path, body=None, leave=None):
        connection = http.client.HTTPConnection(*self.at, timeout=120)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            if leave is not None:
                answer.read(leave)
                return None, ""
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def note(self, what, status, text, key=None, said=None):
        with self.lock:
            self.counts[f"{what} {status}"] += 1
            if status >= 500 and status != 503:
                self.lost.append(f"{what}: {status} {text[:200]}")
            if key and status == 200 and self.known.setdefault(key, said) != said:
                self.lost.append(f"{what}: {said!r}, at first {self.known[key]!r}")

    def chat(self, draw):
        model = draw.choice(["tiny", "tiny", "tiny", "a", "b", "mine"])
        word, tokens, stream = draw.choice(WORDS), draw.choice([1, 8, 24, 100, 300]), draw.random() < 0.5
        body = {"model": model, "messages": [{"role": "user", "content": f"Where is the {word}?"}], "max_tokens": tokens, "stream": stream,
                "temperature": draw.choice([0, 1]), "seed": draw.randrange(3), "ignore_eos": draw.random() < 0.3}
        if draw.random() < 0.1:
            schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"], "additionalProperties": False}
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        if draw.random() < 0.15:
            self.ask("POST", "/v1/chat/completions", body, leave=draw.choice([0, 10, 300]) if stream else 0)
            self.counts["left"] += 1
            return
        status, text = self.ask("POST", "/v1/chat/completions", body)
        said = None
        if status == 200 and stream:
            said = "".join(choice["delta"].get("content") or "" for line in text.split("\n\n") if line.startswith("data: {")
                           for choice in json.loads(line[6:]).get("choices", []))
            if not text.endswith("data: [DONE]\n\n"):
                self.lost.append(f"a stream ends with {text[-100:]!r}")
        elif status == 200:
            said = json.loads(text)["choices"][0]["message"]["content"]
        del body["stream"]
        self.note("chat", status, text, json.dumps(body, sort_keys=True), said)

    def refused(self, draw):
        body = draw.choice(["{", {"messages": []}, {"messages": 1}, {"model": "none", "messages": [{"role": "user", "content": "a"}]}, {"x": 1}, []])
        self.note("refused", *self.ask("POST", "/v1/chat/completions", body))

    def adapter(self, draw):
        path = draw.choice(["load", "unload"])
        self.note(path, *self.ask("POST", f"/lora-adapters/{path}", {"name": "mine", **({"path": "adapter", "model": "tiny"} if path == "load" else {})}))

    def slot(self, draw):
        self.note("slot", *self.ask("POST", f"/slots/{draw.randrange(8)}?action={draw.choice(['save', 'restore', 'erase'])}", {"filename": draw.choice("xyz")}))

    def read(self, draw):
        self.note("read", *self.ask("GET", draw.choice(["/metrics", "/slots", "/v1/models", "/health", "/openapi.json", "/lora-adapters", "/none"])))

    def other(self, draw):
        body = {"model": "tiny", "input": draw.choice(WORDS)}
        self.note("embeddings", *self.ask("POST", "/v1/embeddings", body))

    def client(self, number):
        draw = random.Random(1000 * self.seed + number)
        kinds = [self.chat] * 20 + [self.refused] * 2 + [self.adapter, self.slot, self.read, self.other]
        while not self.over:
            kind = draw.choice(kinds)
            try:
                kind(draw)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.lost.append(f"{kind.__name__}: {type(error).__name__}: {error}")
            if draw.random() < 0.1:
                time.sleep(draw.random())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--qeng", default=str(ROOT / "build/release/qeng"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ["models/a", "models/b"]:
            shutil.copytree(ROOT / "recipes/tiny", root / name)
        subprocess.run([options.qeng, "recipes/lora_qwen.lua", "--steps", "3", "--out", str(root / "run")], cwd=ROOT, check=True, capture_output=True)
        shutil.copytree(root / "run/adapter", root / "adapter")
        command = [options.qeng, "recipes/serve.lua", "--port", "0", "--model", "recipes/tiny", "--models", str(root / "models"), "--keep", "1",
                   "--root", str(root), "--log", "none", "--max-batch", "16"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
            soak = Soak(server.stdout.readline().split(" answers at ")[1].split("/v1")[0], options.seed)
            threads = [threading.Thread(target=soak.client, args=(number,)) for number in range(options.clients)]
            for thread in threads:
                thread.start()
            began, course = time.time(), []
            while time.time() - began < 60 * options.minutes and server.poll() is None:
                time.sleep(5)
                course.append(resident(server.pid))
                if len(course) % 60 == 0:
                    print(f"{(time.time() - began) / 60:.0f} min: {sum(soak.counts.values()):,} requests, {len(soak.lost)} lost, "
                          f"{course[-1] / 1e6:.0f} MB", flush=True)
            soak.over = True
            for thread in threads:
                thread.join()
            figures = soak.ask("GET", "/metrics")[1]
            running = [line for line in figures.splitlines() if line.startswith(("qeng_running", "qeng_waiting", "qeng_kv_pages_used", "qeng_connections"))]
            server.terminate()
            status = server.wait(60)
    print(f"\n{sum(soak.counts.values()):,} requests in {options.minutes:g} minutes: "
          + ", ".join(f"{name} {count:,}" for name, count in sorted(soak.counts.items())))
    print(f"lost: {len(soak.lost)}", *soak.lost[:10], sep="\n  ")
    print(f"different questions with one answer each: {len(soak.known):,}; at the end: {'; '.join(running)}; status {status}")
    sixth = max(1, len(course) // 6)
    parts = [statistics.median(course[i:i + sixth]) / 1e6 for i in range(0, len(course), sixth)]
    print("resident MB, medians of sixths: " + ", ".join(f"{part:.1f}" for part in parts))


main()
