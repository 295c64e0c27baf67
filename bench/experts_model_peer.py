#!/usr/bin/env python3
"""bench/experts_model.lua's steps in qeng and transformers, in turns and in one run, on the same number of threads:

    TORCH_USE_RTLD_GLOBAL=1 $(tests/peers/environment) bench/experts_model_peer.py --qeng build/release/qeng [--rounds 5]
        [--threads 2] [--steps 3] [--dtype f32]

The same shapes, tokens, loss and AdamW, with random weights of each program's own. transformers' experts are measured by two of its
implementations (batched_mm copies a weight for each token), and AdamW is torch's fused one. In each round every one takes --steps steps, whose median counts, and then the least of
the rounds, as other programs on the machine only lengthen it."""
import argparse
import platform
import statistics
import subprocess
import time

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--qeng", required=True)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
parser.add_argument("--implementations", default="eager,grouped_mm")
opt = parser.parse_args()
torch.set_num_threads(opt.threads)

TOKENS, VOCAB, RATE = 512, 8192, 1e-4
IDS = torch.tensor([[(i * 7919 + i * i // 7) % VOCAB for i in range(1, TOKENS + 1)]])


class Peer:
    def __init__(self, implementation):
        config = transformers.Qwen3MoeConfig(
            hidden_size=512, intermediate_size=1024, moe_intermediate_size=256, num_experts=32, num_experts_per_tok=8, norm_topk_prob=True,
            num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=64, vocab_size=VOCAB, max_position_embeddings=2048)
        dtype = torch.float32 if opt.dtype == "f32" else torch.bfloat16
        self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, experts_implementation=implementation).train()
        self.adamw = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.1, fused=True)

    def seconds(self, steps):
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            loss = self.model(IDS, labels=IDS, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.adamw.step()
            self.adamw.zero_grad()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)


qeng = subprocess.Popen([opt.qeng, "bench/experts_model.lua", "--serve", "--threads", str(opt.threads), "--dtype", opt.dtype],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ours():
    qeng.stdin.write(f"{opt.steps}\n")
    qeng.stdin.flush()
    return float(qeng.stdout.readline().split()[0])


peers, rounds = {}, []
for name in opt.implementations.split(","):
    peers[name] = Peer(name)
    peers[name].seconds(1)
for _ in range(opt.rounds):
    rounds.append([ours(), *(peer.seconds(opt.steps) for peer in peers.values())])
    print("  ".join(f"{seconds:.3f}" for seconds in rounds[-1]), flush=True)
best = [min(column) for column in zip(*rounds)]
print(f"\ntransformers {transformers.__version__}, PyTorch {torch.__version__}, {platform.machine()}, {opt.threads} threads, {opt.dtype}\n")
print("| program | s a step | tokens/s | over qeng |")
print("|---|---|---|---|")
for name, seconds in zip(["qeng", *(f"transformers, {name}" for name in peers)], best):
    print(f"| {name} | {seconds:.3f} | {TOKENS / seconds:.0f} | {seconds / best[0]:.2f} |")
qeng.stdin.close()
