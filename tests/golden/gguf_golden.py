"""Writes small.gguf with the gguf package: every kind of entry, and tensors of a few types. And a seed of tests/fuzz: a tensor
of any bytes in each type of blocks that qeng reads, also those that the package lacks.

    python3 tests/golden/gguf_golden.py        (needs gguf and numpy)
"""
import os
import random
import re
import struct

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

types = open(os.path.join(here, "../../engine/formats/gguf_types.h")).read()
numbers = dict(re.findall(r"uint32_t (\w+) = (\d+);", types))
infos, data, draw = [], b"", random.Random(1)
for number, name, elements, size in re.findall(r'\{(\w+), "(\w+)", (\d+), (\d+), (?:DType|std::nullopt)', types):
    if int(elements) > 1:
        info = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I2Q", 2, int(elements), 2)
        infos.append(info + struct.pack("<IQ", int(numbers.get(number, number)), len(data)))
        data += draw.randbytes(2 * int(size))
        data += bytes(-len(data) % 8)
key = b"general.alignment"
head = b"GGUF" + struct.pack("<I2Q", 3, len(infos), 1) + struct.pack("<Q", len(key)) + key + struct.pack("<2I", 4, 8) + b"".join(infos)
with open(os.path.join(here, "../fuzz/corpus/gguf/blocks.gguf"), "wb") as file:
    file.write(head + bytes(-len(head) % 8) + data)
