#!/usr/bin/env python3
"""Writes tests/golden/parity/<config>/: small random models with what transformers and PEFT compute on them.

    python3 tests/golden/make_goldens.py [--out DIR] [--only NAME]

README.md beside this file describes every key that is written. Each document is run alone (so nothing can leak between
packed documents), attention is eager, one thread. Needs torch, transformers, peft, safetensors.
"""
import argparse
import copy
import json
import math
import os
import warnings

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.utils import logging

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK, ALPHA, STEPS = 4, 8, 30
LORA = dict(lr=2e-3, weight_decay=0.0)
FULL = dict(lr=1e-3, weight_decay=0.01)  # decay on tensors of two dimensions, the embedding among them
ADAM = dict(betas=(0.9, 0.999), eps=1e-8, foreach=False, fused=False)
CLIP = 1.0

# Lengths of the documents of the three packed batches. Batch 0 is the one that logits and gradients are written for.
LENGTHS = [[7, 1, 12, 2, 9], [17, 3, 5], [11, 1, 1, 13, 6]]
# Dynamic scaling depends on a document's length: within a batch the long ones are equally long, so that "each document's
# own length" and "the longest document of the row" are the same (a document of one token is not rotated at all).
LENGTHS_DYNAMIC = [[13, 1, 13], [6, 6, 1, 6], [17, 1, 17]]

SMALL = dict(hidden_size=32, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=83, max_position_embeddings=64, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2)
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16)
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def rope(**parameters):
    return dict(rope_parameters=parameters)


