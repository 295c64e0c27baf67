"""The server under faults: of the network, of clients, of files and of the machine. Each line of the table says what was done and what
came of it. After each the server still answers, and at its end SIGTERM finds it well.

QENG_FAULTS_REQUESTS (500) says how many requests are made up at random; by hand 10,000 against a sanitized build."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time

import psutil
import qeng
from peers import WORK, Skip, check, expect, row
from serving import KEY, serving

REQUESTS = int(os.environ.get("QENG_FAULTS_REQUESTS", "500"))
KEYED = {"authorization": f"Bearer {KEY}"}
CHAT = {"messages": [{"role": "user", "content": "Where is the hat?"}], "max_tokens": 16, "temperature": 0}
ROOT = WORK / "faults"
SECRET = "the secret beside the root"

# Templates that would take hours, or all memory. What each is held by: scripts/qeng/jinja.
BOMBS = {
    "loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "doubling": "{% set ns = namespace(t='ab') %}{% for a in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}{{ ns.t }}",
    "repeated": "{{ 'x' * 1000000000000 }}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "output": "{% for a in range(100000) %}{{ 'y' * 100000 }}{% endfor %}",
    "nested": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
}


class Client:
    """One connection: a request's status and text; each has a limit, so that nothing waits for ever."""
    def __init__(self, address, seconds=60):
        host, port = address.split("//")[1].rsplit(":", 1)
        self.at, self.seconds = (host, int(port)), seconds

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(*self.at, timeout=self.seconds)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, {**(KEYED if headers is None else headers), "content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def raw(self, data, wait=20.0):
        """Sends bytes; the first of the answer, or nothing where the connection ends or the time is over."""
        with socket.create_connection(self.at, timeout=self.seconds) as one:
            with contextlib.suppress(ConnectionError):
                one.sendall(data)
            one.settimeout(max(wait, 1e-3))
            with contextlib.suppress(ConnectionError, TimeoutError):
                return one.recv(4096)
        return b""

    def open(self):
        return socket.create_connection(self.at, timeout=self.seconds)


def well(client, what):
    status, text = client.ask("POST", "/v1/chat/completions", CHAT)
    expect(status == 200, f"after {what} a chat gets {status}: {text[:200]}")
    return json.loads(text)["choices"][0]["message"]["content"]


def head_of(path, length, more=""):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n" \
           f"Content-Length: {length}\r\n{more}\r\n".encode()


# ---------------------------------------------------------------- clients that are slow or leave

def slow_heads(client):
    slow = [client.open() for _ in range(50)]
    began = time.time()
    for one in slow:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-")
    quick = [well(client, "slow heads") for _ in range(5)]
    took = time.time() - began
    expect(len(set(quick)) == 1 and took < 20, f"others took {took:.0f} s")
    answers = [one.recv(64) for one in slow]
    for one in slow:
        one.close()
    expect(all(answer.startswith(b"HTTP/1.1 408") for answer in answers), f"they were answered {answers[0]!r}")
    return f"50 heads that never end: 408 after {time.time() - began:.0f} s, others meanwhile answered"


def slow_readers(client):
    body = json.dumps({"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
    slow = []
    for _ in range(30):
        one = client.open()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.sendall(head_of("/v1/completions", len(body)) + body)
        slow.append(one)
    well(client, "slow readers")
    for one in slow:
        one.close()
    return "30 streams that nobody reads: others meanwhile answered"


def half_closed(client):
    body = json.dumps(CHAT).encode()
    for cut in [0, 10, 60]:
        for _ in range(20):
            with client.open() as one:
                one.sendall((head_of("/v1/chat/completions", len(body)) + body)[:-cut or None])
                one.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    one.recv(4096)
    well(client, "half-closed sockets")
    deadline = time.time() + 30
    while (left := json.loads(client.ask("GET", "/slots")[1])) and any(slot["is_processing"] for slot in left) and time.time() < deadline:
        time.sleep(0.1)
    expect(not any(slot["is_processing"] for slot in left), "requests of clients that left go on")
    return "60 of them, some before their body ended: freed"


# ---------------------------------------------------------------- what is too large, or in no form

def oversized(client):
    deep = "[" * 100000
    cases = {
        "a head of 1 MB": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 2**20 + b"\r\n\r\n", {431}),
        "a path of 1 MB": (b"GET /" + b"y" * 2**20 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {431, 414}),
        "a body of 1 TB, said": (head_of("/v1/chat/completions", 2**40), {413}),
        "chunks of 20 MB": (head_of("/v1/chat/completions", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") +
                            (b"100000\r\n" + b" " * 2**20 + b"\r\n") * 20, {413}),
    }
    told = []
    for what, (data, allowed) in cases.items():
        answer = client.raw(data)
        found = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
        expect(found in allowed, f"{what}: {answer[:60]!r}")
        told.append(f"{what}: {found}")
    bodies = {
        "JSON 100,000 deep": deep, "100,000 messages": {**CHAT, "messages": CHAT["messages"] * 100000},
        "a content of 10 MB": {**CHAT, "messages": [{"role": "user", "content": "hat " * 2500000}]},
        "n of 10^9": {**CHAT, "n": 10**9},
        "10,000 stops": {**CHAT, "stop": ["x"] * 10000}, "100,000 biases": {**CHAT, "logit_bias": {str(i): 1 for i in range(100000)}},
        "a schema 2,000 deep": json.dumps({**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 0}}})
                                  .replace('"schema": 0', '"schema": ' + nested(2000)),
        "a grammar of 1 MB": {**CHAT, "grammar": "root ::= " + '"a" ' * 250000},
        "5,000 tools": {**CHAT, "tools": [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}} for i in range(5000)]},
    }
    for what, body in bodies.items():
        began = time.time()
        status, text = client.ask("POST", "/v1/chat/completions", body)
        expect(status < 500, f"{what}: {status} {text[:200]}")
        told.append(f"{what}: {status}")
        expect(time.time() - began < 30, f"{what} took {time.time() - began:.0f} s")
    well(client, "what is too large")
    return ", ".join(told)


