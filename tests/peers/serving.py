"""recipes/serve.lua as a process of a check, and what the engine says without it."""
import contextlib
import json
import re
import signal
import subprocess
import urllib.error
import urllib.request

import qeng
from peers import WORK, expect, read_json

KEY = "a-key-for-this-test"


@contextlib.contextmanager
def serving(*options):
    """A server with the built-in model at any free port: its address. It has to end by SIGTERM with status 0."""
    with open(WORK / "server.log", "w") as log:
        command = [qeng.EXECUTABLE, str(qeng.ROOT / "recipes/serve.lua"), "--port", "0", "--api-key", KEY, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=qeng.ROOT) as server:
            try:
                yield re.search(r"(https?://\S+)/v1", server.stdout.readline())[1]
            finally:
                server.send_signal(signal.SIGTERM)
                status = server.wait(60)
    expect(status == 0, f"the server ended with status {status}")


def own(requests):
    """What the engine says to these requests by itself."""
    asked, answers = WORK / "server_requests.json", WORK / "server_answers.json"
    asked.write_text(json.dumps(requests))
    qeng.run("tests/peers/server.lua", asked, answers)
    return read_json(answers)


def ask(address, path, body=None):
    """The status, headers and text of an answer. body: what is posted as JSON."""
    request = urllib.request.Request(address + path, None if body is None else json.dumps(body).encode(), {"authorization": "Bearer " + KEY})
    if body is not None:
        request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def figures(address):
    """The server's /metrics: {name and labels: value}."""
    _, _, text = ask(address, "/metrics")
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}