CONFIGS = {
    "qwen2_tied": lambda: Qwen2Config(**SMALL, tie_word_embeddings=True, **rope(rope_type="default", rope_theta=1e6)),
    "qwen2_untied": lambda: Qwen2Config(**SMALL | dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, vocab_size=79),
                                        tie_word_embeddings=False, **rope(rope_type="default", rope_theta=1e4)),
    "qwen3_tied": lambda: Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=True, **rope(rope_type="default", rope_theta=1e6)),
    "qwen3_untied": lambda: Qwen3Config(**SMALL | dict(num_attention_heads=2, num_key_value_heads=2, vocab_size=71),
                                        head_dim=10, tie_word_embeddings=False, **rope(rope_type="default", rope_theta=1e6)),
    "llama_llama3": lambda: LlamaConfig(**SMALL | dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, rms_norm_eps=1e-5),
                                        tie_word_embeddings=False, rope_parameters=dict(LLAMA3)),
    "llama_yarn": lambda: LlamaConfig(**SMALL | dict(num_key_value_heads=4),
                                      tie_word_embeddings=True, rope_parameters=dict(YARN)),
    "llama_linear": lambda: LlamaConfig(**SMALL, tie_word_embeddings=True, **rope(rope_type="linear", rope_theta=1e4, factor=2.5)),
    "llama_dynamic": lambda: LlamaConfig(**SMALL | dict(max_position_embeddings=8), tie_word_embeddings=True,
                                         **rope(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
    "mistral": lambda: MistralConfig(**SMALL | dict(rms_norm_eps=1e-5), sliding_window=None, tie_word_embeddings=False,
                                     **rope(rope_type="default", rope_theta=1e4)),
    "mistral_window": lambda: MistralConfig(**SMALL | dict(rms_norm_eps=1e-5), sliding_window=5, tie_word_embeddings=True,
                                            **rope(rope_type="default", rope_theta=1e4)),
}


def randomize(model, rng):
    """Every tensor random: norms around one, biases and matrices around zero, wide enough that no gradient is tiny."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            draw = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32))
            p.copy_(1 + 0.2 * draw if "norm" in name else 0.1 * draw)


def make_batches(rng, vocab, lengths):
    """mask[i] says that token i is trained as a target; the first token of a document never is."""
    batches = []
    for row in lengths:
        documents = []
        for length in row:
            tokens = rng.integers(3, vocab, length).tolist()
            start = int(rng.integers(1, max(2, length // 2 + 1)))  # an untrained prompt, then a trained answer with one hole
            mask = [int(i >= start) for i in range(length)]
            if length > 8:
                mask[length - 3] = 0
            documents.append({"tokens": tokens, "mask": mask})
        batches.append(documents)
    return batches


def add_lora(model, init, dtype=torch.float32):
    """PEFT LoRA on every linear layer, its A and B from `init` ({name: tensor}, PEFT's names in adapter files)."""
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")
    peft = get_peft_model(model, config, autocast_adapter_dtype=False)
    with torch.no_grad():
        for name, p in adapter(peft).items():
            p.copy_(init[name])
    return peft.to(dtype)


def adapter(peft):
    return {n.replace(".default", ""): p for n, p in peft.named_parameters() if p.requires_grad}


def random_lora(model, rng):
    init = {}
    for name, p in adapter(get_peft_model(copy.deepcopy(model), LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS))).items():
        init[name] = torch.from_numpy((0.2 * rng.standard_normal(tuple(p.shape))).astype(np.float32))
    return init


def zero_b(init):
    return {n: torch.zeros_like(t) if "lora_B" in n else t for n, t in init.items()}


def reset_rope(model):
    """transformers keeps dynamic frequencies grown for an earlier, longer document: forget them."""
    for module in model.modules():
        if hasattr(module, "original_inv_freq"):
            module.inv_freq = module.original_inv_freq.clone()
            module.max_seq_len_cached = module.original_max_seq_len


def document_nll(model, document):
    """Logits [length, vocab] of one document alone, and its per-target negative log-likelihoods (f32 or f64)."""
    reset_rope(model)
    tokens = torch.tensor([document["tokens"]])
    logits = model(input_ids=tokens, use_cache=False).logits[0]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    nll = torch.nn.functional.cross_entropy(wide[:-1], tokens[0, 1:], reduction="none")
    return logits, nll * torch.tensor(document["mask"][1:], dtype=wide.dtype)


def trained(batch):
    return sum(sum(d["mask"][1:]) for d in batch)


def loss_and_gradients(model, parameters, batch):
    """Loss of the packed batch = sum of trained NLL / number of trained targets. Gradients are summed over documents in
    the master's precision: f32 (f64 for the check), whatever the model computes in."""
    total, grads = 0.0, [torch.zeros(p.shape, dtype=torch.float64 if p.dtype == torch.float64 else torch.float32) for p in parameters]
    for document in batch:
        if not sum(document["mask"][1:]):
            continue
        loss = document_nll(model, document)[1].sum() / trained(batch)
        for sum_, g in zip(grads, torch.autograd.grad(loss, parameters, allow_unused=True)):
            if g is not None:
                sum_ += g.to(sum_.dtype)
        total += loss.item()
    return total, grads


def train(model, parameters, masters, batches, settings):
    """STEPS AdamW steps over the cycle of batches; a loss is the one before its update. The model's parameters are the
    masters rounded to its dtype."""
    groups = [{"params": [m for m in masters if m.ndim >= 2], "weight_decay": settings["weight_decay"]},
              {"params": [m for m in masters if m.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=settings["lr"], **ADAM)
    losses, norms = [], []
    for step in range(STEPS):
        with torch.no_grad():
            for p, m in zip(parameters, masters):
                p.copy_(m)
        loss, grads = loss_and_gradients(model, parameters, batches[step % len(batches)])
        for m, g in zip(masters, grads):
            m.grad = g
        norms.append(torch.nn.utils.clip_grad_norm_(masters, CLIP, foreach=False).item())
        optimizer.step()
        losses.append(loss)
    return {"loss": losses, "grad_norm": norms}


def run_curve(load, init, batches, dtype, mode, attention="eager"):
    """mode "lora": base frozen in `dtype`, adapter trained from `init` (B = 0). mode "full": every parameter trained."""
    model = load(attention)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if mode == "lora":
        model = add_lora(model, init)
        parameters = list(adapter(model).values())
    else:
        parameters = list(model.parameters())
    masters = [torch.nn.Parameter(p.detach().clone().to(wide)) for p in parameters]  # before rounding to dtype
    model.to(dtype)
    for module in model.modules():  # frequencies stay f32 as in a model loaded in `dtype`
        if hasattr(module, "original_inv_freq"):
            module.to(torch.float32)
            fresh = load(attention).model.rotary_emb
            module.inv_freq, module.original_inv_freq = fresh.inv_freq.clone(), fresh.original_inv_freq.clone()
    return train(model, parameters, masters, batches, LORA if mode == "lora" else FULL)


def relative(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a["loss"], b["loss"]))


def old_style(config):
    """The same configuration as transformers 4 wrote it: rope_theta and rope_scaling at the top, torch_dtype."""
    old = json.loads(json.dumps(config))
    parameters = old.pop("rope_parameters")
    old["rope_theta"] = parameters.pop("rope_theta")
    old["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    old["torch_dtype"] = old.pop("dtype")
    old["transformers_version"] = "4.46.0"
    return old


def write(name, index, out):
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(1000 + index)
    config = CONFIGS[name]()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    randomize(model, rng)
    model.save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))  # says nothing that the tests use
    with open(os.path.join(folder, "config.json")) as f:
        saved = json.load(f)
    with open(os.path.join(folder, "config_v4.json"), "w") as f:
        json.dump(old_style(saved), f, indent=1, sort_keys=True)

    def load(attention="eager"):
        return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32).eval()

    lengths = LENGTHS_DYNAMIC if "dynamic" in name else LENGTHS
    batches = make_batches(rng, config.vocab_size, lengths)
    model = load()
    init = random_lora(model, rng)
    tensors, golden = {}, {"name": name, "batches": batches, "lora": {"rank": RANK, "alpha": ALPHA, "target_modules": TARGETS}}

    # Full fine-tuning: logits, per-target nll, loss and gradients of batch 0.
    def logits_and_nll(m):
        with torch.no_grad():
            pairs = [document_nll(m, d) for d in batches[0]]
        return [p[0].contiguous() for p in pairs], [p[1].tolist() for p in pairs]

    named = dict(model.named_parameters())
    logits, nll = logits_and_nll(model)
    for d, z in enumerate(logits):
        tensors[f"logits.{d}"] = z
    loss, grads = loss_and_gradients(model, list(named.values()), batches[0])
    golden["full"] = {"loss": loss, "nll": nll}
    for n, g in zip(named, grads):
        tensors[f"grad.{n}"] = g

    # LoRA with B away from zero.
    peft = add_lora(load(), init)
    named = adapter(peft)
    nll = logits_and_nll(peft)[1]
    loss, grads = loss_and_gradients(peft, list(named.values()), batches[0])
    golden["lora"].update(loss=loss, nll=nll)
    for (n, p), g in zip(named.items(), grads):
        tensors[f"lora.{n}"] = p.detach().clone()
        tensors[f"lora_grad.{n}"] = g

    start = zero_b(init)
    curves = {f"{mode}_{label}": run_curve(load, start, batches, dtype, mode)
              for mode in ("lora", "full") for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16))}
    golden["curves"] = curves
    golden["optimizer"] = {"betas": [0.9, 0.999], "eps": 1e-8, "clip": CLIP, "lora": LORA, "full": FULL}

    # How far the same mathematics in another rounding lies from what is written: the tests' tolerances must exceed it.
    noise = {}
    for mode in ("lora", "full"):
        exact = run_curve(load, start, batches, torch.float64, mode)
        sdpa = run_curve(load, start, batches, torch.bfloat16, mode, attention="sdpa")
        noise[f"{mode}_f32_from_f64"] = relative(curves[f"{mode}_f32"], exact)
        noise[f"{mode}_bf16_from_f64"] = relative(curves[f"{mode}_bf16"], exact)
        noise[f"{mode}_bf16_sdpa_from_eager"] = relative(sdpa, curves[f"{mode}_bf16"])
    save_file(tensors, os.path.join(folder, "golden.safetensors"))
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(golden, f, sort_keys=True)
    for f in os.listdir(folder):
        os.chmod(os.path.join(folder, f), 0o644)
    sizes = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    first, last = curves["lora_f32"]["loss"][0], curves["lora_f32"]["loss"][-1]
    print(f"{name:16s} {sizes:7d} bytes  lora {first:.4f} -> {last:.4f}  full -> {curves['full_f32']['loss'][-1]:.4f}  "
          + "  ".join(f"{k} {v:.1e}" for k, v in noise.items()), flush=True)
    assert all(math.isfinite(x) for c in curves.values() for x in c["loss"])
    assert max(v for k, v in noise.items() if "f32" in k) < 2e-5, "the f32 curve is too sensitive to be tested at 1e-4"
    assert max(v for k, v in noise.items() if "bf16" in k) < 4e-3, "the bf16 curve is too sensitive to be tested at 5e-3"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(here, "parity"))
    parser.add_argument("--only", choices=list(CONFIGS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for index, name in enumerate(CONFIGS):
        if options.only in (None, name):
            write(name, index, options.out)


if __name__ == "__main__":
    main()
