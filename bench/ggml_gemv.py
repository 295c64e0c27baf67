"""Milliseconds of ggml's matrix-vector products on the CPU (the ggml of llama-cpp-python), for comparison with
qeng_bench_row_linear --shapes.

    python3 bench/ggml_gemv.py [--types q1_0,tq2_0] [--shapes 4096x4096,11008x4096] [--threads 2] [--rounds 9]

Random blocks with scales of 0.01, in as many copies as 256 MB hold, which one graph multiplies with one row of f32 each; the best
and the median of the rounds. tq2_0 is 66 bytes of 256 weights, q1_0 18 of 128, q8_0 34 of 32.
"""
import argparse
import ctypes
import glob
import os
import statistics
import time

import llama_cpp
import numpy

FORMATS = {"q8_0": (8, 32, 34, 0), "tq2_0": (35, 256, 66, 64), "q1_0": (None, 128, 18, 0)}  # type, weights, bytes, where the scale is
COPIES_BYTES = 256 << 20

folder = os.path.join(os.path.dirname(llama_cpp.__file__), "lib")


def library(name):
    return ctypes.CDLL(sorted(glob.glob(os.path.join(folder, f"lib{name}.so*")))[0], mode=ctypes.RTLD_GLOBAL)


class Parameters(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


base, cpu = library("ggml-base"), library("ggml-cpu")
pointer, integer = ctypes.c_void_p, ctypes.c_int64
for owner, name, result, arguments in (
        (base, "ggml_init", pointer, [Parameters]), (base, "ggml_free", None, [pointer]),
        (base, "ggml_type_name", ctypes.c_char_p, [ctypes.c_int]),
        (base, "ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, integer, integer]),
        (base, "ggml_mul_mat", pointer, [pointer, pointer, pointer]), (base, "ggml_get_data", pointer, [pointer]),
        (base, "ggml_new_graph_custom", pointer, [pointer, ctypes.c_size_t, ctypes.c_bool]),
        (base, "ggml_build_forward_expand", None, [pointer, pointer]),
        (cpu, "ggml_cpu_init", None, []),
        (cpu, "ggml_graph_compute_with_ctx", ctypes.c_int, [pointer, pointer, ctypes.c_int])):
    function = getattr(owner, name)
    function.restype, function.argtypes = result, arguments


def type_number(name):
    known = FORMATS[name][0]
    if known is not None:
        return known
    for number in range(64):
        if (base.ggml_type_name(number) or b"").decode().lower() == name:
            return number
    raise SystemExit(f"this ggml has no type {name}")


def measure(name, rows, columns, options):
    _, weights, size, scale = FORMATS[name]
    number = type_number(name)
    row_bytes = columns // weights * size
    copies = max(1, COPIES_BYTES // (rows * row_bytes))
    context = base.ggml_init(Parameters(copies * (rows * row_bytes + rows * 4 + 4096) + columns * 4 + (64 << 20), None, False))
    random = numpy.random.default_rng(0)
    blocks = random.integers(0, 256, (rows * columns // weights, size), dtype=numpy.uint8)
    blocks[:, scale:scale + 2] = numpy.frombuffer(numpy.float16(0.01).tobytes(), numpy.uint8)
    x = base.ggml_new_tensor_2d(context, 0, columns, 1)
    values = random.standard_normal(columns).astype(numpy.float32)
    ctypes.memmove(base.ggml_get_data(x), values.ctypes.data, values.nbytes)
    graph = base.ggml_new_graph_custom(context, 4 * copies + 16, False)
    for _ in range(copies):
        w = base.ggml_new_tensor_2d(context, number, columns, rows)
        ctypes.memmove(base.ggml_get_data(w), blocks.ctypes.data, blocks.nbytes)
        base.ggml_build_forward_expand(graph, base.ggml_mul_mat(context, w, x))
    times = []
    for _ in range(options.rounds + 1):
        begin = time.perf_counter()
        if cpu.ggml_graph_compute_with_ctx(context, graph, options.threads) != 0:
            raise SystemExit(f"{name}: ggml failed")
        times.append((time.perf_counter() - begin) / copies)
    base.ggml_free(context)
    best, median = min(times[1:]), statistics.median(times[1:])
    print(f"ggml {name:8} {rows:6} x {columns:6} {best * 1e3:9.4f} {median * 1e3:9.4f} ms"
          f" {rows * row_bytes / best * 1e-9:8.2f} GB/s {rows * columns / best * 1e-9:8.1f} MAC/ns", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default="q1_0,tq2_0")
    parser.add_argument("--shapes", default="4096x4096,11008x4096")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    cpu.ggml_cpu_init()
    for name in options.types.split(","):
        for shape in options.shapes.split(","):
            rows, columns = map(int, shape.split("x"))
            measure(name, rows, columns, options)
