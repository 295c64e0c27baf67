#!/usr/bin/env python3
"""Decoding of one sequence in PyTorch: transformers' Qwen3ForCausalLM, static KV cache, torch.compile.

    python3 bench/decode_peer.py --config config.json --context 512 --tokens 128

Random bf16 weights of the shape in config.json, which bench/decode_model.lua writes. A prompt of --context tokens, then --tokens
steps of greedy decoding, each one call of a function that torch.compile made in mode reduce-overhead (CUDA graphs). Two ways, in
turns, --repeats times each: `waited`, the token read after every step, as bench_decode.lua does it, median of all steps; `queued`,
the token left on the device and one wait at the end, median of the repeats. The faster counts. Steps of warm-up, in which it
compiles and records, are not timed. The cache has room for what is decoded and no more, as the mask covers all of it.
Prints one line of JSON. Needs torch and transformers.
"""
import argparse
import inspect
import json
import statistics
import sys
import time

import torch

WARM_UP = 8  # steps before the first repeat: compiling, recording, and the first replays


def build(values, dtype, device):
    from transformers import Qwen3Config, Qwen3ForCausalLM
    values = {k: v for k, v in values.items() if k not in ("architectures", "model_type", "rope_theta")}
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    if "rope_parameters" not in inspect.signature(Qwen3Config.__init__).parameters:  # before transformers 5
        theta = {"rope_theta": 1e6}
    config = Qwen3Config(**values, **theta)
    config._attn_implementation = "sdpa"
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


class Decoder:
    """One sequence: prefill() sets it to the prompt, step() appends a token. The token and its position stay where they are."""

    def __init__(self, model, room, device, mode):
        from transformers import StaticCache
        self.model, self.device = model, device
        self.cache = StaticCache(config=model.config, max_cache_len=room, max_batch_size=1, device=device, dtype=model.dtype)
        self.token = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.wants_position = "cache_position" in inspect.signature(model.model.forward).parameters  # before transformers 5
        self.compiled = torch.compile(self.next, mode=mode)

    def next(self, tokens, positions):
        more = {"cache_position": positions[0]} if self.wants_position else {}
        logits = self.model(input_ids=tokens, position_ids=positions, past_key_values=self.cache, use_cache=True, logits_to_keep=1, **more).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def prefill(self, prompt):  # not compiled: transformers' own generate() does not either
        self.cache.reset()
        self.token.copy_(self.next(prompt, torch.arange(prompt.shape[1], device=self.device)[None]))
        self.position.fill_(prompt.shape[1])

    def step(self):
        torch.compiler.cudagraph_mark_step_begin()
        self.token.copy_(self.compiled(self.token, self.position))
        self.position.add_(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="config.json of the shape")
    parser.add_argument("--context", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=128, help="steps that are timed in each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no repeat is begun")
    options = parser.parse_args()
    started = time.perf_counter()

    def log(text):
        print(f"{time.perf_counter() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    def wait():
        if options.device == "cuda":
            torch.cuda.synchronize()

    torch.manual_seed(0)
    with open(options.config) as f:
        values = json.load(f)
    model = build(values, torch.bfloat16, options.device)
    log(f"model of {sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion weights")
    prompt = (torch.arange(1, options.context + 1, device=options.device) * 104729 % values["vocab_size"])[None]

    with torch.no_grad():
        decoder = Decoder(model, options.context + max(options.tokens, WARM_UP), options.device, options.mode)
        decoder.prefill(prompt)
        for i in range(WARM_UP):
            decoder.step()
            wait()
            if i < 3:
                log(f"step {i} of the warm-up")
        prefills, waited, queued = [], [], []
        for i in range(options.repeats):
            if waited and time.perf_counter() - started > options.budget:
                log(f"stopped after {i} repeats: the budget of {options.budget:.0f} s was used up")
                break
            wait()
            begin = time.perf_counter()
            decoder.prefill(prompt)
            wait()
            prefills.append(time.perf_counter() - begin)
            for _ in range(options.tokens):
                begin = time.perf_counter()
                decoder.step()
                decoder.token.item()
                waited.append(time.perf_counter() - begin)
            decoder.prefill(prompt)
            wait()
            begin = time.perf_counter()
            for _ in range(options.tokens):
                decoder.step()
            wait()
            queued.append((time.perf_counter() - begin) / options.tokens)
            log(f"repeat {i}: {1 / statistics.median(waited[-options.tokens:]):.1f} tokens/s waited, {1 / queued[-1]:.1f} queued")

    if int(decoder.cache.get_seq_length()) != options.context + options.tokens:
        sys.exit(f"the cache holds {int(decoder.cache.get_seq_length())} tokens, expected {options.context + options.tokens}: these were not the steps that were meant")
    import transformers
    from torch._dynamo.utils import counters
    seconds = {"waited": statistics.median(waited), "queued": statistics.median(queued)}
    print(json.dumps({
        "who": f"PyTorch, static cache, torch.compile {options.mode}", "torch": torch.__version__, "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu", "context": options.context, "tokens": options.tokens,
        "repeats": len(queued), "tokens_per_second": 1 / min(seconds.values()), "waited": 1 / seconds["waited"], "queued": 1 / seconds["queued"],
        "prefill_tokens_per_second": options.context / statistics.median(prefills), "compiled_prefill": False,
        "graph_breaks": sum(counters["graph_break"].values()), "skipped_cuda_graphs": counters["inductor"]["cudagraph_skips"],
        "peak_bytes": torch.cuda.max_memory_allocated() if options.device == "cuda" else None, "seconds": time.perf_counter() - started,
    }), flush=True)


if __name__ == "__main__":
    main()
