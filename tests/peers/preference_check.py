"""recipes/preference.lua on the built-in model: losses of 20 steps, those of a plain loop of PyTorch and PEFT on the same pairs, from the
same adapter."""
import json
import random

import qeng
import torch_model  # first: it sets the environment
import torch
import transformers
from peers import WORK, check, expect, read_json, row

STEPS, PAIRS, RANK, RATE = 20, 3, 4, 2e-3
TINY = qeng.ROOT / "recipes/tiny"
MOST = 1e-4  # between two losses of a step


def data():
    path, draw = WORK / "pairs.jsonl", random.Random(2)
    places = ["Oslo", "Porto", "Quito", "Lima", "Dublin"]
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(40):
            place, other = draw.sample(places, 2)
            file.write(json.dumps({"prompt": f"Where is {draw.choice(['the brush', 'Heidi', 'my hat'])}?",
                                   "chosen": f"It is in {place}.", "rejected": f"Perhaps {other}, or not in {place} at all."}) + "\n")
    return path


def scores(model, packed, mean=False):
    found = []
    for begin, end in zip(packed["cu"], packed["cu"][1:]):
        targets = torch.tensor(packed["targets"][begin:end])
        log_p = model(torch.tensor([packed["tokens"][begin:end]])).logits[0].log_softmax(-1)
        trained = targets >= 0
        picked = log_p[trained].gather(1, targets[trained][:, None]).sum()
        found.append(picked / trained.sum() if mean else picked)
    return torch.stack(found)


def loss_of(kind, model, batch):
    logsigmoid = torch.nn.functional.logsigmoid

    def before(packed):
        with torch.no_grad(), model.disable_adapter():
            return scores(model, packed)

    if kind == "orpo":
        mean = scores(model, batch["answers"], mean=True)
        chosen, rejected = mean[0::2], mean[1::2]
        odds = (chosen - torch.log1p(-chosen.exp())) - (rejected - torch.log1p(-rejected.exp()))
        return (-chosen - 0.1 * logsigmoid(odds)).mean()
    ratio = scores(model, batch["answers"]) - before(batch["answers"])
    if kind == "dpo":
        return -logsigmoid(0.1 * (ratio[0::2] - ratio[1::2])).mean()
    with torch.no_grad():
        kl = (scores(model, batch["mixed"]) - before(batch["mixed"])).mean().clamp(min=0)
    good = torch.arange(len(ratio)) % 2 == 0
    reward = 0.1 * (ratio - kl)
    return torch.where(good, 1 - torch.sigmoid(reward), 1 - torch.sigmoid(-reward)).mean()


def curve(kind, folder, rates):
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    model = torch_model.with_adapter(model, folder / "adapter0", trainable=True).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses = (lambda batch=batch: loss_of(kind, model, batch) for batch in read_json(folder / "batches.json"))
    return torch_model.stepped(parameters, rates, losses)


row(f"{STEPS} steps", "first loss", "last loss", "from PyTorch at most")
for kind in "dpo", "orpo", "kto":
    with check(f"{kind}: losses are those of a plain loop"):
        folder = WORK / f"preference-{kind}"
        pairs = data()
        qeng.run("recipes/preference.lua", "--model", TINY, "--data", pairs, "--out", folder, "--loss", kind, "--steps", STEPS, "--pairs", PAIRS,
                 "--rank", RANK, "--lr", RATE, "--dtype", "f32", "--device", "cpu")
        qeng.run("tests/peers/preference.lua", TINY, pairs, STEPS, PAIRS, RANK, folder)
        rows = [json.loads(line) for line in open(folder / "metrics.jsonl", encoding="utf-8")]
        ours = [r["loss"] for r in rows]
        theirs = curve(kind, folder, [r["lr"] for r in rows])
        off = max(abs(a - b) for a, b in zip(ours, theirs))
        row(kind, f"{ours[0]:.4f}", f"{ours[-1]:.4f}", f"{off:.1e}")
        expect(len(ours) == STEPS and off <= MOST, f"{off:.1e} apart, at most {MOST:.0e}: {ours}, {theirs}")
        expect(ours[-1] < ours[0], f"the loss does not fall: {ours}")
