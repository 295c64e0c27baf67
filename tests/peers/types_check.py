"""Files that qeng quantized, of SmolLM2, in every type that it writes, and the original: see both.py."""
import both
import llama
import numpy
import qeng
from peers import TEXT, WORK, Skip, check, expect, losses, read_json, smollm2

FORKS = {"pq2_0": "in a fork of llama.cpp only", "ptq1_0": "in a fork of llama.cpp only"}
# Of a model that was not trained for them these types leave nothing to compare: they get one matrix, the others stay f16.
COARSE = {name: ("f16", f"blk.20.ffn_down={name}") for name in ("q1_0", "q2_0", "tq1_0", "tq2_0")}

exact_path = qeng.quantized(smollm2(), WORK / "exact.gguf", "f32")
exact = qeng.logits(exact_path, both.ids)

with check("perplexity of the recipe is llama.cpp's"):
    window = 128
    figures = WORK / "perplexity.json"
    (WORK / "text.txt").write_text(TEXT, encoding="utf-8")
    qeng.run("recipes/perplexity.lua", "--model", exact_path, "--data", WORK / "text.txt", "--context", window, "--windows", 2, "--kv", "f32",
             "--device", "cpu", "--out", figures, "--overwrite")
    with llama.Model(exact_path) as model:
        halves = [losses(model.logits(piece), piece)[window // 2:] for piece in (both.ids[:window], both.ids[window:2 * window])]
    ours, theirs = read_json(figures)["ppl"], float(numpy.exp(numpy.concatenate(halves).mean()))
    expect(abs(ours / theirs - 1) < 1e-5, f"{ours:.6f} in qeng, {theirs:.6f} in llama.cpp, of f32 weights")  # f32: sums in other orders

both.heading("type")
with check("the original Q4_1 file"):
    both.compare("original Q4_1", smollm2(), exact)
for name in qeng.run("tests/peers/types.lua").split():
    with check(f"{name}: written and read"):
        if name in FORKS:
            raise Skip(FORKS[name])
        kind, tensor = COARSE.get(name, (name, ""))
        both.compare(name, exact_path if name == "f32" else qeng.quantized(smollm2(), WORK / "model.gguf", kind, tensor), exact, kind=name)
