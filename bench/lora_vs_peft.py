#!/usr/bin/env python3
"""LoRA on a Qwen2.5-0.5B-shaped model with transformers + PEFT on this CPU: the peer of recipes/lora_qwen.lua.

    python3 tests/golden/make_random_model.py --out /tmp/qwen05 --tokenizer ../shared/data/qwen.tiktoken
    python3 bench/lora_vs_peft.py --model /tmp/qwen05 --batches batches.json [--metrics out/metrics.jsonl] > peft.json
    python3 bench/lora_vs_peft.py --model /tmp/qwen05 --synthetic ../shared/data/code_alpaca_2k.json

README.md says what each variant is, what the batches file holds and how to read the figures. Needs torch, transformers, peft.
"""
import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time

RANK, ALPHA, LR, CLIP, WARM_UP = 16, 32, 2e-4, 1.0, 3
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VARIANTS = ["stock", "best", "compiled"]  # the last only on request: it compiles for minutes


# ---- batches: {"row_tokens": n, "batches": [{"tokens": [], "targets": [], "positions": [], "cu_seqlens": []}, ...]}

def synthetic(path, model_folder, row_tokens, rows, steps):
    """Packs alpaca records in file order, ChatML, answer and <|im_end|> trained; a record that does not fit opens a new row."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    end = tokenizer.encode("<|im_end|>")
    with open(path) as f:
        records = json.load(f)
    packed, row = [], []
    for r in records:
        user = r["instruction"] + ("\n" + r["input"] if r.get("input") else "")
        prompt = tokenizer.encode(f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
        answer = tokenizer.encode(r["output"]) + end
        tokens = prompt + answer + tokenizer.encode("\n")
        mask = [0] * len(prompt) + [1] * len(answer) + [0]
        if len(tokens) > row_tokens:
            continue
        if sum(len(t) for t, _ in row) + len(tokens) > row_tokens:
            packed.append(row)
            row = []
            if len(packed) == rows * steps:
                break
        row.append((tokens, mask))
    batches = []
    for first in range(0, rows * steps, rows):
        batch = {"tokens": [], "targets": [], "positions": [], "cu_seqlens": [0]}
        for row in packed[first:first + rows]:
            row_end = len(batch["tokens"]) + row_tokens
            for tokens, mask in row:
                batch["tokens"] += tokens
                batch["targets"] += [t if m else -1 for t, m in zip(tokens[1:], mask[1:])] + [-1]
                batch["positions"] += range(len(tokens))
                batch["cu_seqlens"].append(len(batch["tokens"]))
            padding = row_end - len(batch["tokens"])
            batch["tokens"] += [tokenizer.pad_token_id] * padding
            batch["targets"] += [-1] * padding
            batch["positions"] += range(padding)
            if padding:
                batch["cu_seqlens"].append(row_end)
        batch["real_tokens"] = sum(len(t) for row in packed[first:first + rows] for t, _ in row)
        batches.append(batch)
    return {"row_tokens": row_tokens, "batches": batches}


def check(data):
    n = data["row_tokens"]
    for i, b in enumerate(data["batches"]):
        size = len(b["tokens"])
        if size % n or not (size == len(b["targets"]) == len(b["positions"])):
            sys.exit(f"batch {i}: {size} tokens, {len(b['targets'])} targets, {len(b['positions'])} positions: not whole rows of {n}")
        cu = b["cu_seqlens"]
        if cu[0] != 0 or sorted(cu) != cu or cu[-1] > size:
            sys.exit(f"batch {i}: cu_seqlens must rise from 0 to at most {size}")
        b.setdefault("real_tokens", cu[-1])
    return data


def documents(batch):
    """A number for each token: its document's; what lies after the last one is a document of its own."""
    ids, cu = [], batch["cu_seqlens"] + [len(batch["tokens"])]
    for d, (a, b) in enumerate(zip(cu, cu[1:])):
        ids += [d] * (b - a)
    return ids


# ---- the machine

def memory(field="VmHWM"):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field))


def reset_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def matmul_rates(torch):
    """GFLOP/s of x W^T in bf16: squares, then the shapes of the model with 512 rows."""
    rates = {}
    shapes = [(n, n, n) for n in (512, 1024, 2048)] + [(512, 4864, 896), (512, 896, 4864), (512, 151936, 896)]
    for m, n, k in shapes:
        x, w = torch.randn(m, k, dtype=torch.bfloat16), torch.randn(n, k, dtype=torch.bfloat16)
        times = []
        while len(times) < 5 or (sum(times) < 0.5 and len(times) < 100):
            start = time.perf_counter()
            torch.nn.functional.linear(x, w)
            times.append(time.perf_counter() - start)
        rates[f"{m}x{n}x{k}"] = round(2 * m * n * k / min(times) / 1e9, 1)
    return rates


