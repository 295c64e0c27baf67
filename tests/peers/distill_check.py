"""recipes/distill.lua: a disturbed copy of the built-in model learns from it; losses of 20 steps, those of a plain loop of PyTorch and PEFT
on the same batches, from the same adapter."""
import json
import random
import shutil

import qeng
import torch_model  # first: it sets the environment
import torch
import transformers
from peers import WORK, check, expect, read_json, row

STEPS, ROW_TOKENS, RANK, RATE = 20, 96, 4, 2e-3
TINY = qeng.ROOT / "recipes/tiny"
MOST = 1e-4  # between two losses of a step
CASES = {"all tokens": (1.0, 0, 0.0), "soft, with the data's own": (2.0, 0, 0.3), "the likeliest five": (1.5, 5, 0.0)}


def loaded(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def student():
    folder = WORK / "student"
    if not folder.is_dir():
        model = loaded(TINY)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * p.std() * torch.randn(p.shape, generator=generator))
        model.save_pretrained(folder)
        for name in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(TINY / name, folder)
    return folder


def data():
    path, draw = WORK / "answers.jsonl", random.Random(3)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(60):
            file.write(json.dumps({"prompt": f"Where is the {draw.choice(['brush', 'hat'])} of {draw.choice(['Petra', 'Heidi'])}?",
                                   "completion": f"It is in {draw.choice(['Oslo', 'Porto'])}, number {draw.randrange(10)}."}) + "\n")
    packed = WORK / "answers.qubgpu"
    qeng.run("recipes/convert.lua", path, packed, "--tokenizer", TINY, "--overwrite")
    return packed


def loss_of(logits, wanted, targets, temperature, top, alpha):
    own = torch.log_softmax(logits / temperature, -1)
    if top:
        wanted, index = wanted.topk(top, -1)
        own = own.gather(1, index)
    its = torch.log_softmax(wanted / temperature, -1)
    divergence = (its.exp() * (its - own)).sum(-1) * temperature ** 2
    loss = divergence[targets >= 0].mean()
    return (1 - alpha) * loss + alpha * torch.nn.functional.cross_entropy(logits, targets, ignore_index=-1)


def curve(folder, rates, how):
    model = torch_model.with_adapter(loaded(student()), folder / "adapter0", trainable=True).train()
    teacher = loaded(TINY).eval()
    parameters = [p for p in model.parameters() if p.requires_grad]

    def loss(batch):
        positions, targets = torch.tensor([batch["positions"]]), torch.tensor(batch["targets"])
        document = (positions == 0).cumsum(1)
        mask = (document[:, None, :, None] == document[:, None, None, :]) & torch.ones(len(targets), len(targets), dtype=torch.bool).tril()
        given = {"input_ids": torch.tensor([batch["tokens"]]), "position_ids": positions, "attention_mask": mask, "use_cache": False}
        with torch.no_grad():
            wanted = teacher(**given).logits[0]
        return loss_of(model(**given).logits[0], wanted, targets, *how)

    return torch_model.stepped(parameters, rates, (lambda batch=batch: loss(batch) for batch in read_json(folder / "batches.json")["batches"]))


row(f"{STEPS} steps of distillation", "first loss", "last loss", "from PyTorch at most")
for name, how in CASES.items():
    with check(f"{name}: losses are those of a plain loop"):
        folder, packed = WORK / f"distill-{how[1]}-{how[2]}", data()
        temperature, top, alpha = how
        qeng.run("recipes/distill.lua", "--model", student(), "--teacher", TINY, "--data", packed, "--out", folder, "--steps", STEPS,
                 "--row-tokens", ROW_TOKENS, "--rank", RANK, "--lr", RATE, "--temperature", temperature, "--top", top, "--alpha", alpha,
                 "--eval-share", 0, "--save-every", 0, "--dtype", "f32", "--device", "cpu")
        qeng.run("bench/export_batches.lua", "--model", student(), "--data", packed, "--out", folder, "--row-tokens", ROW_TOKENS, "--steps", STEPS,
                 "--rank", RANK)
        rows = [json.loads(line) for line in open(folder / "metrics.jsonl", encoding="utf-8")]
        ours = [r["loss"] for r in rows]
        theirs = curve(folder, [r["lr"] for r in rows], how)
        off = max(abs(a - b) for a, b in zip(ours, theirs))
        row(name, f"{ours[0]:.4f}", f"{ours[-1]:.4f}", f"{off:.1e}")
        expect(len(ours) == STEPS and off <= MOST, f"{off:.1e} apart, at most {MOST:.0e}: {ours}, {theirs}")
        expect(ours[-1] < ours[0], f"the loss does not fall: {ours}")
