"""Small models of each architecture in tests/golden/models, written by qeng as GGUF files, and random adapters beside them: llama.cpp's
logits are those that transformers has for the model (the golden file), and qeng's under the adapter. llama.cpp has GELU from a table of
f16, so a model with GELU is compared with qeng's logits under such a table."""
import llama
import numpy
import qeng
from peers import WORK, check, expect, read_json, row

GOLDEN = qeng.ROOT / "tests/golden/models"
# Of the largest logit, else 1e-4. The table alone moves Gemma 3's logits by 4.5e-4, and where a value is near the middle of two f16,
# sums in another order take the other entry.
MOST = {"gemma3": 4e-4}
# llama.cpp rounds activations to f16 and 8 bits beside such weights. Rows in a wrong order would give others altogether.
TYPES = {"f16": 5e-3, "q8_0": 0.1}

row("model", "case", "logits off by", "under an adapter")
row("---", "---", "---", "---")
for path in sorted(GOLDEN.glob("*.json")):
    golden = read_json(path)
    folder = WORK / f"models_{path.stem}"
    folder.mkdir()
    with check(f"{path.stem} under llama.cpp"):
        qeng.run("tests/peers/models.lua", path, folder)
        for i, case in enumerate(golden["cases"], 1):
            if "entries" not in case:
                continue
            off, rounded = [], folder / f"{i}.llama.json"
            without, under = read_json(rounded) if rounded.exists() else (case["logits"], read_json(folder / f"{i}.json"))
            for adapter, expected in ((None, without), (folder / f"{i}.adapter.gguf", under)):
                with llama.Model(folder / f"{i}.gguf", adapter, context=256) as model:
                    off.append(numpy.abs(model.logits(golden["tokens"])[-1] - expected).max() / numpy.abs(expected).max())
            row(path.stem, case["name"], *(f"{each:.1e}" for each in off))
            most = MOST.get(path.stem, 1e-4)
            expect(max(off) < most, f"{case['name']}: logits are off by {max(off):.2g}, expected at most {most}")
            for kind, most in TYPES.items():
                if not (folder / f"{i}.{kind}.gguf").exists():
                    continue
                with llama.Model(folder / f"{i}.{kind}.gguf", context=256) as model:
                    expected = numpy.array(read_json(folder / f"{i}.{kind}.json"))
                    apart = numpy.abs(model.logits(golden["tokens"])[-1] - expected).max() / numpy.abs(expected).max()
                row(path.stem, f"{case['name']}, {kind}", f"{apart:.1e}", "")
                expect(apart < most, f"{case['name']}, {kind}: logits are off by {apart:.2g}, expected at most {most}")