def nested(depth):
    return '{"type": "object", "required": ["a"], "properties": {"a": ' * depth + "{}" + "}}" * depth


def mutated(draw, data):
    data = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data))
        kind = draw.randrange(4)
        if kind == 0:
            data[at] = draw.randrange(256)
        elif kind == 1:
            del data[at:at + draw.randint(1, 20)]
        elif kind == 2:
            data[at:at] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 20)))
        else:
            data[at:at] = data[at:at + draw.randint(1, 40)]
        if not data:
            break
    return bytes(data)


def fuzzed(client):
    draw, counts = random.Random(1), {}
    document = json.loads(client.ask("GET", "/openapi.json")[1])
    seeds = []
    for path, methods in document["paths"].items():
        for method in methods:
            body = json.dumps({**CHAT, "prompt": "a", "input": "b", "stream": draw.random() < 0.3, "content": "c", "tokens": [1, 2],
                               "grammar": 'root ::= "a"', "tools": [{"type": "function", "function": {"name": "f"}}]}).encode()
            fields = methods[method].get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {}).get("properties")
            if fields:
                known = {name: value for name, value in json.loads(body).items() if name in fields}
                body = json.dumps(known).encode()
            seeds.append((method.upper(), path.replace("{", "").replace("}", ""), body))

    def one(i):
        own = random.Random(i)
        method, path, body = own.choice(seeds)
        inside = own.random() < 0.7  # the body alone, so that it gets past the head
        body = mutated(own, body) if inside else body
        data = head_of(path, len(body)).replace(b"POST", method.encode()) + body
        answer = client.raw(data if inside else mutated(own, data), wait=0.5 if own.random() < 0.9 else 0)
        return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.") else "no answer"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for status in pool.map(one, range(REQUESTS)):
            counts[status] = counts.get(status, 0) + 1
    expect("500" not in counts, f"{counts}")
    well(client, "requests at random")
    return f"{REQUESTS:,}: " + ", ".join(f"{status} {count:,}" for status, count in sorted(counts.items()))


# ---------------------------------------------------------------- keys and paths

def wrong_keys(client):
    document = json.loads(client.ask("GET", "/openapi.json")[1])
    asked = 0
    for path, methods in document["paths"].items():
        for method in methods:
            for headers in [{}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY[:-1]}, {"authorization": f"Bearer {KEY}x"}, {"authorization": "Basic eDp5"}]:
                status, text = client.ask(method.upper(), path, None, headers)
                expect(status == (200 if path == "/health" else 401), f"{method} {path} with {headers}: {status} {text[:100]}")
                asked += 1
    return f"{asked} requests to {len(document['paths'])} paths, 5 wrong keys each: all 401 but /health"


