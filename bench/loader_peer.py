#!/usr/bin/env python3
"""The peer of qeng_bench_packets read: NumPy over Megatron's .bin/.idx (int32), mapped, doing the same work but for the
checks that the format does not have: documents in a random order, laid end to end in rows, with the tokens, targets
(the next token of the same document, else -1), positions that restart at each document, and cu_seqlens of each batch.

    loader_peer.py STEM [--row 2048] [--rows 8] [--times 3] [--workers 2]

Two packings. "chop" is Megatron's own, cheaper than ours: documents end to end, cut at the rows' ends. "fit" places whole
documents as ours does: for each row the oldest that waits, then the longest of the next 256 that fits, again and again; the
window is one small array, in which NumPy finds the longest at once.
Each has two ways of getting the tokens: a gather over all tokens of a batch, and a slice a document; the better counts.
With workers, each process makes every so-manieth batch and its parent waits for all; nothing is sent back, which favours
this peer. Numbers are the best of --times; no page is cold."""
import argparse
import multiprocessing
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("stem")
parser.add_argument("--row", type=int, default=2048)
parser.add_argument("--rows", type=int, default=8)
parser.add_argument("--times", type=int, default=3)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--fit-documents", type=int, default=100_000, help="documents that the slow packing is timed on")
opt = parser.parse_args()


def open_dataset():
    with open(opt.stem + ".idx", "rb") as idx:
        assert idx.read(9) == b"MMIDIDX\0\0"
        version, = np.frombuffer(idx.read(8), np.uint64)
        dtype, = np.frombuffer(idx.read(1), np.uint8)
        count, documents = np.frombuffer(idx.read(16), np.uint64)
        assert version == 1 and dtype == 4
        sizes = np.frombuffer(idx.read(int(count) * 4), np.int32).astype(np.int64)
        starts = np.frombuffer(idx.read(int(count) * 8), np.int64) // 4
    return np.memmap(opt.stem + ".bin", np.int32, "r"), sizes, starts


def finish(tokens, positions, ends):
    """Targets: the next token, but for the last of each piece and the padding."""
    targets = np.empty_like(tokens)
    targets[:-1] = tokens[1:]
    targets[ends - 1] = -1
    return targets


def batch_of(data, starts, sizes, slots, total, gather):
    """Pieces of `sizes` tokens from `starts`, at `slots` of a batch of `total`."""
    tokens, positions = np.zeros(total, np.int32), np.zeros(total, np.int32)
    if gather:
        before = np.cumsum(sizes) - sizes
        inside = np.arange(sizes.sum()) - np.repeat(before, sizes)
        where = np.repeat(slots, sizes) + inside
        tokens[where] = data[np.repeat(starts, sizes) + inside]
        positions[where] = inside
    else:
        ramp = ramps[0]
        for start, size, slot in zip(starts.tolist(), sizes.tolist(), slots.tolist()):
            tokens[slot:slot + size] = data[start:start + size]
            positions[slot:slot + size] = ramp[:size]
    return tokens, positions, finish(tokens, positions, slots + sizes)


ramps = [np.arange(1 << 20, dtype=np.int32)]


def chop(data, sizes, starts, worker, gather):
    """Documents end to end, cut where rows end."""
    order = np.random.default_rng(0).permutation(len(sizes))
    row, total = opt.row, opt.row * opt.rows
    ends = np.cumsum(sizes[order])
    begins = ends - sizes[order]
    seen = 0
    for batch in range(worker, int(ends[-1] // total), opt.workers):
        low, high = batch * total, (batch + 1) * total
        first, last = np.searchsorted(ends, low, "right"), np.searchsorted(begins, high, "left")
        cuts = np.unique(np.concatenate([np.arange(low, high + 1, row), begins[first:last].clip(low, high)]))
        at, length = cuts[:-1], np.diff(cuts)
        document = np.searchsorted(ends, at, "right")
        source = starts[order[document]] + at - begins[document]
        batch_of(data, source, length, at - low, total, gather)
        cu_seqlens = (cuts - low).astype(np.int32)
        seen += int(cu_seqlens[-1])
    return seen


def fit(data, sizes, starts, worker, gather):
    """Whole documents, best fit within a window of 256. (Every worker plans all and makes its own.)"""
    order = np.random.default_rng(0).permutation(len(sizes))[:opt.fit_documents]
    window = [int(i) for i in order[:256]]
    lengths = np.full(256, 1 << 40)
    lengths[:len(window)] = sizes[window]
    following, waiting, seen, batch = len(window), len(window), 0, 0
    pieces = []
    row_number = 0
    while waiting:
        room, slot = opt.row, (row_number % opt.rows) * opt.row
        while True:
            fits = np.where(lengths <= room, lengths, 0)
            best = int(fits.argmax())
            size = int(fits[best])
            if size == 0:
                if room == opt.row:  # longer than a row: cut, the rest is dropped here
                    best = int(lengths.argmin())
                    size = opt.row
                else:
                    break
            pieces.append((int(starts[window[best]]), size, slot))
            slot, room = slot + size, room - size
            if following < len(order):
                window[best] = int(order[following])
                lengths[best] = sizes[window[best]]
                following += 1
            else:
                lengths[best] = 1 << 40
                waiting -= 1
            if room == 0 or not waiting:
                break
        row_number += 1
        if row_number % opt.rows == 0:
            if batch % opt.workers == worker:
                source, length, slots = np.array(pieces).T
                batch_of(data, source, length, slots, opt.row * opt.rows, gather)
                seen += int(length.sum())
            batch += 1
            pieces = []
    return seen


def timed(packing, gather):
    data, sizes, starts = open_dataset()
    best = 0
    for _ in range(opt.times):
        begin = time.perf_counter()
        if opt.workers == 1:
            seen = packing(data, sizes, starts, 0, gather)
        else:
            with multiprocessing.get_context("fork").Pool(opt.workers) as pool:
                seen = sum(pool.starmap(packing, [(data, sizes, starts, w, gather) for w in range(opt.workers)]))
        best = max(best, seen / (time.perf_counter() - begin))
    return best


if __name__ == "__main__":
    touched = int(np.memmap(opt.stem + ".bin", np.uint8, "r")[::4096].sum())  # every page is in memory before the clock runs
    for packing in (chop, fit):
        rates = {name: timed(packing, gather) for name, gather in (("gather", True), ("slices", False))}
        best = max(rates, key=rates.get)
        print("NumPy memmap, %s, %d worker(s), by %s: %.1f M tokens/s" % (packing.__name__, opt.workers, best, rates[best] / 1e6))
