#!/usr/bin/env python3
"""bench/workers.lua beside llama.cpp's RPC backend, in one run: the same file, as many processes of one core on loopback, the
layers parted as qeng's plan parted them, and the same lengths.

    debootstrap --variant=minbase --include=llama.cpp-tools-extra,libggml0-backend-rpc forky ROOT http://deb.debian.org/debian
    QENG_KEYS=$(mktemp -d) python3 bench/workers_peer.py --qeng build/release/qeng --root ROOT MODEL [--context 256] [--rounds 3]

Needs the rights of root, for chroot. qeng's processes have CURVE between them, llama.cpp's have no encryption. llama.cpp is
given the output matrix on its last worker and here, in turns, and the better counts (its RPC sends what an operation needs
to where its weights are)."""
import argparse
import contextlib
import json
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--qeng", required=True)
parser.add_argument("--root", required=True, type=pathlib.Path)
parser.add_argument("--context", type=int, default=256)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("model", type=pathlib.Path)
opt = parser.parse_args()
MODEL, SERVER = "/tmp/workers_peer.gguf", "/usr/libexec/x86_64-linux-gnu/llama/bin/ggml-rpc-server"
LENGTHS = {1: 100, 8: 60}  # tokens that are timed, as in workers.lua, by requests


def ours():
    """[(layers of each process, the first this one's; tokens/s of one request; of eight)]"""
    done = subprocess.run([opt.qeng, "bench/workers.lua", opt.model, str(opt.context)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"workers.lua ended with {done.returncode}: {done.stdout}{done.stderr}")
    first = re.search(r": (\d+) layers of .* core: ([\d.]+) tokens/s, ([\d.]+) of 8", done.stdout)
    rows = [([int(first[1])], float(first[2]), float(first[3]))]
    for row in re.finditer(r"^\d processes: .*? one request ([\d.]+) .*? 8: ([\d.]+), .* us; (.*)$", done.stdout, re.M):
        layers = [int(each.split()[-1]) for each in row[3].split(", ")]
        here = layers.pop(0) if row[3].startswith("here ") else 0
        rows.append(([here] + layers, float(row[1]), float(row[2])))
    return rows


def inside(*command):
    return ["chroot", str(opt.root), *command]


@contextlib.contextmanager
def workers(count):
    """Addresses of so many RPC servers of one thread."""
    ports, running = [], []
    for _ in range(count):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    try:
        for port in ports:
            running.append(subprocess.Popen(inside(SERVER, "-t", "1", "-d", "CPU", "-p", str(port)), stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL))
        for port, process in zip(ports, running):
            until = time.monotonic() + 30
            while subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True).stdout == "":
                if process.poll() is not None or time.monotonic() > until:
                    sys.exit(f"ggml-rpc-server did not begin to listen at {port}")
                time.sleep(0.05)
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        for process in running:
            process.kill()
            process.wait()


def theirs(layers, requests, head_here):
    """Tokens/s of so many requests, layers[0] of the layers here."""
    tokens = LENGTHS[requests]
    command = inside("llama-batched-bench", "-m", MODEL, "-t", "1", "-c", str(requests * opt.context), "-npp",
                     str(opt.context - tokens), "-ntg", str(tokens), "-npl", str(requests), "--output-format", "jsonl", "-fit", "off")
    with workers(len(layers) - 1) as addresses:
        if addresses:
            shares = layers[1:-1] + [layers[-1] + 1]  # the output is one layer more to llama.cpp, the last worker's
            command += ["--rpc", ",".join(addresses), "-ngl", str(sum(shares)), "-ts", ",".join(map(str, shares))]
            if head_here:
                command += ["-ot", "^(output|token_embd)\\.weight=CPU"]
        done = subprocess.run(command, capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
    if done.returncode or not line:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return json.loads(line)["speed_tg"]


shutil.copyfile(opt.model, f"{opt.root}{MODEL}")
found = {}  # (processes, requests): ([qeng's], [llama.cpp's])
print("| round | layers | requests | qeng, tokens/s | llama.cpp: its output on the last worker | and here |\n|---|---|---|---|---|---|")
for number in range(1, opt.rounds + 1):
    for layers, *speeds in ours():
        for requests, speed in zip(LENGTHS, speeds):
            peers = [theirs(layers, requests, here) for here in ([False, True] if len(layers) > 1 else [False])]
            mine, other = found.setdefault((len(layers), requests), ([], []))
            mine.append(speed)
            other.append(max(peers))
            print(f"| {number} | {', '.join(map(str, layers))} | {requests} | {speed:.0f} | "
                  + " | ".join(f"{each:.0f}" for each in peers) + (" |" if len(peers) == 2 else " | - |"), flush=True)
print()
for (processes, requests), (mine, other) in found.items():
    a, b = statistics.median(mine), statistics.median(other)
    print(f"{processes} processes, {requests} requests: qeng {a:.0f}, llama.cpp {b:.0f} tokens/s, {a / b:.2f} times (medians)")
