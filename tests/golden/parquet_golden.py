#!/usr/bin/env python3
"""Parquet files by pyarrow and their rows as JSON lines, for tests/unit/parquet_test.cpp and tests/fuzz: python3 parquet_golden.py"""
import datetime
import decimal
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent / "parquet"
CORPUS = Path(__file__).parent.parent / "fuzz/corpus/parquet"


def chats():
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    rows = [{"messages": [{"role": "user", "content": f"What is {i} + 1?"}, {"role": "assistant", "content": f"It is {i + 1}.\n\"Yes\" \U0001f600"}], "id": i}
            for i in range(20)]
    return pa.Table.from_pylist(rows, pa.schema([("messages", pa.list_(message)), ("id", pa.int64())])), rows


def everything():
    schema = pa.schema([
        ("text", pa.string()), ("tags", pa.list_(pa.list_(pa.string()))), ("map", pa.map_(pa.string(), pa.int32())), ("pair", pa.struct([("a", pa.bool_()), ("b", pa.list_(pa.float64()))])),
        ("u8", pa.uint8()), ("i64", pa.int64()), ("f32", pa.float32()), ("day", pa.date32()), ("at", pa.timestamp("us", tz="UTC")), ("time", pa.time64("us")), ("price", pa.decimal128(12, 2)),
        ("blob", pa.binary()),
    ])
    rows = []
    for i in range(60):
        gone = i % 7 == 3
        rows.append({
            "text": None if gone else "abc" * (i % 4) + "\t\u00e9",
            "tags": None if i % 11 == 0 else [["x"] * (j % 3) for j in range(i % 4)] + ([None] if i % 5 == 0 else []),
            "map": None if gone else {f"k{j}": j - 1 for j in range(i % 3)},
            "pair": None if i % 6 == 5 else {"a": None if gone else i % 2 == 0, "b": [0.1 * i, -2.5, 1e300][: i % 4]},
            "u8": 255 - i, "i64": None if gone else (-1) ** i * 3 ** min(i, 39), "f32": i / 4, "day": datetime.date(1969, 12, 1) + datetime.timedelta(days=i),
            "at": datetime.datetime(1969, 12, 31, 23, 59, 30, 5000, tzinfo=datetime.timezone.utc) + datetime.timedelta(seconds=i), "time": datetime.time(23, 0, i),
            "price": decimal.Decimal(i * 101 - 2000).scaleb(-2), "blob": b"\xff\x00\x01" if i % 2 else b"plain",
        })
    return pa.Table.from_pylist([{**row, "map": row["map"] and list(row["map"].items())} for row in rows], schema), rows


def not_utf8(path):
    """Text that is no UTF-8, as programs write that do not look; and bytes, as a value and as a map's name."""
    rows = {"text": pa.array([b"K\xe4se", b"a"]).view(pa.string()), "blob": pa.array([b"\xff\x00", b"a"]), "map": pa.array([[(b"\xff", 1)], []], pa.map_(pa.binary(), pa.int32()))}
    pq.write_table(pa.table(rows), path, write_statistics=False, store_schema=False)


def zigzag(value):
    value, out = value * 2, b""
    while value > 127:
        value, out = value >> 7, out + bytes([value & 127 | 128])
    return out + bytes([value])


def lz4_hadoop(path):
    """A file whose one page is LZ4 in Hadoop's frames (codec 5), which pyarrow reads but does not write: made of one with codec 7."""
    rows = [{"text": f"row {i} " + "again " * (i % 9)} for i in range(60)]
    pq.write_table(pa.Table.from_pylist(rows), path, compression="lz4_raw", use_dictionary=False, write_statistics=False, store_schema=False)
    data, chunk = path.read_bytes(), pq.read_metadata(path).row_group(0).column(0)
    first, packed = chunk.data_page_offset, chunk.total_compressed_size
    header = data.index(b"\x00", first + 20) + 1  # the end of the page's header: both structures of it are closed
    header = next(h for h in range(header, header + 20) if unpacks(data[h : first + packed], chunk.total_uncompressed_size - (h - first)))
    page = pa.decompress(data[header : first + packed], chunk.total_uncompressed_size - (header - first), "lz4_raw").to_pybytes()
    frames = b""
    for part in (page[:1000], page[1000:]):
        block = pa.compress(part, "lz4_raw", asbytes=True)
        frames += len(part).to_bytes(4, "big") + len(block).to_bytes(4, "big") + block
    longer = len(frames) - (first + packed - header)

    def patched(text, value):
        old, new = zigzag(value), zigzag(value + longer)
        assert old in text and len(old) == len(new), (path, value)
        return text.replace(old, new)

    footer = patched(data[first + packed :], packed).replace(b"\x15\x0e", b"\x15\x0a", 1)
    path.write_bytes(data[:first] + patched(data[first:header], first + packed - header) + frames + footer)
    assert data[first + packed :] != footer and pq.read_table(path).to_pylist() == rows
    path.with_suffix(".jsonl").write_text("".join(line(row) + "\n" for row in rows))


def unpacks(block, size):
    try:
        return len(pa.decompress(block, size, "lz4_raw")) == size
    except (OSError, pa.ArrowInvalid):
        return False


def line(row):
    def plain(value):
        if isinstance(value, datetime.datetime):
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, decimal.Decimal):
            return float(value)
        if isinstance(value, bytes):
            return {"bytes": len(value)} if value[0] == 255 else value.decode()
        raise TypeError(value)

    return json.dumps(row, default=plain, ensure_ascii=False)


def main():
    table, rows = chats()
    pq.write_table(table, HERE / "chats.parquet", compression="snappy")
    (HERE / "chats.jsonl").write_text("".join(line(row) + "\n" for row in rows))
    table, rows = everything()
    (HERE / "everything.jsonl").write_text("".join(line(row) + "\n" for row in rows))
    delta = {"text": "DELTA_BYTE_ARRAY", "i64": "DELTA_BINARY_PACKED", "f32": "BYTE_STREAM_SPLIT", "blob": "DELTA_LENGTH_BYTE_ARRAY"}
    for name, options in {
        "everything_v1": {"compression": "gzip", "use_dictionary": True, "row_group_size": 25, "data_page_size": 100},
        "everything_v2": {"compression": "zstd", "data_page_version": "2.0", "use_dictionary": False, "column_encoding": delta, "write_page_checksum": True},
        "everything_brotli": {"compression": "brotli", "use_dictionary": True, "row_group_size": 25},
        "everything_lz4": {"compression": "lz4", "data_page_version": "2.0", "use_dictionary": False},
    }.items():
        pq.write_table(table, HERE / f"{name}.parquet", **options)
        pq.write_table(table.select(["text", "tags", "pair", "i64", "price"]).slice(0, 9), CORPUS / name, store_schema=False, write_statistics=False, **{**options, "column_encoding": {k: v for k, v in delta.items() if k in ("text", "i64")}} if "column_encoding" in options else options)
    lz4_hadoop(HERE / "lz4_hadoop.parquet")
    not_utf8(HERE / "not_utf8.parquet")


if __name__ == "__main__":
    main()
