#!/usr/bin/env python3
"""The run that bench/train.lua made, in transformers and PEFT: same weights, same adapters, same packed tokens.

    build/release/qeng bench/train.lua --device cuda --shape 1.5B --batches --out DIR
    python3 bench/train_peer.py --dir DIR --variant eager

Writes DIR/VARIANT.json, with the losses set against those of DIR/result.json. README.md says what each variant is. Needs
torch and transformers, and peft for LoRA.
"""
import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

VARIANTS = ["eager", "compiled", "helped", "helped, compiled"]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WARM_UP = 3


def tile(block, name, shape):
    """The block again and again, from a place that the name decides: fill() of train.lua."""
    period, start, count = block.numel(), 0, 1
    for byte in name.encode():
        start = (start * 31 + byte) % period
    for size in shape:
        count *= size
    rolled = block.roll(-start)
    return rolled.repeat(-(-count // period))[:count].view(shape)


def fill(model, block):
    with torch.no_grad():
        for name, p in model.named_parameters():
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", "")
            if p.ndim == 1:
                p.fill_(1 if "norm" in plain else 0)
            elif "lora_B" in plain:
                p.zero_()
            else:
                p.copy_(tile(block, plain, p.shape))


# ---- attention of the helped variants: no score across documents is computed

spans, boundaries, repeat = [], {}, []  # of the current batch; repeat: whether varlen_attn needs as many heads of keys as of queries


def document_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    if boundaries:
        from torch.nn.attention.varlen import varlen_attn
        batch, heads, tokens, dim = query.shape
        if boundaries["repeat"]:
            key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
        q, k, v = (x.transpose(1, 2).reshape(batch * tokens, -1, dim) for x in (query, key, value))
        out = varlen_attn(q, k, v, boundaries["cu"], boundaries["cu"], boundaries["longest"], boundaries["longest"], scale=scaling, **boundaries["causal"])
        return out.view(batch, tokens, heads, dim), None
    out = [F.scaled_dot_product_attention(query[r:r + 1, :, a:b], key[r:r + 1, :, a:b], value[r:r + 1, :, a:b], is_causal=True,
                                          scale=scaling, enable_gqa=True) for r, a, b in spans]
    rows = [torch.cat([o for o, (r, _, _) in zip(out, spans) if r == row], dim=2) for row in range(query.shape[0])]
    return torch.cat(rows).transpose(1, 2).contiguous(), None


def set_documents(batch, row_tokens, most, device):
    total = len(batch["tokens"])
    cut = sorted({*batch["cu_seqlens"], *range(0, total + 1, row_tokens)})
    spans[:] = [(a // row_tokens, a % row_tokens, a % row_tokens + b - a) for a, b in zip(cut, cut[1:])]
    boundaries.clear()
    if device != "cuda":
        return
    try:
        import inspect
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return
    names = inspect.signature(varlen_attn).parameters
    if "scale" not in names:
        return
    causal = {"is_causal": True} if "is_causal" in names else {"window_size": (-1, 0)}
    if not repeat:  # does it take fewer heads of keys than of queries?
        try:
            q, k = (torch.zeros(16, heads, 64, device=device, dtype=torch.bfloat16) for heads in (4, 2))
            cu = torch.tensor([0, 16], dtype=torch.int32, device=device)
            varlen_attn(q, k, k, cu, cu, 16, 16, **causal)
            repeat.append(False)
        except RuntimeError:
            repeat.append(True)
    cut += [total] * (most - len(cut))  # empty documents, so that the shape stays and nothing is compiled anew
    boundaries.update(cu=torch.tensor(cut, dtype=torch.int32, device=device), longest=row_tokens, causal=causal, repeat=repeat[0])


# ---- the run

def load(options, config, data, block):
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
    helped = "helped" in options.variant
    attention = "sdpa"
    if helped:
        attention = "sdpa_documents"
        AttentionInterface.register(attention, document_attention)
    values = dict(config)
    values.pop("architectures")
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    dtype = block.dtype
    with torch.device(options.device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    if options.mode == "lora":
        from peft import LoraConfig, get_peft_model
        lora = LoraConfig(r=data["rank"], lora_alpha=2 * data["rank"], target_modules=TARGETS, task_type="CAUSAL_LM")
        model = get_peft_model(model, lora, autocast_adapter_dtype=not helped)  # PEFT's own default keeps A and B in f32
    fill(model, block)
    model.config.use_cache = False
    if options.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if options.mode == "lora":
            model.enable_input_require_grads()
    return model.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", required=True, help="what bench/train.lua --batches wrote")
    parser.add_argument("--variant", choices=VARIANTS, default="eager")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=0, help="0: as many as qeng made")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no step is begun")
    options = parser.parse_args()
    started = time.perf_counter()
    from safetensors.torch import load_file
    read = lambda name: json.load(open(os.path.join(options.dir, name)))
    ours, data, config = read("result.json"), read("batches.json"), read("config.json")
    options.mode = ours["mode"]
    torch.manual_seed(0)
    block = load_file(os.path.join(options.dir, "block.safetensors"), device=options.device)["block"]
    model = load(options, config, data, block)
    del block
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    helped = "helped" in options.variant
    parameters = [p for p in model.parameters() if p.requires_grad]
    # Masters in f32, as in qeng; PEFT's f32 adapters are their own.
    masters = [p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float()) for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=1e-5 if options.mode == "full" else 2e-4, weight_decay=0.0, fused=True)
    causal_lm = model.get_base_model() if options.mode == "lora" else model
    if "compiled" in options.variant:
        causal_lm.model.forward = torch.compile(causal_lm.model.forward)
    row_tokens, n = data["row_tokens"], len(data["batches"])
    most = 2 + max(len({*b["cu_seqlens"], *range(0, len(b["tokens"]) + 1, row_tokens)}) for b in data["batches"])

    def loss_of(b):
        if not helped:  # what a trainer does: restarted position_ids, the mask made by transformers, logits of every position
            return model(input_ids=b["tokens"], position_ids=b["positions"], shift_labels=b["labels"], labels=b["labels"],
                         num_items_in_batch=b["trained"], use_cache=False).loss
        hidden = causal_lm.model(input_ids=b["tokens"], position_ids=b["positions"], use_cache=False)[0]
        keep = b["labels"] != -100
        return F.cross_entropy(causal_lm.lm_head(hidden[keep]).float(), b["labels"][keep], reduction="sum") / b["trained"]

    def step(batch):
        if helped:
            set_documents(batch, row_tokens, most, options.device)
        on = lambda values: torch.tensor(values, device=options.device).view(-1, row_tokens)
        targets = on(batch["targets"])
        b = {"tokens": on(batch["tokens"]), "positions": on(batch["positions"]), "labels": torch.where(targets < 0, -100, targets),
             "trained": sum(t >= 0 for t in batch["targets"])}
        loss = loss_of(b)
        loss.backward()
        for m, p in zip(masters, parameters):
            if m is not p:
                m.grad, p.grad = p.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for m, p in zip(masters, parameters):
                if m is not p:
                    p.copy_(m)
        return loss.item()

    losses, times = [], []
    for i in range(options.steps or ours["steps"]):
        if time.perf_counter() - started > options.budget and len(times) > WARM_UP:
            print(f"{options.variant}: stopped after {i} steps, the budget of {options.budget:.0f} s was used up", flush=True)
            break
        begin = time.perf_counter()
        losses.append(step(data["batches"][i % n]))
        times.append(time.perf_counter() - begin)
        if i < WARM_UP or i % 5 == 0:
            print(f"{options.variant} step {i} loss {losses[-1]:.4f} {times[-1] * 1e3:.0f} ms", file=sys.stderr, flush=True)
    timed = sorted(times[min(WARM_UP, len(times) - 1):])
    median = statistics.median(timed)
    rate = row_tokens * data["rows"] / median
    import transformers
    result = {"who": options.variant, "torch": torch.__version__, "transformers": transformers.__version__, "device": options.device,
              "shape": ours["shape"], "mode": options.mode, "row_tokens": row_tokens, "rows": data["rows"], "steps": len(losses),
              "recompute": options.recompute, "tok_s": rate, "step_ms": median * 1e3, "step_ms_least": timed[0] * 1e3,
              "step_ms_most": timed[-1] * 1e3, "first_step_ms": times[0] * 1e3, "flops_s": rate * ours["flops_per_token"], "losses": losses,
              "ratio": ours["tok_s"] / rate, "largest_relative_loss_difference": max(abs(a - b) / b for a, b in zip(ours["losses"], losses)),
              "attention": "varlen_attn" if boundaries else "documents" if helped else "sdpa with transformers' mask"}
    if options.mode == "lora":
        import peft
        result["peft"] = peft.__version__
    if options.device == "cuda":
        result.update(peak_allocated=torch.cuda.max_memory_allocated(), peak_reserved=torch.cuda.max_memory_reserved(),
                      device_name=torch.cuda.get_device_name())
    with open(os.path.join(options.dir, options.variant.replace(", ", "_") + ".json"), "w") as f:
        json.dump(result, f, indent=1)
    print(f"{options.variant} {ours['shape']} {options.mode}, rows of {row_tokens}: {rate:.0f} tok/s, {median * 1e3:.1f} ms a step; qeng is {result['ratio']:.2f} "
          f"times as fast; losses differ by at most {result['largest_relative_loss_difference']:.1e}", flush=True)


if __name__ == "__main__":
    main()
