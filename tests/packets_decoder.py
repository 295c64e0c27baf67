#!/usr/bin/env python3
"""Prints the records of a .qubgpu file, or of bare frames, as JSON. Written from the format's description,
apart from the engine's reader, with the CRC of Python's own library; the tests compare the two.

    packets_decoder.py FILE.qubgpu [--lines]
    packets_decoder.py FILE.ndp --bare ccitt|xmodem [--lines]

--lines: one line of text a record, for comparing byte by byte."""
import binascii
import json
import math
import struct
import sys

TOKENS, MASK = 0x01, 0x08
NAMES = {0x02: "float32", 0x03: "float16", 0x04: "int8", 0x05: "ternary", 0x06: "bfloat16", 0x07: "one_bit", 0x09: "utf8", 0x0A: "meta"}
UNIT = {0x01: 4, 0x02: 4, 0x03: 2, 0x06: 2}  # bytes of an element; else 1


def full(kind):
    return 65535 // UNIT.get(kind, 1) * UNIT.get(kind, 1)


def frame_at(data, at, start):
    first, src, dst, kind, length = struct.unpack_from(">BBBBH", data, at)
    assert first == 0xAA, "frame start at %d" % at
    payload = data[at + 6:at + 6 + length]
    crc, = struct.unpack_from(">H", data, at + 6 + length)
    assert binascii.crc_hqx(data[at + 1:at + 6 + length], start) == crc, "CRC at %d" % at
    return src, dst, kind, payload, at + length + 8


def values_of(kind, data):
    if kind == 0x02:
        return struct.unpack(">%df" % (len(data) // 4), data)
    if kind == 0x03:
        return struct.unpack(">%de" % (len(data) // 2), data)
    if kind == 0x06:  # a bfloat16 is the upper half of a float32
        return struct.unpack(">%df" % (len(data) // 2), b"".join(data[i:i + 2] + b"\0\0" for i in range(0, len(data), 2)))
    if kind == 0x04:
        return struct.unpack("%db" % len(data), data)
    if kind == 0x05:
        codes = {0: 0, 1: 1, 2: -1}  # 3 is no value: a KeyError
        return [codes[byte >> shift & 3] for byte in data for shift in (0, 2, 4, 6)]
    if kind == 0x07:
        return [1 if byte >> bit & 1 else -1 for byte in data for bit in range(8)]
    return json.loads(data) if kind == 0x0A else data.decode("utf-8")


def record_at(data, at, end, start):
    """One record, and where the next begins."""
    src, dst, kind, payload, at = frame_at(data, at, start)
    body = payload
    while len(payload) == full(kind):
        more_src, more_dst, more_kind, payload, at = frame_at(data, at, start)
        assert (more_src, more_dst, more_kind) == (src, dst, kind)
        body += payload
    if kind != TOKENS:
        return {"type": NAMES[kind], "values": values_of(kind, body), "src": src, "dst": dst}, at
    ids = struct.unpack(">%di" % (len(body) // 4), body)
    mask, count = [], len(ids)
    while at < end and len(mask) < count and data[at + 3] == MASK:
        more_src, more_dst, more_kind, payload, at = frame_at(data, at, start)
        assert (more_src, more_dst) == (src, dst)
        mask += [byte >> bit & 1 for byte in payload for bit in range(8)]
    assert not mask or len(mask) == (count + 7) // 8 * 8 and not any(mask[count:])
    return {"tokens": ids, "mask": mask[:count], "src": src, "dst": dst}, at


def container(data):
    assert data[:8] == b"QUBGPU\0\3", "magic"
    header_bytes, flags, records, frames, tokens, loss_tokens, frames_at, frames_bytes, index_at, hashes_at, meta_at, meta_bytes = (
        struct.unpack_from("<II10Q", data, 8))
    assert header_bytes == 4096 and frames_at % 4096 == 0 and meta_at + meta_bytes == len(data)
    assert hashes_at - index_at == 24 * records and meta_at - hashes_at == 8 * -(-frames_bytes // 2**20)
    json.loads(data[meta_at:])
    seen_tokens = at = 0
    for i in range(records):
        offset, count, trained, record_frames, src, dst, zero = struct.unpack_from("<QIIHBBI", data, index_at + 24 * i)
        assert offset == at and zero == 0
        record, end = record_at(data, frames_at + offset, frames_at + frames_bytes, 0 if flags & 1 else 0xFFFF)
        at = end - frames_at
        assert (src, dst) == (record["src"], record["dst"])
        if "tokens" in record:
            mask = record["mask"]
            assert count == len(record["tokens"]) and trained == (sum(mask[1:]) if mask else count - 1)
        else:
            assert count == trained == 0
        seen_tokens += count
        yield record
    assert at == frames_bytes and seen_tokens == tokens


def bare(data, start):
    at = 0
    while at < len(data):
        record, at = record_at(data, at, len(data), start)
        yield record


def exact(value):
    """A number without rounding: 24 bits of mantissa and the exponent."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    mantissa, exponent = math.frexp(value)
    return "%d:%d" % (mantissa * 2**24, exponent)


def line(record):
    head = "%s %d %d " % (record.get("type", "token_ids"), record["src"], record["dst"])
    if "tokens" in record:
        return head + " ".join(map(str, record["tokens"])) + " / " + "".join(map(str, record["mask"]))
    values = record["values"]
    if record["type"] == "utf8":
        return head + values.encode("utf-8").hex()
    if record["type"] == "meta":
        return head + json.dumps(values, separators=(",", ":"), sort_keys=True)
    return head + " ".join(map(exact if "float" in record["type"] else str, values))


def main():
    data = open(sys.argv[1], "rb").read()
    if "--bare" in sys.argv:
        records = bare(data, 0 if sys.argv[sys.argv.index("--bare") + 1] == "xmodem" else 0xFFFF)
    else:
        records = container(data)
    if "--lines" in sys.argv:
        for record in records:
            sys.stdout.write(line(record) + "\n")
    else:
        json.dump(list(records), sys.stdout)


main()
