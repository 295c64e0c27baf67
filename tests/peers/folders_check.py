"""Small models of each architecture in tests/golden/models, written by qeng as folders, and random adapters beside them as PEFT's folders:
transformers' logits of the folder are those of the golden file, and PEFT's under the adapter are qeng's. And documents in one row: qeng
gives each the logits that transformers has for it alone. What transformers itself gives there is a row of the table."""
import numpy
import peft
import qeng
import torch
import transformers
from peers import WORK, check, expect, read_json, row

# PEFT refuses out_proj of a Mamba, whose weight a fused kernel for GPUs would read past the adapter. There is none here.
peft.tuners.tuners_utils._check_lora_target_modules_mamba = lambda *given: None
GOLDEN = qeng.ROOT / "tests/golden/models"
MOST = 1e-4  # of the largest logit
# PEFT 0.21 reads adapters of experts of some architectures alone, and of these none of an expert that all tokens meet. qeng says so.
EXPERTS = {"gate_proj", "up_proj", "down_proj", "shared_expert_gate"}

row("model", "case", "folder off by", "under an adapter")
row("---", "---", "---", "---")
for path in sorted(GOLDEN.glob("*.json")):
    golden = read_json(path)
    folder = WORK / f"folders_{path.stem}"
    folder.mkdir()
    with check(f"folders of {path.stem} under transformers and PEFT"):
        qeng.run("tests/peers/models.lua", path, folder)
        ids = torch.tensor([golden["tokens"]])
        for i, case in enumerate(golden["cases"], 1):
            model = transformers.AutoModelForCausalLM.from_pretrained(folder / str(i), dtype=torch.float32, attn_implementation="eager").eval()
            off, cases = [], [case["logits"], read_json(folder / f"{i}.json")]
            if "shared_expert_intermediate_size" in case["values"] and EXPERTS & set(case.get("targets", ())):
                cases.pop()
            for expected in cases:
                if off:
                    model = peft.PeftModel.from_pretrained(model, folder / f"{i}.adapter").eval()
                with torch.no_grad():
                    logits = model(ids).logits[0, -1].numpy()
                off.append(numpy.abs(logits - expected).max() / numpy.abs(expected).max())
            row(path.stem, case["name"], *(f"{each:.1e}" for each in off))
            expect(max(off) < MOST, f"{case['name']}: logits are off by {max(off):.2g}, expected at most {MOST}")

row("documents in one row", "off by, from transformers' of each alone")
row("---", "---")
folder = WORK / "folders_packed"
folder.mkdir()
with check("documents in one row under transformers"):
    qeng.run("tests/peers/packed.lua", folder)
    packed = read_json(folder / "packed.json")
    documents = [torch.tensor(ids) for ids in packed["documents"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    row_of = {"input_ids": torch.cat(documents)[None], "position_ids": torch.cat([torch.arange(len(ids)) for ids in documents])[None]}
    numbers = torch.cat([torch.full_like(ids, i) for i, ids in enumerate(documents)])[None].int()
    with torch.no_grad():
        alone = torch.cat([model(ids[None]).logits[0] for ids in documents])

        def off(logits):
            return float((logits - alone).abs().max() / alone.abs().max())

        for how, more in (("by position_ids", {}), ("by seq_idx too", {"seq_idx": numbers})):
            try:
                found = f"{off(model(use_cache=False, **row_of, **more).logits[0]):.1e}"
            except ValueError as refusal:
                found = f"refused: {str(refusal).splitlines()[0]}"
            row(f"transformers {transformers.__version__}, {how}", found)
    ours = off(torch.tensor(packed["logits"]))
    row("qeng", f"{ours:.1e}")
    expect(ours < MOST, f"documents in one row are off by {ours:.2g}, expected at most {MOST}")
