"""Writes tests/golden/npy/: arrays as numpy.save has them, and expected.json with their values; checks files that qeng wrote.

    python npy_golden.py                 writes the folder beside this script
    python npy_golden.py check FOLDER    loads FOLDER/NAME.npy for each NAME that qeng can write, and compares
"""
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).with_name("npy")
VALUES = np.array([[0, 1, -2], [3.5, 1 / 3, -1e6]])
ARRAYS = {
    "f32": VALUES.astype("<f4"), "f16": VALUES.clip(-1000, 1000).astype("<f2"), "f64": VALUES,
    "i32": np.array([[[1, -2], [3, 2**31 - 1]]], "<i4"), "i64": np.array([0, -5, 2**40], "<i8"),
    "u8": np.array([0, 1, 255], "u1"), "i8": np.array([-128, 127], "i1"), "i16": np.array([-32768, 5], "<i2"),
    "u16": np.array([65535, 0], "<u2"), "bool": np.array([True, False, True]),
    "scalar": np.array(2.5, "<f4"), "empty": np.zeros((0, 4), "<f4"),
    "fortran": np.asfortranarray(np.arange(24, dtype="<f4").reshape(2, 3, 4)),
}
WRITTEN = ["f32", "f16", "i32", "i64", "u8", "scalar", "empty", "fortran"]
REFUSED = {
    "big_endian": np.arange(3, dtype=">f4"), "complex": np.zeros(2, "<c8"), "u32": np.zeros(2, "<u4"),
    "text": np.array(["a", "bc"]), "fields": np.zeros(2, [("a", "<f4"), ("b", "<i4")]),
    "five_dimensions": np.zeros((1, 1, 1, 1, 2), "<f4"),
}


def make():
    HERE.mkdir(exist_ok=True)
    for name, array in {**ARRAYS, **REFUSED}.items():
        np.save(HERE / f"{name}.npy", array)
    for version in [(2, 0), (3, 0)]:
        with open(HERE / f"version{version[0]}.npy", "wb") as file:
            np.lib.format.write_array(file, np.arange(5, dtype="<f4"), version=version)
    expected = {name: {"shape": list(array.shape), "values": array.flatten().astype("f8").tolist()}
                for name, array in ARRAYS.items()}
    expected["version2"] = expected["version3"] = {"shape": [5], "values": [0, 1, 2, 3, 4]}
    text = json.dumps({"numpy": np.__version__, "read": expected, "refused": sorted(REFUSED)}, indent=1)
    (HERE / "expected.json").write_text(text + "\n")


def check(folder):
    for name in WRITTEN:
        found = np.load(Path(folder) / f"{name}.npy")
        assert found.dtype == ARRAYS[name].dtype and found.shape == ARRAYS[name].shape, (name, found.dtype, found.shape)
        assert (found == ARRAYS[name]).all(), name
        print(name, found.dtype, found.shape)


check(sys.argv[2]) if sys.argv[1:2] == ["check"] else make()
