"""q.edit beside ROME and MEMIT written out in PyTorch, in float64: the key, the value that is found, the weights after them. And the
recipe on a released model: what its table says after facts were put in."""
import json
import subprocess

import qeng
import torch_model  # first: it sets the environment
import safetensors.torch
import torch
import transformers
from peers import HERE, WORK, check, expect, row, smollm2

LAYER, LAYERS, LAMBDA = 1, [0, 1, 2], 20.0
OPT = {"steps": 12, "lr": 0.3, "kl": 0.0625, "decay": 0.5, "clamp": 1.0, "enough": 0.0}
RIDGE = 0.01
FACTS = [
    {"subject": "the second bridge", "prompt": "We know that {} is made of", "target_new": "salt", "target_true": "stone"},
    {"subject": "Hallow Ferry", "prompt": "The farmers of {} cross it", "target_new": "in winter", "target_true": "before sunrise"},
]
MOST = 1e-4  # of the largest element


class Edits:
    def __init__(self, folder, found):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval().requires_grad_(False)
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        self.contexts = found["contexts"]
        self.sums = {}
        for layer in LAYERS:
            keys = torch.cat([self.inside(ids, layer, None)[0] for ids in found["documents"]])
            self.sums[layer] = keys.T @ keys / len(keys)

    def block(self, layer):
        return self.model.model.layers[layer]

    def inside(self, ids, layer, place):
        """Keys of a layer for each token of a document, and what leaves `place`, a module."""
        seen = {}
        hooks = [self.block(layer).mlp.down_proj.register_forward_pre_hook(lambda _, given: seen.update(key=given[0][0]))]
        if place:
            hooks.append(place.register_forward_hook(lambda _, __, out: seen.update(value=(out[0] if isinstance(out, tuple) else out)[0])))
        with torch.no_grad():
            self.model(torch.tensor([ids]))
        for hook in hooks:
            hook.remove()
        return seen["key"], seen.get("value")

    def document(self, template, subject, target, context):
        """ids, how many of them are the prompt's, and where the subject ends, by the places of tokens in the text."""
        lead = ". " if context else ""
        prompt = lead + template.format(subject)
        end = len(lead) + template.index("{}") + len(subject)
        encoded = self.tokenizer(prompt + (" " + target if target else ""), return_offsets_mapping=True, add_special_tokens=False)
        at = next(i for i, (first, last) in enumerate(encoded["offset_mapping"]) if first < end <= last)
        count = sum(last <= len(prompt) for _, last in encoded["offset_mapping"])
        return context + encoded["input_ids"], len(context) + count, len(context) + at

    def documents(self, fact):
        """(share, ids, prompt, subject) of each context, and what is to stay."""
        shares = [0.5] + [0.5 / (len(self.contexts) - 1)] * (len(self.contexts) - 1)
        asked = [(share, *self.document(fact["prompt"], fact["subject"], fact["target_new"], context)) for share, context in zip(shares, self.contexts)]
        return asked, self.document("{} is a", fact["subject"], "", [])

    def means(self, asked, layer, place):
        key = value = 0
        for share, ids, _, subject in asked:
            keys, values = self.inside(ids, layer, place)
            key, value = key + share * keys[subject], value + share * values[subject]
        return key, value

    def wanted(self, fact, place, now):
        """The value at a place under which the model says what is new."""
        asked, calm = self.documents(fact)
        delta = torch.zeros_like(now, requires_grad=True)

        def logprobs(ids, subject, change):
            def add(_, __, out):
                first = out[0] if isinstance(out, tuple) else out
                shifted = first + change * torch.nn.functional.one_hot(torch.tensor(subject), first.shape[1])[None, :, None]
                return (shifted, *out[1:]) if isinstance(out, tuple) else shifted
            hook = place.register_forward_hook(add)
            result = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            hook.remove()
            return result

        stays = logprobs(calm[0], calm[2], 0 * now)[-1]
        adam = torch.optim.Adam([delta], lr=OPT["lr"] * now.norm().item() / len(now) ** 0.5)
        for step in range(OPT["steps"] - 1):
            loss = OPT["decay"] * (delta.square().sum() + 1e-24).sqrt() / now.norm() ** 2
            for share, ids, prompt, subject in asked:
                said = logprobs(ids, subject, delta)[prompt - 1:-1]
                loss = loss - share * said.gather(1, torch.tensor(ids[prompt:])[:, None]).mean()
            last = logprobs(calm[0], calm[2], delta)[-1]
            loss = loss + OPT["kl"] * (last.exp() * (last - stays)).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
            with torch.no_grad():
                delta *= min(1.0, OPT["clamp"] * (now.norm() / delta.norm()).item())
        return now + delta.detach()

    def rome(self, fact):
        place = self.block(LAYER).mlp
        key, now = self.means(self.documents(fact)[0], LAYER, place)
        value = self.wanted(fact, place, now)
        c = self.sums[LAYER]
        u = torch.linalg.solve(c + RIDGE * c.diagonal().mean() * torch.eye(len(c), dtype=c.dtype), key)
        return key, value, self.block(LAYER).mlp.down_proj.weight + torch.outer(value - now, u) / (u @ key)

    def memit(self):
        place = self.block(LAYERS[-1])
        asked = [self.documents(fact)[0] for fact in FACTS]
        values = [self.wanted(fact, place, self.means(own, LAYERS[-1], place)[1]) for fact, own in zip(FACTS, asked)]
        for i, layer in enumerate(LAYERS):
            both = [self.means(own, layer, place) for own in asked]
            keys = torch.stack([key for key, _ in both], 1)
            lacking = torch.stack([value - now for value, (_, now) in zip(values, both)], 1) / (len(LAYERS) - i)
            c = self.sums[layer]
            c = c + RIDGE * c.diagonal().mean() * torch.eye(len(c), dtype=c.dtype)
            self.block(layer).mlp.down_proj.weight += lacking @ keys.T @ torch.linalg.inv(LAMBDA * c + keys @ keys.T)
        return [self.block(layer).mlp.down_proj.weight for layer in LAYERS]


