#!/usr/bin/env python3
"""Prints the records of a .qubgpu file as JSON. Written from the format's description, apart from the engine's reader,
with the CRC of Python's own library; the unit tests compare the two."""
import binascii
import json
import struct
import sys

data = open(sys.argv[1], "rb").read()
assert data[:8] == b"QUBGPU\0\3", "magic"
header_bytes, flags, records, frames, tokens, loss_tokens, frames_at, frames_bytes, index_at, hashes_at, meta_at, meta_bytes = (
    struct.unpack_from("<II10Q", data, 8))
assert meta_at + meta_bytes == len(data)
json.loads(data[meta_at:])
start = 0 if flags & 1 else 0xFFFF

out = []
for i in range(records):
    offset, count, trained, record_frames, src, dst, zero = struct.unpack_from("<QIIHBBI", data, index_at + 24 * i)
    at = frames_at + offset
    ids, mask = [], []
    for _ in range(record_frames):
        first, frame_src, frame_dst, kind, length = struct.unpack_from(">BBBBH", data, at)
        payload = data[at + 6:at + 6 + length]
        crc, = struct.unpack_from(">H", data, at + 6 + length)
        assert first == 0xAA and (frame_src, frame_dst) == (src, dst)
        assert binascii.crc_hqx(data[at + 1:at + 6 + length], start) == crc
        if kind == 1:
            ids += struct.unpack(">%di" % (length // 4), payload)
        elif kind == 8:
            mask += [byte >> bit & 1 for byte in payload for bit in range(8)]
        at += length + 8
    mask = mask[:count]
    assert len(ids) == count and (not mask or len(mask) == count)
    assert trained == (sum(mask[1:]) if mask else count - 1)
    out.append({"tokens": ids, "mask": mask, "src": src, "dst": dst})
assert sum(len(r["tokens"]) for r in out) == tokens
json.dump(out, sys.stdout)