def path_escapes(client):
    names = ["../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "..\\secret.txt", "/etc/passwd", "//etc/passwd", "a/../../secret.txt", "link.txt",
             "link/secret.txt", "%00../secret.txt", "secret.txt%00.js", "....//secret.txt", "..;/secret.txt"]
    asked = []
    for name in names:
        asked += [("GET", f"/pages/{name}", None), ("GET", f"/api/runs/{name}/metrics", None), ("GET", f"/api/jobs/{name}/log", None),
                  ("GET", f"/api/datasets/{name}", None), ("GET", f"/{name}", None)]
        plain = name.replace("%2f", "/").replace("%2e", ".").replace("%00", "\0")
        asked += [("POST", "/lora-adapters/load", {"name": "a", "path": plain}),
                  ("POST", "/slots/0?action=restore", {"filename": plain}),
                  ("POST", "/api/jobs", {"kind": "train", "options": {"model": "tiny", "data": plain}}),
                  ("POST", "/api/jobs", {"kind": "evaluate", "options": {"model": plain, "data": plain}})]
        if not plain.replace(".", "").isalnum():  # else it is a name in the folder slots
            asked.append(("POST", "/slots/0?action=save", {"filename": plain}))
    for method, path, body in asked:
        status, text = client.ask(method, path, body)
        expect(400 <= status < 500 and SECRET not in text and "root:" not in text, f"{method} {path} {body}: {status} {text[:200]}")
    expect((ROOT.parent / "secret.txt").read_text() == SECRET, "a file outside was written")
    return f"{len(asked)}: refused, nothing outside read or written"


def bombs(client):
    told = []
    for name in BOMBS:
        began = time.time()
        status, text = client.ask("POST", "/v1/chat/completions", {**CHAT, "model": name})
        expect(400 <= status < 500 and "template" in text, f"{name}: {status} {text[:200]}")
        expect(time.time() - began < 30, f"{name} took {time.time() - began:.0f} s")
        told.append(f"{name} {time.time() - began:.1f} s")
    well(client, "templates")
    return "refused with the template's error: " + ", ".join(told)


# ---------------------------------------------------------------- jobs

def train(client, **more):
    options = {"model": "tiny", "data": "data.jsonl", "row_tokens": 64, "threads": 1, "steps": 2, **more}
    status, text = client.ask("POST", "/api/jobs", {"kind": "train", "options": options})
    expect(status == 201, f"{status} {text}")
    return json.loads(text)["id"]


def until(client, job, *states):
    deadline = time.time() + 120
    while time.time() < deadline:
        found = json.loads(client.ask("GET", f"/api/jobs/{job}")[1])
        if found["state"] in states:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{job} is {found['state']}, not {states}")


def steps_of(job):
    path = ROOT / "jobs" / job / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def until_steps(job, more):
    deadline = time.time() + 120
    while steps_of(job) < more and time.time() < deadline:
        time.sleep(0.1)
    expect(steps_of(job) >= more, f"{job} has {steps_of(job)} steps")


def resumed(client, job, more):
    """Resumes a job, lets it take so many steps and ends it: after which step it went on."""
    before = steps_of(job)
    client.ask("POST", f"/api/jobs/{job}/resume")
    until_steps(job, before + more)
    client.ask("POST", f"/api/jobs/{job}/cancel")
    until(client, job, "cancelled")
    return before


def killed_job(client, server):
    job = train(client, steps=100000, save_every=5)
    until(client, job, "running")
    until_steps(job, 12)
    for child in server.children():
        child.kill()
    found = until(client, job, "failed")
    expect(found["status"] == 128 + 9, f"{found}")
    well(client, "a killed job")
    return f"state failed, status 137, served on; resumed after step {resumed(client, job, 5)}"


def killed_server():
    """kill -9 of the server while it trains: the training writes its checkpoint and ends; a new server goes on with it."""
    with contextlib.suppress(AssertionError):  # it does not end by SIGTERM
        with serving("--root", str(ROOT)) as address:
            client, job = Client(address), None
            job = train(client, steps=100000, save_every=100000)
            until_steps(job, 3)
            server = next(each for each in psutil.Process().children() if "serve.lua" in " ".join(each.cmdline()))
            child = server.children()[0]
            server.kill()
    child_gone = psutil.wait_procs([child], timeout=30)[1] == []
    expect(child_gone, "the training goes on without its server")
    with serving("--root", str(ROOT)) as address:
        client = Client(address)
        expect(json.loads(client.ask("GET", f"/api/jobs/{job}")[1])["state"] == "stopped", "the new server does not know that it stopped")
        before = resumed(client, job, 2)
    return f"its job wrote a checkpoint and ended; a new server resumed it after step {before}"


