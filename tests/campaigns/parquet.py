"""Parquet files of random schemas, written by pyarrow in random ways, and whether qeng's rows are those that pyarrow reads.

    PYTHON tests/campaigns/parquet.py [SCHEMAS [SEED]]

PYTHON: that of tests/peers/environment. 200 schemas unless told. Values are compared as JSON holds them: times as text,
bytes that are no UTF-8 as qeng describes them, what is not finite as null. $QENG_UNIT: the program of unit tests.
"""

import datetime
import decimal
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import uuid

import pyarrow as pa
import pyarrow.parquet as pq

UNIT = os.environ.get("QENG_UNIT", str(pathlib.Path(__file__).resolve().parents[2] / "build/release/tests/qeng_unit"))
EPOCH = datetime.datetime(1970, 1, 1)
TEXTS = ["", "a", "abc" * 9, 'é\t"\\\n', "日本語", "\U0001f600", "\u0000x", "user", "assistant"]
r = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)


def integers(bits, signed):
    low = -(1 << bits - 1) if signed else 0
    high = (1 << bits - signed) - 1
    return lambda: r.choice([low, high, 0, 1, r.randint(low, high), r.randint(max(low, -9), 9)])


def real(bits):
    one = pa.float32() if bits == 32 else pa.float64()
    return lambda: pa.scalar(
        r.choice([0.0, -0.0, 1.5, 1e300 if bits == 64 else 3e38, 5e-324, math.inf, math.nan, r.gauss(0, 1e3)]), one
    ).as_py()


def moment():
    return EPOCH + datetime.timedelta(
        seconds=r.randrange(-(10**9), 4 * 10**9), microseconds=r.choice([0, 5000, 123456])
    )


def leaf():
    """A type, and what draws a value of it."""
    bits = r.choice([8, 16, 32, 64])
    digits = r.choice([5, 15, 30])
    zone = r.choice([None, "UTC"])
    return r.choice(
        [
            (pa.string(), lambda: r.choice(TEXTS) * r.choice([1, 1, 30])),
            (pa.large_string(), lambda: r.choice(TEXTS)),
            (pa.binary(), lambda: r.choice([b"", b"plain", b"\xff\x00", bytes(range(256))])),
            (pa.binary(4), lambda: r.choice([b"abcd", b"\xff\xfe\x00\x01"])),
            (pa.bool_(), lambda: r.random() < 0.5),
            (getattr(pa, f"int{bits}")(), integers(bits, True)),
            (getattr(pa, f"uint{bits}")(), integers(bits, False)),
            (pa.float32(), real(32)),
            (pa.float64(), real(64)),
            (pa.float16(), lambda: r.choice([0.5, -3.25, 65504.0, 6e-8])),
            (pa.date32(), lambda: moment().date()),
            (pa.time32("ms"), lambda: datetime.time(r.randrange(24), 59, 1, r.choice([0, 7000]))),
            (pa.time64("us"), lambda: datetime.time(r.randrange(24), 0, 59, r.choice([0, 7]))),
            (
                pa.timestamp(r.choice(["ms", "us"]), tz=zone),
                lambda: moment().replace(microsecond=r.choice([0, 5000])),
            ),
            (
                pa.decimal128(digits, 3),
                lambda: decimal.Decimal(r.randrange(-(10**digits) + 1, 10**digits)).scaleb(-3),
            ),
            (pa.dictionary(pa.int32(), pa.string()), lambda: r.choice(TEXTS)),
            (pa.null(), lambda: None),
        ]
    )


def some(value):
    gone = r.choice([0, 0, 0.1, 0.9])
    return lambda: None if r.random() < gone else value()


def drawn(depth):
    kind = r.choice(["leaf"] * 3 + (["list", "struct", "map"] if depth else []))
    if kind == "list":
        of, value = drawn(depth - 1)
        value, most = some(value), r.choice([1, 3, 12])
        return r.choice([pa.list_, pa.large_list])(of), lambda: [value() for _ in range(r.randrange(most + 1))]
    if kind == "struct":
        fields = [
            (name, *drawn(depth - 1)) for name in r.sample(["role", "content", "a b", "é", "x"], r.randint(1, 4))
        ]
        fields = [(name, of, some(value)) for name, of, value in fields]
        return pa.struct([(name, of) for name, of, _ in fields]), lambda: {name: value() for name, _, value in fields}
    if kind == "map":
        of, value = drawn(depth - 1)
        value = some(value)
        return pa.map_(pa.string(), of), lambda: [(f"k{i}", value()) for i in range(r.randrange(4))]
    return leaf()


