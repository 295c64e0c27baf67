#!/usr/bin/env python3
"""Steps of a model of random weights, in qeng (bench/model_steps.lua) and transformers, in turns and in one run:

    TORCH_USE_RTLD_GLOBAL=1 TQDM_DISABLE=1 $(tests/peers/environment) bench/model_steps_peer.py --qeng build/release/qeng
        [--model gpt2] [--dtype f32] [--tokens 512] [--rows 1] [--rounds 3] [--threads 2] [--only train]

train: forward, backward, clipping to 1 and AdamW's step of all weights, one packed row in qeng, the same tokens in PyTorch,
eager and without checkpoints; AdamW is torch's fused one, experts are those of --experts (grouped_mm is the fastest, eager the
oldest). decode: a token after a context of so many, with a cache; transformers' own dynamic one,
each step its forward and argmax. Each round runs both; the least of the rounds counts, as other programs on the
machine only lengthen it."""
import argparse
import json
import os
import subprocess
import tempfile
import time

SHAPES = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
             "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 512, "head_dim": 64,
                  "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 8192,
                  "num_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 256, "intermediate_size": 1024,
                  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
                  "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False},
    # Qwen3.5-0.8B, of its 24 layers four; transformers computes the delta rule in PyTorch.
    "qwen3_5": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584,
                "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
                "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "attn_output_gate": True, "hidden_act": "silu",
                "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                                    "mrope_section": [11, 11, 10], "mrope_interleaved": True}},
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--qeng", required=True)
parser.add_argument("--model", default="gpt2", choices=SHAPES)
parser.add_argument("--dtype", default="f32", choices=("f32", "bf16"))
parser.add_argument("--experts", default="grouped_mm", help="transformers' implementation")
parser.add_argument("--tokens", type=int, default=512)
parser.add_argument("--rows", type=int, default=1)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--repeats", type=int, default=3)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--only", default="")
opt = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(opt.threads)
import torch  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(opt.threads)
shape = SHAPES[opt.model]
# Dropout would be more work than qeng does.
config = transformers.AutoConfig.for_model(**{k: v for k, v in shape.items() if k != "architectures"})
for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout"):
    if hasattr(config, key):
        setattr(config, key, 0.0)
torch.manual_seed(1)
implementations = dict(attn_implementation="sdpa", **(dict(experts_implementation=opt.experts) if "num_experts" in shape else {}))
model = transformers.AutoModelForCausalLM.from_config(config, **implementations).to(torch.float32 if opt.dtype == "f32" else torch.bfloat16)
count = opt.rows * opt.tokens
ids = torch.tensor([i * 104729 % shape["vocab_size"] for i in range(1, count + 1)]).reshape(opt.rows, opt.tokens)
targets = torch.tensor([i * 7919 % shape["vocab_size"] for i in range(1, count + 1)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def fastest(body):
    best = float("inf")
    for _ in range(opt.repeats):
        begin = time.perf_counter()
        body()
        best = min(best, time.perf_counter() - begin)
    return best


def train_step():
    model.train()
    logits = model(ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(count, -1).float(), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def decode():
    model.eval()
    with torch.inference_mode():
        out = model(ids[:1], use_cache=True)
        cache, token = out["past_key_values"], torch.tensor([[1]])

        def step():
            nonlocal token
            token = model(token, cache=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)

        step()
        step()
        best = float("inf")
        for _ in range(8):
            best = min(best, fastest(step))
        return best


def train():
    return fastest(train_step)


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "config.json")
    with open(path, "w") as file:
        json.dump(shape, file)
    qeng = subprocess.Popen([opt.qeng, "bench/model_steps.lua", "--config", path, "--tokens", str(opt.tokens), "--rows", str(opt.rows),
                             "--threads", str(opt.threads), "--dtype", opt.dtype, "--repeats", str(opt.repeats)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ours(what):
        qeng.stdin.write(what + "\n")
        qeng.stdin.flush()
        return float(qeng.stdout.readline())

    print(f"{opt.model}, {opt.dtype}, PyTorch {torch.__version__}, transformers {transformers.__version__}, {opt.threads} threads, "
          f"{opt.rows} x {opt.tokens} tokens, {opt.rounds} rounds\n")
    print("| step | qeng ms | transformers ms | times as fast | rounds |\n|---|---|---|---|---|")
    for name, peer in (("decode", decode), ("train", train)):
        if opt.only in name:
            if name == "train":
                train_step()  # makes the optimizer's state
            rounds = [(ours(name), peer()) for _ in range(opt.rounds)]
            mine, theirs = (min(column) for column in zip(*rounds))
            each = ", ".join(f"{b / a:.2f}" for a, b in rounds)
            print(f"| {name} | {1e3 * mine:.1f} | {1e3 * theirs:.1f} | {theirs / mine:.2f} | {each} |", flush=True)
    qeng.stdin.close()
