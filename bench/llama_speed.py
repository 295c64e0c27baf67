"""Tokens/s of llama-cpp-python on GGUF files, for comparison: decoding, and prefill of a prompt.

    python3 bench/llama_speed.py [--threads 2] [--prompt 512] [--decode 32] [--rounds 3] [--clock cpu] FILE.gguf...

--mean: the mean of the rounds, for a machine that is meant to be busy. --clock cpu counts time on the processor, with one thread: for a machine that others use too. Random tokens, no sampling; the best of the rounds. n_ctx 1024 and n_batch 512, or what the prompt needs.
"""
import argparse
import ctypes
import time

import llama_cpp
import numpy

quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)


def measure(path, options):
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"{path}: llama.cpp cannot load it")
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = max(1024, options.prompt + options.decode)
    parameters.n_batch = parameters.n_ubatch = options.prompt
    parameters.n_threads = parameters.n_threads_batch = options.threads
    context = llama_cpp.llama_init_from_model(model, parameters)
    memory = llama_cpp.llama_get_memory(context)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    random = numpy.random.default_rng(0)

    now = time.process_time if options.clock == "cpu" else time.perf_counter

    def run(count):
        tokens = (llama_cpp.llama_token * count)(*random.integers(0, vocabulary, count).tolist())
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, count)):
            raise SystemExit(f"{path}: llama_decode failed")
        llama_cpp.llama_synchronize(context)

    prefills, decodes = [], []
    for _ in range(options.rounds):
        llama_cpp.llama_memory_clear(memory, True)
        start = now()
        run(options.prompt)
        prefills.append(now() - start)
        llama_cpp.llama_memory_clear(memory, True)
        run(1)
        start = now()
        for _ in range(options.decode):
            run(1)
        decodes.append(now() - start)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    typical = (lambda times: sum(times) / len(times)) if options.mean else min
    prefill, decode = options.prompt / typical(prefills), options.decode / typical(decodes)
    print(f"{path}: decode {decode:.2f} tokens/s, prefill of {options.prompt} {prefill:.2f} tokens/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    for name, default in (("threads", 2), ("prompt", 512), ("decode", 32), ("rounds", 3)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--mean", action="store_true")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    if options.clock == "cpu":
        options.threads = 1
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    for file in options.files:
        measure(file, options)