def plain(value, of):
    """A value of pyarrow as JSON has it."""
    if value is None:
        return None
    if pa.types.is_struct(of):
        return {field.name: plain(value[field.name], field.type) for field in of}
    if pa.types.is_map(of):
        return {key: plain(item, of.item_type) for key, item in value}
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return [plain(item, of.value_type) for item in value]
    if isinstance(value, float):
        return None if not math.isfinite(value) else value if of == pa.float64() else shortest(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"bytes": len(value)}
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%dT") + clock(value.time(), of) + ("Z" if of.tz else "")
    if isinstance(value, datetime.time):
        return clock(value, of)
    return value.isoformat() if isinstance(value, (datetime.date, uuid.UUID)) else value


def shortest(value):
    """The fewest digits that mean this float of 32 bits."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return float(
        next(
            text
            for text in texts
            if abs(float(text)) < 3.403e38 and struct.pack("f", float(text)) == struct.pack("f", value)
        )
    )


def clock(time, of):
    text = time.strftime("%H:%M:%S")
    return (
        text
        if time.microsecond == 0
        else text + f".{time.microsecond // 1000:03}" if of.unit == "ms" else text + f".{time.microsecond:06}"
    )


def write(path):
    """Whether pyarrow writes what was drawn, and reads it."""
    columns = {f"c{i}": drawn(r.randrange(4)) for i in range(r.randint(1, 8))}
    values = {name: some(value) for name, (_, value) in columns.items()}
    rows = [{name: value() for name, value in values.items()} for _ in range(r.choice([0, 1, 7, 300]))]
    table = pa.Table.from_pylist(rows, pa.schema([(name, of) for name, (of, _) in columns.items()]))
    options = {
        "compression": r.choice(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
        "data_page_version": r.choice(["1.0", "2.0"]),
        "row_group_size": r.choice([3, 100, 10**6]),
        "data_page_size": r.choice([64, 1000, 10**6]),
        "use_dictionary": r.random() < 0.5,
        "write_statistics": r.random() < 0.5,
        "store_schema": True,
        "version": r.choice(["1.0", "2.4", "2.6"]),
        "write_page_checksum": r.random() < 0.5,
        "use_compliant_nested_type": r.random() < 0.5,
        "dictionary_pagesize_limit": r.choice([100, 10**6]),
        "use_byte_stream_split": False,
    }
    if not options["use_dictionary"]:
        fitting = {
            "integer": ["PLAIN", "DELTA_BINARY_PACKED"],
            "text": ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"],
            "real": ["PLAIN", "BYTE_STREAM_SPLIT"],
        }
        kinds = {
            name: (
                "integer"
                if pa.types.is_integer(of)
                else (
                    "text"
                    if of in (pa.string(), pa.binary(), pa.large_string())
                    else "real" if of in (pa.float32(), pa.float64()) else None
                )
            )
            for name, (of, _) in columns.items()
        }
        options["column_encoding"] = {name: r.choice(fitting[kind]) for name, kind in kinds.items() if kind}
    try:
        pq.write_table(table, path, **options)
        pq.read_table(path)
    except pa.ArrowException:  # an empty dictionary, or no rows of nulls
        return False
    return True


def main():
    count, equal, same_rows, all_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            while not write(pathlib.Path(folder, f"{i:05}.parquet")):
                pass
        subprocess.run(
            [UNIT, "rows of the files of a campaign"],
            env={**os.environ, "QENG_CAMPAIGN": folder},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for path in sorted(pathlib.Path(folder).glob("*.parquet")):
            table = pq.read_table(path)
            want = [
                {field.name: plain(row[field.name], field.type) for field in table.schema}
                for row in table.to_pylist()
            ]
            text = path.with_suffix(".rows").read_text(encoding="utf-8")
            got = [json.loads(line) for line in text.splitlines()] if not text.startswith("error: ") else text
            same = isinstance(got, list) and [json.dumps(a) == json.dumps(b) for a, b in zip(got, want)]
            all_rows, same_rows = all_rows + len(want), same_rows + (sum(same) if same else 0)
            if isinstance(got, list) and len(got) == len(want) and all(same):
                equal += 1
            else:
                at = same.index(False) if same and False in same else 0
                print(
                    path.name,
                    table.schema.to_string(),
                    *(got[:200], "") if isinstance(got, str) else (got[at : at + 1], want[at : at + 1]),
                    sep="\n  ",
                )
    print(f"{equal} of {count} files, {same_rows} of {all_rows} rows as pyarrow reads them")
    sys.exit(equal != count)


if __name__ == "__main__":
    main()
