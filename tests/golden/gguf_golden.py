"""Writes small.gguf with the gguf package: every kind of entry, and tensors of a few types.

    python3 tests/golden/gguf_golden.py        (needs gguf and numpy)
"""
import os

import gguf
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
w = gguf.GGUFWriter(os.path.join(here, "small.gguf"), "llama")
w.add_uint32("test.u32", 7)
w.add_key_value("test.i64", -(1 << 60), gguf.GGUFValueType.INT64)
w.add_float32("test.f32", 1.5)
w.add_bool("test.bool", True)
w.add_array("test.strings", ["eins", "zwei"])
w.add_array("test.nested", [[1, 2], [3]])
w.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3) / 4)
w.add_tensor("i8", np.arange(5, dtype=np.int8))
x = np.sin(np.arange(128, dtype=np.float32)).reshape(2, 64)
w.add_tensor("q8_0", gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
