"""schemathesis over the server's own GET /openapi.json: no request makes the server fail, what the document does not allow is refused, and
answers are as it says. What the document allows may be refused all the same: it cannot say what a conversation is."""
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys

import qeng
from peers import WORK, check, expect, row
from serving import KEY, ask, figures, serving

EXAMPLES = 20  # drawn for each operation, beside those at each boundary of its schema: a minute on two cores
OPTIONS = ["--context", "64", "--grace", "1"]  # answers are short, and jobs end with the server
ENDLESS = "/live$"
LONG = "^/api/(plan|kernels)$"  # a process each, and measurements


def explored(address, paths, examples=EXAMPLES, but=ENDLESS):
    """Asks all of the document of the server whose path has the first pattern, and not that of `but`: a row of the table."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", "--header", f"Authorization: Bearer {KEY}",
               "--phases", "coverage,fuzzing", "--exclude-checks", "positive_data_acceptance", "--include-path-regex", paths,
               "--exclude-path-regex", but, "--max-examples", str(examples), "--seed", "1", "--continue-on-failure",
               "--request-timeout", "120", "--suppress-health-check", "all"]  # a slow machine is no failure
    done = subprocess.run(command, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"}, cwd=WORK, capture_output=True, text=True, timeout=600)
    expect(done.returncode == 0, f"status {done.returncode}: {done.stdout[done.stdout.find('= FAILURES'):][:4000]} {done.stderr[-500:]}")
    answered = [re.search(r'method="(\w+)",path="([^"]+)",status="(\d+)"', name).groups()
                for name in figures(address) if name.startswith("qeng_requests_total")]
    expect(not any(status[0] == "5" for _, _, status in answered), f"the server failed: {answered}")
    document = json.loads(ask(address, "/openapi.json")[2])["paths"]
    asked = {(method.upper(), path) for path in document for method in document[path] if re.search(paths, path) and not re.search(but, path)}
    missed = asked - {(method, path.replace("*}", "}")) for method, path, _ in answered}
    expect(asked and not missed, f"never asked: {missed}")
    made = re.search(r"(\d+) generated", done.stdout)[1]
    row("schemathesis", importlib.metadata.version("schemathesis"), f"{made} requests to {len(asked)} operations")


with check("schemathesis: with --root"):
    (WORK / "explored/run").mkdir(parents=True)
    (WORK / "explored/run/metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')
    shutil.copytree(qeng.ROOT / "recipes/tiny", WORK / "explored/tiny")
    with serving("--root", str(WORK / "explored"), *OPTIONS) as address:
        explored(address, ".", but=f"{ENDLESS}|{LONG}")
        explored(address, LONG, examples=2)
with check("schemathesis: what opens files, without --root"), serving(*OPTIONS) as address:
    explored(address, "^/(api|lora-adapters)", but=f"{ENDLESS}|{LONG}")
