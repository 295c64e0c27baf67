"""LoRA training by qeng, and what PEFT needs to repeat it: the same batches, from the same adapter."""
import json
import pathlib
import random

import qeng
from peers import DATA, WORK, smollm2

STEPS, ROW_TOKENS, RANK, RATE = 100, 128, 16, 2e-4


def records():
    """(the file of records, None), or (a file of made ones, why)."""
    path = pathlib.Path(DATA, "code_alpaca_2k.json")
    if DATA and path.is_file():
        return path, None
    path, draw = WORK / "records.jsonl", random.Random(0)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(2000):
            a, b, word = draw.randrange(1000), draw.randrange(1000), draw.choice(["sum", "product", "larger", "difference"])
            answer = {"sum": a + b, "product": a * b, "larger": max(a, b), "difference": abs(a - b)}[word]
            file.write(json.dumps({"prompt": f"The {word} of {a} and {b}?", "completion": f"For {a} and {b} it is {answer}."}) + "\n")
    return path, "QENG_DATA has no code_alpaca_2k.json; made records are trained on instead"


def trained(dtype):
    """The folder of a run of recipes/lora_qwen.lua on SmolLM2 (metrics.jsonl, adapter/, adapter.gguf, merged/), with batches.json and
    adapter0/ of export_batches.lua; made when it is first asked for."""
    folder = WORK / f"lora-{dtype}"
    if (folder / "batches.json").is_file():
        return folder
    data, model = WORK / "records.qubgpu", smollm2()
    if not data.is_file():
        qeng.run("recipes/convert.lua", records()[0], data, "--tokenizer", model)
    qeng.run("recipes/lora_qwen.lua", "--model", model, "--data", data, "--out", folder, "--steps", STEPS, "--row-tokens", ROW_TOKENS,
             "--rank", RANK, "--lr", RATE, "--schedule", "constant", "--eval-share", 0, "--save-every", 0, "--dtype", dtype, "--device", "cpu",
             "--gguf", "--merge")
    qeng.run("bench/export_batches.lua", "--model", model, "--data", data, "--out", folder, "--row-tokens", ROW_TOKENS, "--steps", STEPS,
             "--rank", RANK)
    return folder


def losses(folder):
    with open(folder / "metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line)["loss"] for line in file]