# ---- attention of one document at a time, so that no score across documents is computed

spans = []  # of the current batch: for each row, its documents' (start, end)


def document_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    from torch import cat
    from torch.nn.functional import scaled_dot_product_attention as sdpa
    rows = [cat([sdpa(query[r:r + 1, :, a:b], key[r:r + 1, :, a:b], value[r:r + 1, :, a:b], is_causal=True, scale=scaling,
                      enable_gqa=True) for a, b in row], dim=2) for r, row in enumerate(spans)]
    return cat(rows).transpose(1, 2).contiguous(), None


def set_spans(batch, row_tokens):
    cut = sorted({*batch["cu_seqlens"], *range(0, len(batch["tokens"]) + 1, row_tokens)})
    spans[:] = [[] for _ in range(len(batch["tokens"]) // row_tokens)]
    for a, b in zip(cut, cut[1:]):
        spans[a // row_tokens].append((a % row_tokens, a % row_tokens + b - a))


# ---- one variant, in a process of its own so that peak memory is its own

def load(options, torch):
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AttentionInterface, AutoModelForCausalLM
    torch.manual_seed(0)
    attention = "sdpa"
    if options.variant == "best":
        attention = "sdpa_documents"
        AttentionInterface.register(attention, document_attention)
    base = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16, attn_implementation=attention)
    stock = options.variant == "stock"  # PEFT's own default keeps A and B in f32 and casts around them
    if options.init:
        model = PeftModel.from_pretrained(base, options.init, is_trainable=True, autocast_adapter_dtype=stock)
    else:
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM")
        model = get_peft_model(base, config, autocast_adapter_dtype=stock)
    return model.train()


def stock_loss(model, b, torch):
    """What a trainer does: restarted position_ids, mask made by transformers, logits of every position."""
    return model(input_ids=b["tokens"], position_ids=b["positions"], shift_labels=b["labels"], labels=b["labels"],
                 num_items_in_batch=b["trained"], use_cache=False).loss


def best_loss(model, b, torch):
    """Attention within documents (compiled: a mask made once a step), and logits of the trained positions only."""
    causal_lm = model.get_base_model()
    hidden = causal_lm.model(input_ids=b["tokens"], position_ids=b["positions"], attention_mask=b.get("mask"), use_cache=False)[0]
    keep = b["labels"] != -100
    logits = causal_lm.lm_head(hidden[keep])
    return torch.nn.functional.cross_entropy(logits.float(), b["labels"][keep], reduction="sum") / b["trained"]


def tensors(batch, row_tokens, variant, torch):
    set_spans(batch, row_tokens)
    shape = (-1, row_tokens)
    targets = torch.tensor(batch["targets"])
    ids = torch.tensor(documents(batch)).view(shape)
    causal = torch.ones(row_tokens, row_tokens, dtype=torch.bool).tril()
    made = {"tokens": torch.tensor(batch["tokens"]).view(shape), "positions": torch.tensor(batch["positions"]).view(shape),
            "labels": torch.where(targets < 0, -100, targets).view(shape), "trained": int((targets >= 0).sum()),
            "mask": ((ids[:, :, None] == ids[:, None, :]) & causal)[:, None]}
    return made if variant == "compiled" else {k: v for k, v in made.items() if k != "mask"}


def run_variant(options, data):
    import torch
    torch.set_num_threads(options.threads)
    model = load(options, torch)
    parameters = [p for p in model.parameters() if p.requires_grad]
    stock = options.variant == "stock"
    # Otherwise A and B are bf16 in the model with f32 masters and moments, as in qeng.
    masters = parameters if stock else [torch.nn.Parameter(p.detach().float()) for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=LR, weight_decay=0.0, fused=not stock)
    loss_of = stock_loss if stock else best_loss
    if options.variant == "compiled":
        causal_lm = model.get_base_model()
        causal_lm.model.forward = torch.compile(causal_lm.model.forward)
    loading_peak = memory()
    gc.collect()
    reset_peak()

    def step(b):
        loss = loss_of(model, b, torch)
        loss.backward()
        if not stock:
            for m, p in zip(masters, parameters):
                m.grad, p.grad = p.grad.float(), None
        norm = torch.nn.utils.clip_grad_norm_(masters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not stock:
            with torch.no_grad():
                for m, p in zip(masters, parameters):
                    p.copy_(m)
        return loss.item(), norm.item()

    losses, norms, times, cpu, profile = [], [], [], [], None
    for i in range(options.steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        loss, norm = step(tensors(data["batches"][i % len(data["batches"])], data["row_tokens"], options.variant, torch))
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
        losses.append(loss)
        norms.append(norm)
        print(f"{options.variant} step {i} loss {loss:.4f} {times[-1] * 1e3:.0f} ms, {cpu[-1] * 1e3:.0f} ms of CPU", file=sys.stderr, flush=True)
    peak = memory()
    if options.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
            step(tensors(data["batches"][0], data["row_tokens"], options.variant, torch))
        rows = sorted(p.key_averages(), key=lambda e: -e.self_cpu_time_total)
        whole = sum(e.self_cpu_time_total for e in rows)
        profile = [{"op": e.key, "share": round(e.self_cpu_time_total / whole, 3), "ms": round(e.self_cpu_time_total / 1e3, 1),
                    "calls": e.count} for e in rows[:14]]
    timed = times[min(WARM_UP, len(times) - 1):]
    slots = len(data["batches"][0]["tokens"])
    real = statistics.mean(b["real_tokens"] for b in data["batches"][:options.steps])
    median = statistics.median(timed)
    return {"variant": options.variant, "step_ms_median": round(median * 1e3, 1), "step_ms_min": round(min(timed) * 1e3, 1),
            "step_cpu_ms_median": round(statistics.median(cpu[-len(timed):]) * 1e3, 1), "step_ms_max": round(max(timed) * 1e3, 1), "tok_s": round(slots / median, 2), "real_tok_s": round(real / median, 2),
            "losses": losses, "grad_norms": norms, "peak_rss_train": peak, "peak_rss_load": loading_peak,
            "trainable": sum(p.numel() for p in parameters), "profile": profile}


def compare(path, result):
    """Sets qeng's metrics.jsonl of the same batches against the fastest variant."""
    with open(path) as f:
        ours = [json.loads(line) for line in f if line.strip()]
    peer = max(result["variants"], key=lambda v: v["tok_s"])
    timed = [m["step_ms"] for m in ours[min(WARM_UP, len(ours) - 1):]]
    rate = result["slots"] / (statistics.median(timed) / 1e3)
    differences = [abs(m["loss"] - p) / p for m, p in zip(ours, peer["losses"])]
    return {"qeng_tok_s": round(rate, 2), "peer": peer["variant"], "peer_tok_s": peer["tok_s"], "ratio": round(rate / peer["tok_s"], 3),
            "qeng_mem_bytes": max(m.get("mem_bytes", 0) for m in ours), "peer_peak_rss": peer["peak_rss_train"],
            "largest_relative_loss_difference": max(differences)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="HF folder (tests/golden/make_random_model.py)")
    parser.add_argument("--batches", help="packed batches as qeng exports them")
    parser.add_argument("--synthetic", help="alpaca JSON to pack here instead")
    parser.add_argument("--write-batches", help="write the packed batches to this file and stop")
    parser.add_argument("--init", help="PEFT adapter folder to start from (so that losses can be compared)")
    parser.add_argument("--metrics", help="qeng's metrics.jsonl over the same batches, to compare with")
    parser.add_argument("--variant", choices=["all", *VARIANTS], default="all")
    parser.add_argument("--compiled", action="store_true", help="all: run the compiled variant too")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1, help="rows a step, with --synthetic")
    parser.add_argument("--row-tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="one more step under torch.profiler")
    options = parser.parse_args()
    if bool(options.batches) == bool(options.synthetic):
        parser.error("give --batches or --synthetic")
    if options.batches:
        with open(options.batches) as f:
            data = json.load(f)
    else:
        data = synthetic(options.synthetic, options.model, options.row_tokens, options.rows, options.steps)
    if options.write_batches:
        with open(options.write_batches, "w") as f:
            json.dump(check(data), f)
        return
    check(data)
    if options.variant != "all":
        print(json.dumps(run_variant(options, data)))
        return
    result = {"variants": [], "threads": options.threads, "slots": len(data["batches"][0]["tokens"]), "row_tokens": data["row_tokens"]}
    for variant in VARIANTS if options.compiled else VARIANTS[:2]:
        child = subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--variant", variant], stdout=subprocess.PIPE, text=True)
        if child.returncode:
            print(f"variant {variant} failed with status {child.returncode}", file=sys.stderr)
            continue
        result["variants"].append(json.loads(child.stdout.splitlines()[-1]))
    import peft
    import torch
    import transformers
    torch.set_num_threads(options.threads)
    result["matmul_gflops_bf16"] = matmul_rates(torch)
    result["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__,
                          "python": sys.version.split()[0]}
    result["load_average"] = os.getloadavg()
    if options.metrics:
        result["comparison"] = compare(options.metrics, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
