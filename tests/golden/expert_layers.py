"""For models_golden.py: the experts of transformers' models under the names that checkpoints and qeng have. transformers has gate and up of
all experts as one parameter, gate_up_proj; here each part is one tensor [experts, out, in], under the name of one expert's without its number.

`words` is where a checkpoint has experts, and what it calls gate, up and down: ("mlp", "gate_proj", "up_proj", "down_proj").
"""
import torch


def in_turns(name, tensor):
    """Of gpt-oss, whose checkpoints have gate and up in turns and all matrices as [experts, in, out]. `words` may be this function: then
    weights are named as checkpoints have them, gradients as qeng does."""
    if name.endswith(".sinks"):
        return {name + ".weight": tensor}
    stem, _, part = name.rpartition(".")
    if not stem.endswith(".experts"):
        return {name: tensor}
    kind = "bias" if part.endswith("_bias") else "weight"
    if part.startswith("down_proj"):
        return {f"{stem}.down_proj.{kind}": tensor if kind == "bias" else tensor.swapaxes(1, 2)}
    return {f"{stem}.{own}.{kind}": half if kind == "bias" else half.swapaxes(1, 2)
            for own, half in (("gate_proj", tensor[..., ::2]), ("up_proj", tensor[..., 1::2]))}


def parts(words, name, tensor):
    """{name: tensor} of a parameter of transformers, or of its gradient."""
    if callable(words):
        return words(name, tensor)
    if not words:
        return {name: tensor}
    at, gate, up, down = words
    name = name.replace(".mlp.", f".{at}.")
    if name.endswith(".experts.gate_up_proj"):
        return {name.replace("gate_up_proj", part + ".weight"): half for part, half in zip((gate, up), tensor.chunk(2, 1))}
    return {name.replace("experts.down_proj", f"experts.{down}.weight"): tensor}


def of_adapter(words, name, tensor, formula):
    """The formula's value of PEFT's parameter; an expert's is its part of all experts'."""
    fields = (name.replace(".mlp.", f".{words[0]}.") if isinstance(words, tuple) else name).split(".")
    if "experts" not in fields:
        return formula(".".join(fields), tuple(tensor.shape))
    number = int(fields.pop(fields.index("experts") + 1))
    return formula(".".join(fields), (number + 1, *tensor.shape))[number]  # values of a formula do not depend on how many follow


class Mixture(torch.nn.Module):
    """A block of experts that are linear layers of their own, as transformers had them before version 5. PEFT adapts each apart."""

    def __init__(self, words, block):
        super().__init__()
        self.names, self.top, self.act = words[1:], block.gate.top_k, block.experts.act_fn
        self.normalised = getattr(block.gate, "norm_topk_prob", True)
        self.gate = self.linear(block.gate.weight.data)
        self.experts = torch.nn.ModuleList(
            torch.nn.ModuleDict(dict(zip(self.names, map(self.linear, (*both.chunk(2), down)))))
            for both, down in zip(block.experts.gate_up_proj.data, block.experts.down_proj.data))
        self.shared_expert, self.shared_expert_gate = (getattr(block, part, None) for part in ("shared_expert", "shared_expert_gate"))

    @staticmethod
    def linear(weight):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight.data = weight.clone()
        return layer

    def forward(self, hidden):
        x = hidden.reshape(-1, hidden.shape[-1])
        weights, chosen = torch.topk(self.gate(x).softmax(-1), self.top)
        weights = weights / weights.sum(-1, keepdim=True) if self.normalised else weights
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            gate, up, down = (expert[name] for name in self.names)
            token, place = torch.where(chosen == number)
            y = y.index_add(0, token, down(self.act(gate(x[token])) * up(x[token])) * weights[token, place, None])
        if self.shared_expert is not None:
            y = y + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        return y.reshape(hidden.shape)


def set_apart(words, model):
    """Puts such blocks in place of the model's. PEFT, which would adapt transformers' own as wholes, is told another type."""
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp = Mixture(words, layer.mlp)
    model.config.model_type = "experts apart"
    return model
