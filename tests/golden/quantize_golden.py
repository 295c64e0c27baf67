"""Makes tests/golden/quantize.safetensors: what error llama.cpp's quantizers leave, for tests/unit/quantize_test.cpp.

    python quantize_golden.py          (needs numpy, gguf and llama-cpp-python)

x: [8, 1024] f32 normal, importance: [1024] f32; TYPE.rmse: [2] f32, the root of the mean squared error without importance,
and with it the root of the mean of importance * error^2; TYPE.bytes: [8, bytes of a row] u8, what it writes without.
"""
import ctypes
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import write_safetensors

TYPES = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4", "tq1_0", "tq2_0", "iq4_xs"]
OTHER_IDS = {"q1_0": 41, "q2_0": 42}
SAME_BYTES = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "q1_0", "q2_0"}


class Traits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("block", ctypes.c_int64), ("interleave", ctypes.c_int64),
                ("size", ctypes.c_size_t), ("quantized", ctypes.c_bool),
                ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
                ("from_float", ctypes.c_void_p)]


def main():
    ggml = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so"))))
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                         ctypes.c_int64, ctypes.c_void_p]
    rng = np.random.default_rng(7)
    x = (rng.normal(size=(8, 1024)) * 0.02).astype(np.float32)
    importance = (rng.normal(size=1024) ** 2 + 0.01).astype(np.float32)
    tensors = {"x": x, "importance": importance}
    ids = {name: int(gguf.GGMLQuantizationType[name.upper()]) for name in TYPES} | OTHER_IDS
    for name, type_id in ids.items():
        traits = ggml.ggml_get_type_traits(type_id).contents
        errors = []
        for weights in (None, importance):
            data = np.zeros((8, 1024 // traits.block * traits.size), np.uint8)
            values = np.zeros_like(x)
            ggml.ggml_quantize_chunk(type_id, x.ctypes.data, data.ctypes.data, 0, 8, 1024,
                                     None if weights is None else weights.ctypes.data)
            traits.to_float(data.ctypes.data, values.ctypes.data, x.size)
            errors.append(np.sqrt(np.mean((1 if weights is None else weights) * (x.astype(np.float64) - values) ** 2)))
            if weights is None and name in SAME_BYTES:
                tensors[name + ".bytes"] = data
        tensors[name + ".rmse"] = np.array(errors, np.float32)
        print(name, errors)

    write_safetensors.write(Path(__file__).with_name("quantize.safetensors"), tensors)


main()
