"""recipes/grpo.lua on the built-in model: losses of 20 steps, those of a plain loop of PyTorch and PEFT on the answers that qeng sampled."""
import json

import qeng
import torch_model  # first: it sets the environment
import torch
import transformers
from peers import WORK, check, expect, read_json, row

STEPS, PROMPTS, GROUP, RANK, RATE, BETA, CLIP = 20, 2, 4, 4, 2e-3, 0.04, 0.2
TINY = qeng.ROOT / "recipes/tiny"
MOST = 1e-4  # between two losses of a step


def log_p(model, tokens):
    ids = torch.tensor(tokens)
    return model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]


def loss_of(model, samples, sampled, reference):
    total = 0
    for sample, old, other in zip(samples, sampled, reference):
        mask = torch.tensor(sample["mask"][1:]) == 1
        own = log_p(model, sample["tokens"])
        ratio, advantage = (own - old).exp(), sample["advantage"]
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        gain = gain - BETA * ((other - own).exp() - (other - own) - 1)
        total = total - gain[mask].mean() / len(samples)
    return total


def curve(folder, updates):
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    model = torch_model.with_adapter(model, folder / "adapter0", trainable=True).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    samples = [json.loads(line) for line in open(folder / "samples.jsonl", encoding="utf-8")]
    found = []
    for step in range(1, STEPS + 1):
        some = [s for s in samples if s["step"] == step]
        with torch.no_grad():
            sampled = [log_p(model, s["tokens"]) for s in some]
            with model.disable_adapter():
                reference = [log_p(model, s["tokens"]) for s in some]
        for _ in range(updates):
            loss = loss_of(model, some, sampled, reference)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item())
    return found


def data():
    prompts, reward = WORK / "prompts.jsonl", WORK / "reward.lua"
    prompts.write_text("".join(json.dumps({"prompt": f"Where is the {thing}?"}) + "\n" for thing in ("hat", "brush", "kettle")))
    reward.write_text('return function(_, text) return select(2, text:gsub("o", "")) / math.max(1, #text) end\n')
    return prompts, reward


row(f"{STEPS} steps of GRPO", "mean reward of the first five", "of the last five", "loss from PyTorch at most")
for updates in 1, 3:
    with check(f"{updates} updates a step: losses are those of a plain loop"):
        folder = WORK / f"grpo-{updates}"
        prompts, reward = data()
        qeng.run("recipes/grpo.lua", "--model", TINY, "--data", prompts, "--reward", reward, "--out", folder, "--steps", STEPS, "--prompts", PROMPTS,
                 "--group", GROUP, "--rank", RANK, "--lr", RATE, "--beta", BETA, "--clip", CLIP, "--updates", updates, "--max-tokens", 20, "--dtype",
                 "f32", "--device", "cpu")
        qeng.run("tests/peers/preference.lua", TINY, "-", 0, 0, RANK, folder)
        rows = [json.loads(line) for line in open(folder / "metrics.jsonl", encoding="utf-8")]
        ours, rewards = [r["loss"] for r in rows], [r["reward"] for r in rows]
        theirs = curve(folder, updates)
        off = max(abs(a - b) for a, b in zip(ours, theirs))
        row(f"{updates} updates a step", f"{sum(rewards[:5]) / 5:.4f}", f"{sum(rewards[-5:]) / 5:.4f}", f"{off:.1e}")
        expect(len(ours) == STEPS and off <= MOST, f"{off:.1e} apart, at most {MOST:.0e}: {ours}, {theirs}")
        expect(sum(rewards[-5:]) > sum(rewards[:5]), f"rewards do not rise: {rewards}")