def full_disk():
    """The folder of the jobs is a disk of 128 kB of its own, and so is that of the access log."""
    log = ROOT.parent / "log"
    log.mkdir(exist_ok=True)
    shutil.rmtree(ROOT / "jobs", ignore_errors=True)
    (ROOT / "jobs").mkdir()
    mount = " && ".join(f"mount -t tmpfs -o size={size} none '{folder}'" for folder, size in [(ROOT / "jobs", "128k"), (log, "8k")])
    apart = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c"]
    if subprocess.run([*apart, mount], capture_output=True, check=False).returncode != 0:
        raise Skip("no disk of its own can be made here")
    command = f"{mount} && exec '{qeng.EXECUTABLE}' recipes/serve.lua --port 0 --api-key {KEY} --root '{ROOT}' --log '{log}/access'"
    with subprocess.Popen([*apart, command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=qeng.ROOT) as server:
        try:
            client = Client(server.stdout.readline().split(" answers at ")[1].split("/v1")[0])
            job = train(client, rank=16, save_every=1, steps=50)
            found = until(client, job, "failed", "done")
            expect(found["state"] == "failed", "it is done, on a full disk")
            said = client.ask("GET", f"/api/jobs/{job}/log")[1]
            expect("No space left" in said, f"its log does not say why: {said[-300:]}")
            for _ in range(150):  # more lines than the access log has room for
                expect(client.ask("GET", "/health")[0] == 200, "/health")
            well(client, "a full disk")
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(60)
    expect(status == 0, f"ended with status {status}")
    return "the job failed and its log says why; answers go on, the access log stops"


# ---------------------------------------------------------------- the end under load

def ended_under_load():
    """SIGTERM while 48 clients ask without end: each request that was taken is answered whole, or told why not."""
    counts = {"whole": 0, "told": 0, "refused": 0, "cut off": 0}
    long = {"prompt": "The hat is", "max_tokens": 200, "ignore_eos": True}
    with serving("--max-batch", "8") as address:
        client = Client(address)
        server = next(each for each in psutil.Process().children() if "serve.lua" in " ".join(each.cmdline()))
        ended = []

        def asking(i):
            while True:
                stream = i % 2 == 1
                try:
                    status, text = client.ask("POST", "/v1/completions", {**long, "stream": stream})
                except ConnectionRefusedError:
                    counts["refused"] += 1
                    return
                except (ConnectionError, http.client.HTTPException):
                    counts["cut off" if not ended else "refused"] += 1
                    return
                if status == 200 and (not stream or text.endswith("data: [DONE]\n\n")):
                    counts["whole"] += 1
                elif status in (429, 503) or "shutting down" in text:
                    counts["told"] += 1
                    time.sleep(0.05)
                else:
                    counts["cut off"] += 1
                if ended:
                    return

        with concurrent.futures.ThreadPoolExecutor(48) as pool:
            futures = [pool.submit(asking, i) for i in range(48)]
            time.sleep(3)
            server.terminate()
            server.wait(60)
            ended.append(True)
            for future in futures:
                future.result()
    expect(counts["whole"] > 20 and counts["cut off"] == 0, f"{counts}")
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def prepared():
    """The root, with a model, data, and links that lead out of it; and models with bombs."""
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    (ROOT.parent / "secret.txt").write_text(SECRET)
    (ROOT / "link.txt").symlink_to("../secret.txt")
    (ROOT / "link").symlink_to("..")
    lines = [json.dumps({"messages": [{"role": "user", "content": f"Number {i}?"}, {"role": "assistant", "content": f"It is {i}."}]}) for i in range(24)]
    (ROOT / "data.jsonl").write_text("\n".join(lines) + "\n")
    tiny = pathlib.Path(qeng.ROOT) / "recipes/tiny"
    for name, template in BOMBS.items():
        folder = ROOT.parent / "models" / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny, folder)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    return str(ROOT), str(ROOT.parent / "models")


row("fault", "what came of it")
row("---", "---")
root, models = prepared()
with serving("--root", root, "--model", "recipes/tiny", "--models", models) as address:
    client = Client(address)
    server = next(each for each in psutil.Process().children() if "serve.lua" in " ".join(each.cmdline()))
    said = well(client, "nothing")
    for name, fault in [("slow heads", slow_heads), ("slow readers", slow_readers), ("half-closed sockets", half_closed), ("too large", oversized),
                        ("requests at random", fuzzed), ("wrong keys", wrong_keys), ("paths that lead out", path_escapes), ("template bombs", bombs),
                        ("kill -9 of a job", lambda one: killed_job(one, server))]:
        with check(f"faults: {name}"):
            row(name, fault(client))
            expect(well(client, name) == said, f"after {name} the answer is another")
with check("faults: kill -9 of the server"):
    row("kill -9 of the server", killed_server())
with check("faults: a full disk"):
    row("full disk", full_disk())
with check("faults: SIGTERM under load"):
    row("SIGTERM under load", ended_under_load())
