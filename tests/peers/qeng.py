"""qeng, as a program: recipes, and answers.lua."""
import json
import os
import subprocess
import tempfile

import safetensors.numpy
from peers import HERE, read_json

ROOT = HERE.parent.parent
EXECUTABLE = os.environ.get("QENG", str(ROOT / "build/release/qeng"))


def run(script, *arguments):
    """Runs a script of this repository; what it printed."""
    done = subprocess.run([EXECUTABLE, str(ROOT / script), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise AssertionError(f"qeng {script} {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


def answers(model=None, **request):
    """What answers.lua says to a request: a dict, with `logits` where it has ids."""
    if model:
        request["model"] = str(model)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "request.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(request, file)
        run("tests/peers/answers.lua", path, folder)
        found = read_json(os.path.join(folder, "answers.json"))
        if "ids" in request:
            found["logits"] = safetensors.numpy.load_file(os.path.join(folder, "logits.safetensors"))["logits"]
        return found


def logits(model, ids, **more):
    return answers(model, ids=list(ids), **more)["logits"]


def quantized(model, path, kind, tensor=""):
    """Writes `model` as the GGUF file `path` with weights of a type or mix, and single tensors as recipes/quantize.lua --tensor has it."""
    run("recipes/quantize.lua", model, path, "--type", kind, "--tensor", tensor, "--overwrite")
    return path