with check("keys, values and weights are those of PyTorch"):
    request = {"text": (HERE / "text.txt").read_text(encoding="utf-8") * 2, "facts": FACTS, "layer": LAYER, "layers": LAYERS, "lambda": LAMBDA, "opt": OPT}
    (WORK / "edit_request.json").write_text(json.dumps(request), encoding="utf-8")
    qeng.run("tests/peers/edit.lua", WORK / "edit_request.json", WORK)
    ours = safetensors.torch.load_file(WORK / "edit.safetensors")
    edits = Edits(WORK / "model", json.loads((WORK / "edit.json").read_text(encoding="utf-8")))
    before = edits.block(LAYER).mlp.down_proj.weight.clone()
    theirs = dict(zip(["key", "value", "rome"], edits.rome(FACTS[0])))
    theirs.update({f"memit.{layer}": weight for layer, weight in zip(LAYERS, edits.memit())})
    off = {name: ((ours[name] - expected).abs().max() / expected.abs().max()).item() for name, expected in theirs.items()}
    row("q.edit, a small random model", *off)
    row("from PyTorch at most", *(f"{each:.1e}" for each in off.values()))
    for name, each in off.items():
        expect(each <= MOST, f"{name} is {each:.1e} of its largest element apart, at most {MOST:.0e}")
    moved = ((theirs["rome"] - before).abs().max() / before.abs().max()).item()
    expect(moved > 100 * MOST, f"the edit moves no weight by more than {moved:.1e}: there is nothing to compare")

with check("facts put into SmolLM2 are said, and others stay"):
    command = [qeng.EXECUTABLE, "recipes/edit.lua", "--model", smollm2(), "--continue", "0", "--device", "cpu"]
    done = subprocess.run(command, cwd=qeng.ROOT, capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr[-800:])
    lines = done.stdout.splitlines()
    expect(lines[-1] == "undone: the weights are what they were, bit for bit", f"the last line is {lines[-1]}")
    row("recipes/edit.lua on SmolLM2-135M", *lines[1].split(maxsplit=6))
    for line in lines[2:-1]:
        name, efficacy, exact, paraphrase, locality, kept, *rest = line[:18].strip(), *line[18:].replace("%", "").split()
        row(name, efficacy, exact, paraphrase, locality, kept, *rest)
        if name != "before":
            expect(float(efficacy) >= 90, f"{name}: efficacy is {efficacy} %, expected 90")
            expect(float(locality) >= 80, f"{name}: locality is {locality} %, expected 80")
    expect(len(lines) == 6, f"six lines expected: {done.stdout}")
