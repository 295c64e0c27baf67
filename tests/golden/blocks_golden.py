"""Makes tests/golden/blocks.safetensors: bytes of blocks of every format and the f32 values they stand for.

    python blocks_golden.py            (needs numpy, gguf and llama-cpp-python)

NAME.bytes: [blocks, bytes] u8, random but for the scales; NAME.values: [blocks, weights] f32. The scales of a format's first
blocks are extreme (0, the least and the largest half, infinite, not a number), those of the others ordinary. Values are the
gguf package's, checked against llama.cpp's; of formats that gguf lacks, llama.cpp's; of those that both lack (pq2_0, ptq1_0,
int4, one_bit, ternary), what the description of the layout says, written here independently of the C++.
"""
import ctypes
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import write_safetensors

EXTREME = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00]
ORDINARY = 3
# weights, bytes, offsets of halves
FORMATS = {
    "q4_0": (32, 18, [0]), "q4_1": (32, 20, [0, 2]), "q5_0": (32, 22, [0]), "q5_1": (32, 24, [0, 2]), "q8_0": (32, 34, [0]),
    "q2_k": (256, 84, [80, 82]), "q3_k": (256, 110, [108]), "q4_k": (256, 144, [0, 2]), "q5_k": (256, 176, [0, 2]),
    "q6_k": (256, 210, [208]), "iq4_nl": (32, 18, [0]), "mxfp4": (32, 17, []), "tq1_0": (256, 54, [52]),
    "tq2_0": (256, 66, [64]), "q1_0": (128, 18, [0]), "q2_0": (64, 18, [0]), "pq2_0": (128, 34, [0]),
    "ptq1_0": (128, 28, [26]), "int4": (32, 20, [0]),
    "one_bit": (32, 4, []), "ternary": (32, 8, []),
    "iq4_xs": (256, 136, [0]), "iq2_xxs": (256, 66, [0]), "iq2_xs": (256, 74, [0]), "iq2_s": (256, 82, [0]),
    "iq3_xxs": (256, 98, [0]), "iq3_s": (256, 110, [0]), "iq1_s": (256, 50, [0]), "iq1_m": (256, 56, [48]),
}


class Traits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("block", ctypes.c_int64), ("interleave", ctypes.c_int64),
                ("size", ctypes.c_size_t), ("quantized", ctypes.c_bool),
                ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
                ("from_float", ctypes.c_void_p)]


def ggml_traits():
    ggml = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so"))))
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    known = [ggml.ggml_get_type_traits(i).contents for i in range(43)]
    return {t.name.decode().lower(): t for t in known if t.quantized and t.to_float}


def by_ggml(traits, data, weights):
    out = np.empty((len(data), weights), np.float32)
    data = np.ascontiguousarray(data)
    traits.to_float(data.ctypes.data, out.ctypes.data, out.size)
    return out


def halves(data, offset):
    return data[:, offset:offset + 2].copy().view(np.float16).astype(np.float32)


def pq2_0(data):  # four codes a byte, the first lowest; value (code - 1) d
    codes = np.array([[row[2 + k // 4] // 4 ** (k % 4) % 4 for k in range(128)] for row in data.astype(int)])
    return halves(data, 0) * (codes - 1).astype(np.float32)


def ptq1_0(data):  # digits by exact arithmetic: a byte q stands for q / 256, whose digits in base 3 are the codes
    def digits(byte, count):
        found = []
        for _ in range(count):
            byte *= 3
            found.append(byte // 256)
            byte %= 256
        return found

    codes = np.zeros((len(data), 128))
    for row, out in zip(data.astype(int), codes):
        weight = 0
        for first, run, count in ((0, 16, 5), (16, 8, 5), (24, 2, 4)):
            for m in range(run):
                for n, digit in enumerate(digits(row[first + m], count)):
                    out[weight + run * n + m] = digit
            weight += run * count
    return halves(data, 26) * (codes - 1).astype(np.float32)


def int4(data):  # half d, byte zero, byte unused, then weights j and j + 16 in byte j
    low, high = data[:, 4:].astype(int) % 16, data[:, 4:].astype(int) // 16
    return halves(data, 0) * (np.concatenate([low, high], 1) - data[:, 2:3].astype(int)).astype(np.float32)


def one_bit(data):
    return np.unpackbits(data, axis=1, bitorder="little").astype(np.float32) * 2 - 1


def ternary(data):  # a word of 32 bits holds sixteen pairs
    pairs = data.copy().view("<u4")[:, :, None] >> np.arange(0, 32, 2, dtype=np.uint32) & 3
    return np.array([0, 1, -1, 0], np.float32)[pairs].reshape(len(data), 32)


def same(a, b):
    return np.array_equal(np.where(np.isnan(a), np.float32(0), a).view(np.uint32),
                          np.where(np.isnan(b), np.float32(0), b).view(np.uint32)) and np.array_equal(np.isnan(a), np.isnan(b))


def main():
    rng = np.random.default_rng(5)
    traits, ids = ggml_traits(), {t.name.lower(): t for t in gguf.GGMLQuantizationType}
    tensors = {}
    for name, (weights, size, offsets) in FORMATS.items():
        count = ORDINARY + (len(EXTREME) if offsets else 2)
        data = rng.integers(0, 256, (count, size), dtype=np.uint8)
        if name == "int4":
            data[:, 2] %= 17
        if name == "mxfp4":
            data[:, 0] = [0, 1, 120, 127, 255][:count]
        for i in range(count if offsets else 0):
            for which, offset in enumerate(offsets):
                bits = EXTREME[(i * (1 + 3 * which) + which) % len(EXTREME)] if i < len(EXTREME) else \
                    int(np.float16(rng.normal() * 0.02).view(np.uint16))
                if name == "iq1_m":  # four bits of it above each of the scales
                    for part in range(4):
                        data[i, offset + 1 + 2 * part] = data[i, offset + 1 + 2 * part] % 16 | (bits >> 4 * part & 15) << 4
                else:
                    data[i, offset:offset + 2] = [bits & 255, bits >> 8]
        with np.errstate(all="ignore"):
            values = []
            if ids.get(name) in gguf.quants._type_traits:
                values.append(gguf.quants.dequantize(data, ids[name]))
            if name in traits:
                values.append(by_ggml(traits[name], data, weights))
            if not values:
                values.append(globals()[name](data))
        if len(values) == 2 and not same(*values):
            print(f"{name}: gguf and llama.cpp differ in {np.sum(values[0] != values[1])} of {values[0].size} values")
        print(f"{name}: {count} blocks, {len(values)} sources")
        tensors[name + ".bytes"], tensors[name + ".values"] = data, values[0].astype(np.float32)

    write_safetensors.write(Path(__file__).with_name("blocks.safetensors"), tensors)


main()
