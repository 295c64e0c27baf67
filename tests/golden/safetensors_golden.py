"""Makes tests/golden/small.safetensors with the Python package, and checks files that qeng wrote.

    python safetensors_golden.py               writes small.safetensors beside this script
    python safetensors_golden.py check FILE    loads FILE with the package and prints each tensor
"""
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def make():
    tensors = {
        "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4,
        "half": torch.tensor([1.0, -2.5, 3.140625], dtype=torch.bfloat16),
        "ids": torch.tensor([[1, -2], [3, 4]], dtype=torch.int64),
        "bytes": torch.tensor([1, 2, 255], dtype=torch.uint8),
        "flag": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(7, dtype=torch.int32),
    }
    path = Path(__file__).with_name("small.safetensors")
    save_file(tensors, path, metadata={"format": "pt", "made by": "safetensors_golden.py"})
    print(path, path.stat().st_size, "bytes")


def check(path):
    with safe_open(path, framework="pt") as file:
        print("metadata", file.metadata())
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            print(name, tensor.dtype, list(tensor.shape), tensor.flatten()[:4].tolist())


check(sys.argv[2]) if sys.argv[1:2] == ["check"] else make()
