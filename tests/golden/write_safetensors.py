"""Writes a safetensors file of uint8 and float32 arrays with nothing but the standard library and NumPy's arrays."""
import json
import struct


def write(path, tensors):
    header, body = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        header[name] = {"dtype": {"uint8": "U8", "float32": "F32"}[str(tensor.dtype)], "shape": list(tensor.shape),
                        "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(path.name, path.stat().st_size, "bytes")
