"""What attention over a paged cache of 4-bit codes costs in instructions, counted by running its machine code without a GPU.

    python3 executed.py libqeng_cuda.so [NVDISASM] [--profile]

instructions.py finds the shortest way through the loop of paged_tiles.cu; this takes the way that a block takes. It interprets
paged_tiles_kernel<Form<runs, 1, 16>> (two runs: heads of 64; four: of 128) and merge_pages<1, lanes> for sm_90a, as nvdisasm
writes them, and counts what each warp issues. One sequence decodes one token. An item is a piece of 256 keys of a key head,
and one block takes all items, as a block takes many of a long sequence. Results are compared with attention in float64.

    thread-instructions a byte = 32 instructions of a warp / bytes of codes and scales, keys and values

The block is run with one piece of each key head, with all whole ones, and with the last, which is not whole; the differences
are what a piece takes. Left out are the kernel that plans the items, and the rounding of results for a product after it.

Only results are modelled: copies are there at once, a warp runs until a barrier of the block stops it, and of its lanes those
furthest behind go first. An instruction counts once, for however many lanes it is issued. What is not known here ends the
program; so does a figure beyond GOAL. --profile prints what a further piece issues, by operation and by instruction, these
with their addresses. Needs numpy, and nvdisasm (of the CUDA toolkit, or the package nvidia-cuda-nvdisasm). Takes a minute.
"""
import functools
import math
import re
import shutil
import struct
import sys

import machine_code
import numpy as np

HEADS = {64: (3, 3), 128: (2, 4)}  # dimensions: key heads, queries of each; SmolLM2 has the first
KEYS, MOST_KEYS, PAGE_TOKENS = 8000, 8192, 32  # of the sequence; that its table of pages has room for
PIECE_KEYS, TILE_KEYS, TILE_ROWS, RUN, WARPS = 256, 16, 16, 32, 4  # as paged_attention.h, kv_codes.h and tile_memory.h have them
GOAL = 6  # instructions a byte, of further pieces and merging: an H200 issues 6.9 while it reads one
LIMIT = 0.01  # of the largest result: levels, probabilities and results are bf16, whose steps are 2^-8
PARAMETERS = 0x210  # where they begin in constant memory, on sm_90
LOW, SIGN, LANES, ZERO = 0xffffffff, 0x80000000, np.arange(32), np.zeros(32, np.uint64)
END, SHARED = 1 << 40, 228 << 10  # where lanes are that have left; bytes, of which the system has the first
PREDICATE = re.compile(r"!?U?P(\d|T)").fullmatch


class Memory:
    """Bytes from address `base` on. put() fills them, each time from a multiple of 256 on."""
    def __init__(self, base, size):
        self.base, self.used, self.bytes = base, 0, np.zeros(size, np.uint8)

    def put(self, array):
        data, at = np.ascontiguousarray(array).ravel().view(np.uint8), -(-self.used // 256) * 256
        self.used = at + len(data)
        self.bytes[at:self.used] = data
        return self.base + at

    def view(self, address, dtype, shape):
        return np.frombuffer(self.bytes, dtype, np.prod(shape), address - self.base).reshape(shape)

    def places(self, addresses, size):
        first = addresses.astype(np.int64) - self.base
        if (first < 0).any() or (first + size > len(self.bytes)).any() or (first % size).any():
            sys.exit(f"FAILED: {size} bytes at {addresses[0]:#x}: not there, or not aligned")
        return first[:, None] + np.arange(size)

    def load(self, addresses, size):  # [lanes, words]; of a smaller number the upper bytes are 0
        some = self.bytes[self.places(addresses, size)]
        return (np.pad(some, ((0, 0), (0, -size % 4))) if size % 4 else some).view(np.uint32)

    def store(self, addresses, size, words):
        self.bytes[self.places(addresses, size)] = np.ascontiguousarray(words, np.uint32).view(np.uint8)[:, :size]


class Kernel:
    def __init__(self, lines):
        self.texts, self.labels = [], {}
        for line in lines:
            if label := re.match(r"([.$\w]+):", line):
                self.labels[label[1]] = len(self.texts)
            elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
                self.texts.append(found[1])
        self.operation = functools.cache(lambda at: Operation(self.texts[at], self.labels))

    def run(self, parameters, memory, blocks):
        """What the warps of all blocks issue, of each instruction."""
        self.memory, self.constants, self.counts = memory, Memory(0, 4096), np.zeros(len(self.texts), np.int64)
        sizes = struct.pack("6i", 32 * WARPS, 1, 1, blocks, 1, 1)  # of a block, and of the grid
        self.constants.put(np.frombuffer(sizes.ljust(PARAMETERS, b"\0") + parameters, np.uint8))
        for self.block in range(blocks):
            self.shared = Memory(0, SHARED)
            warps = [Warp(self, number) for number in range(WARPS)]
            while any(warp.at.min() < END for warp in warps):
                for warp in warps:  # until all are at a barrier
                    while warp.step():
                        pass
        return self.counts


class Warp:
    """at: the instruction that a lane comes to. The methods below step() are operations, issued for some lanes."""
    def __init__(self, kernel, number):
        self.kernel, self.number, self.at, self.waiting = kernel, number, np.zeros(32, np.int64), np.zeros(32, bool)
        # By name, a number or a bool for each lane; in uniform ones they are the same.
        self.registers = {f"{u}R{i}": np.zeros(32, np.uint32) for u in ("", "U") for i in (*range(255), "Z")}
        self.registers |= {f"{u}P{i}": np.full(32, i == "T") for u in ("", "U") for i in (*range(7), "T")}

    def write(self, name, value, lanes):
        if name[-1] not in "ZT":
            value = value.astype(np.float32).view(np.uint32) if value.dtype.kind == "f" else value
            value, lanes = (value[lanes.argmax()], True) if name[0] == "U" else (value, lanes)
            np.copyto(self.registers[name], value, where=lanes, casting="unsafe")

    def step(self):
        """Issues one instruction; False: a barrier of the block stopped all lanes, or none is left."""
        going = np.where(self.waiting, END, self.at)
        at = int(going.min())
        if at == END:  # those furthest behind have met where lanes wait for each other
            at = int(self.at.min())
            self.waiting &= self.at != at
            return at < END and self.kernel.operation(at - 1).name != "BAR"
        lanes, operation = going == at, self.kernel.operation(at)
        self.kernel.counts[at] += 1
        self.at[lanes] = at + 1
        lanes = lanes & operation.guard(self) if operation.guard else lanes
        if lanes.any():
            operation.run(self, operation, lanes)
        return True

    def compute(self, o, lanes):
        value = o.function(o, [get(self) for get in o.given], *(get(self) for get in o.sources))
        if not isinstance(value, tuple):  # of integers the carries lie above 32 bits
            value = (value, value >> 32 >= 1, value >> 32 >= 2) if o.predicates else (value,)
        if o.result:
            self.write(o.result, value[0], lanes)
            if o.name == "CS2R" or "WIDE" in o.mods:
                self.write(names(o.result, 2)[1], value[0] >> 32, lanes)
        for name, part in zip(o.predicates, value[1:]):
            self.write(name, part, lanes)

    def load(self, o, lanes):
        memory = {"LDG": self.kernel.memory, "LDS": self.kernel.shared}.get(o.name, self.kernel.constants)
        words = np.zeros((32, -(-o.size // 4)), np.uint32)
        words[lanes] = memory.load(address(o.operands[1])(self)[lanes], o.size)
        for name, word in zip(names(o.operands[0], words.shape[1]), words.T):
            self.write(name, word, lanes)

    def store(self, o, lanes):
        memory = self.kernel.memory if o.name == "STG" else self.kernel.shared
        words = [self.registers[name][lanes] for name in names(o.operands[1], -(-o.size // 4))]
        memory.store(address(o.operands[0])(self)[lanes], o.size, np.stack(words, 1))

    def copy(self, o, lanes):
        to, at = (address(text)(self)[lanes] for text in o.operands)
        self.kernel.shared.store(to, o.size, self.kernel.memory.load(at, o.size))

    def atomic(self, o, lanes):
        before, given, addresses = np.zeros(32, np.uint32), source(o.operands[3], "i")(self), address(o.operands[2])(self)
        for lane in np.flatnonzero(lanes):
            at = addresses[lane:lane + 1]
            before[lane] = self.kernel.memory.load(at, 4)[0, 0]
            self.kernel.memory.store(at, 4, [[given[lane] + (before[lane] if "ADD" in o.mods else 0) & LOW]])
        self.write(o.operands[1], before, lanes)

    def shuffle(self, o, lanes):
        x, by, bounds = (source(text, "i")(self).astype(np.int64) for text in o.operands[2:])
        if (bounds != 31).any() or o.operands[0] != "PT":
            sys.exit(f"FAILED: {o.text} is not of whole warps")
        self.write(o.operands[1], x[(by if "IDX" in o.mods else LANES ^ by) & 31], lanes)

    def vote(self, o, lanes):
        chosen = predicate(o.operands[-1])(self) & lanes
        bits = np.packbits(chosen, bitorder="little").view(np.uint32)[0]
        for name in o.operands[:-1]:
            value = bits if "P" not in name else bits > 0 if "ANY" in o.mods else (chosen == lanes).all()
            self.write(name, np.full(32, value), lanes)

    def product(self, o, lanes):
        """HMMA of 16 rows, 8 columns and 16 terms: lane 4 g + t has rows g and g + 8 of A and of the sums, and column g of B."""
        a, b, c = (np.stack([self.registers[name] for name in names(*each)]) for each in zip(o.operands[1:], (4, 2, 4)))
        wide = (lambda x: widened(np.stack([x & 0xffff, x >> 16], -1))) if "BF16" in o.mods else halves
        a, b = wide(a).astype(np.float64).reshape(2, 2, 8, 4, 2), wide(b).reshape(2, 8, 4, 2)
        sums = np.einsum("krgte,knte->rgn", a, b).reshape(2, 8, 4, 2).transpose(0, 3, 1, 2)
        for name, row in zip(names(o.operands[0], 4), sums.reshape(4, 32) + c.view(np.float32)):
            self.write(name, row, lanes)

    def branch(self, o, lanes):
        *conditions, label = o.operands
        for condition in conditions:
            lanes = lanes & predicate(condition)(self)
        self.at[lanes] = o.labels[label[2:-1]]

    def wait(self, o, lanes):
        if o.name == "BAR" and o.operands != ["0x0"] or o.name == "WARPSYNC" and o.operands != [""]:
            sys.exit(f"FAILED: {o.text} is not known")
        self.waiting |= lanes

    def end(self, o, lanes):
        self.at[lanes] = END


@functools.cache
def names(register, count):
    """Of registers that follow each other."""
    file, number = re.fullmatch(r"(U?R)(\d+|Z)", register).groups()
    return [register if number == "Z" else f"{file}{int(number) + i}" for i in range(count)]


def predicate(text):
    return (lambda warp: ~warp.registers[text[1:]]) if text[0] == "!" else (lambda warp: warp.registers[text])


def address(text):
    """Of `desc[UR4][R2.64+UR6+0x10]` or `c[0x0][R3+0x210]`."""
    inside = re.fullmatch(r"(?:desc\[UR\d+\]|c\[0x0\])?\[([^\]]*)\]", text) or sys.exit(f"FAILED: no address is known as {text}")
    parts, fixed = [], 0
    for part in inside[1].split("+"):
        if found := re.fullmatch(r"(U?R(?:\d+|Z))(\.64)?", part):
            parts += [(name, shift) for name, shift in zip(names(found[1], 2), (0, 32) if found[2] else (0,))]
        else:
            fixed += int(part, 16)
    mask = (1 << 64) - 1 if ".64" in text else LOW
    return lambda warp: sum((warp.registers[name].astype(np.uint64) << shift for name, shift in parts),
                            np.full(32, fixed & mask, np.uint64)) & mask


# What is read like a register.
SPECIAL = {"SR_TID.X": lambda warp: 32 * warp.number + LANES, "SRZ": lambda warp: 0 * LANES,
           "SR_CTAID.X": lambda warp: warp.kernel.block + 0 * LANES, "SR_CgaCtaId": lambda warp: 0 * LANES,
           "PR": lambda warp: sum(warp.registers[f"P{i}"].astype(np.uint32) << i for i in range(7))}


def source(text, kind):
    """kind: i as uint64 (of 32 bits, or pair of 64), a negative one being 2^32 less it, so that sums carry as they do there; f as
    float32; h as float32 from the half that is named."""
    sign, bars, name, half = re.fullmatch(r"([-~]?)(\|?)(.*?)\|?(?:\.H([01])_H[01])?", text).groups()
    if re.match("U?R", name):
        words = lambda warp, more=0: warp.registers[names(name, 2)[more]]
    elif name[0] == "c":
        words = lambda warp, more=0: warp.kernel.constants.load(address(name)(warp) + 4 * more, 4)[:, 0]
    elif name in SPECIAL:
        words = SPECIAL[name]
    elif kind in ("i", "pair"):
        fixed, sign = np.full(32, int(sign + name, 16) & LOW, np.uint32), ""
        words = lambda warp, more=0: fixed * (1 - more)
    else:
        fixed = np.full(32, float(name.replace("QNAN", "nan")), np.float32).view(np.uint32)
        words = lambda warp: fixed

    def of(warp):
        x = words(warp)
        if kind == "pair":
            x = x | words(warp, 1).astype(np.uint64) << 32
            return ~x + 1 if sign else x
        if kind == "i":
            x = (abs(signed(x)) if bars else x).astype(np.uint64)
            return ~x & LOW if sign == "~" else 2**32 - x if sign else x
        x = halves(x)[..., int(half)] if half else x.view(np.float32)
        x = abs(x) if bars else x
        return -x if sign else x
    return of


def signed(x):
    return (x & LOW ^ SIGN).astype(np.int64) - SIGN


def halves(x):  # the lower and the upper f16 of each
    return np.ascontiguousarray(x)[..., None].view(np.float16).astype(np.float32)


def widened(x):  # from bf16
    return (x.astype(np.uint32) << 16).view(np.float32)


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits + 0x7fff + (bits >> 16 & 1) >> 16).astype(np.uint16)


class Operation:
    """An instruction. Methods below take() compute, of predicates and sources, the result, or (result or None, predicates)."""
    def __init__(self, text, labels):
        guard, name, rest = re.fullmatch(r"(?:@(\S+)\s+)?(\S+)\s*(.*)", text).groups()
        self.text, self.labels, self.guard = text, labels, guard and predicate(guard)
        self.name, *self.mods = name.split(".")
        self.operands = [each.strip() for each in rest.replace(".reuse", "").split(",")]
        self.size = next((int(mod.lstrip("U")) // 8 for mod in self.mods if mod in ("U8", "U16", "64", "128")), 4)
        if self.name in MOVED:
            self.run, known = MOVED[self.name]
        else:
            found = COMPUTED.get(name) or COMPUTED.get(self.name.removeprefix("U")) or sys.exit(f"FAILED: {text} is not known")
            self.run, (self.function, kind, known) = Warp.compute, found
            self.take(kind)
        if unknown := set(self.mods) - set(known.split()):
            sys.exit(f"FAILED: {text}: what {', '.join(unknown)} means is not known")

    def take(self, kind):
        rest, self.result, self.predicates = self.operands[:], None, []
        if not re.search("SETP|PLOP3", self.name):
            self.result = next(each for each in rest if not PREDICATE(each))
            rest.remove(self.result)
        while rest and PREDICATE(rest[0]) and len(self.predicates) < 2:
            self.predicates.append(rest.pop(0))
        self.given = [predicate(each) for each in rest if PREDICATE(each)]
        pair = 2 if {"WIDE", "HI"} & set(self.mods) and self.name == "IMAD" else None
        numbers = [each for each in rest if not PREDICATE(each)]
        self.sources = [source(each, "pair" if i == pair else kind) for i, each in enumerate(numbers)]

    def multiply_add(self, given, a, b, c):
        if {"WIDE", "HI"} & set(self.mods) and "U32" not in self.mods:
            a, b = signed(a).astype(np.uint64), signed(b).astype(np.uint64)
        total = a * b + c + sum(given, ZERO)
        return total >> 32 if "HI" in self.mods else total

    def shift_add(self, given, a, b, *more):
        high = (signed(a) >> 32).astype(np.uint64) if "SX32" in self.mods else more[0]
        return ((high << 32 | a) << more[-1] >> 32 if "HI" in self.mods else a << more[-1] & LOW) + b + sum(given, ZERO)

    def shift(self, given, a, by, high):
        bits = 64 if {"S64", "U64"} & set(self.mods) else 32
        both = (high << 32 | a).view(np.int64 if {"S32", "S64"} & set(self.mods) else np.uint64)
        by = (by & bits - 1 if "W" in self.mods else np.minimum(by, bits)).astype(both.dtype)
        both = both << by if "L" in self.mods else both >> by
        return both.view(np.uint64) >> 32 if "HI" in self.mods else both

    def logic(self, given, a, b, c, table):
        result = self.looked_up(table, a, b, c) & LOW
        return result, (result != 0) | given[0]

    def looked_up(self, table, a, b, c):
        """Bit 4 a + 2 b + c of the table, for each bit."""
        result = a ^ a
        for case in range(8):
            if int(table[0]) >> case & 1:
                result = result | (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
        return result

    def permute(self, given, a, selector, c):
        choices = selector[:, None] >> np.uint64([0, 4, 8, 12])
        some = np.take_along_axis((c << 32 | a)[:, None].view(np.uint8), (choices & 7).astype(np.int64), 1)
        return np.where(choices & 8, (some >> 7) * 255, some).astype(np.uint8).view(np.uint32)[:, 0]

    def ordered(self, *x):
        return x if x[0].dtype == np.float32 else [each & LOW if "U32" in self.mods else signed(each) for each in x]

    def least_or_most(self, given, a, b):
        a, b = self.ordered(a, b)
        return np.where(given[0], np.fmin(a, b), np.fmax(a, b))

    def compare(self, given, a, b):
        (a, b), name = self.ordered(a, b), self.mods[0]
        result = {"LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b, "EQ": a == b, "NE": (a < b) | (a > b)}[name[:2]]
        if name[2:] == "U":
            result = result | np.isnan(a) | np.isnan(b)
        if "EX" in self.mods:  # of upper words: where they are equal, the lower ones decided
            result = np.where(a == b, given[1], result)
        join = np.bitwise_and if "AND" in self.mods else np.bitwise_or
        return None, join(result, given[0]), join(~result, given[0])

    def to_float(self, given, a):
        exact = self.ordered(a)[0].astype(np.float64)
        near = exact.astype(np.float32)
        return np.where(near < exact, np.nextafter(near, np.float32(np.inf)), near) if "RP" in self.mods else near

    def pack(self, given, *x):
        upper, lower = (bf16(each) if "BF16" in self.mods else each.astype(np.float16).view(np.uint16) for each in x)
        return upper.astype(np.uint32) << 16 | lower


# name without the U of uniform ones: (function, kind of its sources, modifiers that it heeds or that change nothing here)
SUM, COPY, CHOICE = (lambda o, p, a, b: a + b), (lambda o, p, a: a), (lambda o, p, a, b: np.where(p[0], a, b))
COMPUTED = {
    "IADD3": (lambda o, p, a, b, c: a + b + c + sum(p, ZERO), "i", "X"), "VIADD": (SUM, "i", ""),
    "IMAD": (Operation.multiply_add, "i", "MOV IADD SHL U32 X HI WIDE"), "LEA": (Operation.shift_add, "i", "HI X SX32"),
    "SHF": (Operation.shift, "i", "L R W HI U32 S32 U64 S64"), "LOP3": (Operation.logic, "i", "LUT"),
    "PLOP3": (lambda o, p, *tables: (None, *(o.looked_up(table, *p) for table in tables)), "i", "LUT"),
    "PRMT": (Operation.permute, "i", ""), "SEL": (CHOICE, "i", ""), "MOV": (COPY, "i", ""), "R2UR": (COPY, "i", ""),
    "S2R": (COPY, "i", ""), "S2UR": (COPY, "i", ""), "CS2R": (COPY, "i", ""), "P2R": (lambda o, p, a, b, c: b & ~c | a & c, "i", ""),
    "VIMNMX": (Operation.least_or_most, "i", "U32"),
    "VIADDMNMX": (lambda o, p, a, b, c: o.least_or_most(p, a + b, c), "i", "U32"),
    "ISETP": (Operation.compare, "i", "LT LE GT GE EQ NE AND OR U32 EX"), "I2F": (Operation.to_float, "i", "RP U32"),
    "F2I.FTZ.U32.TRUNC.NTZ": (lambda o, p, a: np.clip(a.astype(np.float64), 0, LOW).astype(np.uint64), "f", "FTZ U32 TRUNC NTZ"),
    "FADD": (SUM, "f", "FTZ"), "FMUL": (lambda o, p, a, b: a * b, "f", "FTZ"), "FSEL": (CHOICE, "f", ""), "HADD2.F32": (SUM, "h", "F32"),
    "FFMA": (lambda o, p, a, b, c: a.astype(np.float64) * b + c, "f", "FTZ"),
    "FMNMX": (Operation.least_or_most, "f", "FTZ"), "F2FP": (Operation.pack, "f", "BF16 F16 F32 PACK_AB"),
    "FSETP": (Operation.compare, "f", "LT LE GT GE EQ NE LTU LEU GTU GEU EQU NEU AND OR FTZ"),
    "MUFU.EX2": (lambda o, p, a: np.exp2(a.astype(np.float64)), "f", "EX2"), "MUFU.RCP": (lambda o, p, a: 1 / a, "f", "RCP"),
}
MOVED = {name: (method, known) for method, some, known in (
    (Warp.load, "LDG LDS LDC ULDC", "E CONSTANT U8 U16 64 128"), (Warp.store, "STG STS", "E U8 U16 64 128"),
    (Warp.copy, "LDGSTS", "E BYPASS LTC128B 64 128"), (Warp.atomic, "ATOMG", "E ADD EXCH STRONG GPU"), (Warp.shuffle, "SHFL", "IDX BFLY"),
    (Warp.vote, "VOTE VOTEU", "ANY ALL"), (Warp.product, "HMMA", "16816 F32 BF16"), (Warp.branch, "BRA", "U"),
    (Warp.end, "EXIT", ""), (Warp.wait, "BSYNC WARPSYNC BAR", "ALL SYNC DEFER_BLOCKING"),
    # Lanes meet without being told where, and copies are there at once.
    (lambda warp, o, lanes: None, "NOP YIELD BSSY BREAK LDGDEPBAR DEPBAR ACQBULK PREEXIT", "LE")) for name in some.split()}

# PagedSide, PagedOutput and PagedSides, in the letters of Python's module struct.
SIDE, OUTPUT = "i2P3i3i2IPB?Pi0P", "P?2P18i?6IPiB?5P"
SIDES = "P?3f0P" + SIDE + SIDE + "P2i" + OUTPUT + "P"


class Case:
    """A token that attends to a sequence: what the kernels are given, and what they should find."""
    def __init__(self, dim):
        self.dim, (self.kv_heads, self.group), self.pieces = dim, HEADS[dim], -(-KEYS // PIECE_KEYS)
        random, self.memory, pages, spare = np.random.default_rng(dim), Memory(0x7f5a00000000, 1 << 23), -(-KEYS // PAGE_TOKENS), 5
        put, table = self.memory.put, np.zeros(MOST_KEYS // PAGE_TOKENS, np.int32)
        table[:pages] = random.permutation(pages + spare)[:pages]
        slots = (table[:pages, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)).ravel()[:KEYS]
        q = bf16(random.standard_normal((self.kv_heads, self.group, dim)))
        sides, rows, runs = [], [], dim // RUN
        for values in (False, True):
            levels = np.sort(random.standard_normal(16)).astype(np.float32)
            codes = random.integers(0, 16, ((pages + spare) * PAGE_TOKENS, self.kv_heads, dim), np.uint32)
            scales = random.uniform(0.5, 2.5, codes.shape[:2]).astype(np.float16)
            rows.append((levels[codes] * scales[:, :, None].astype(np.float64))[slots])
            words = runs * TILE_KEYS * 4
            sides += [dim, put(packed(codes, scales, values)), put(levels), dim, 4, 0, runs, 0, words, 0, (1 << runs) - 1, *[0] * 5]
        weights = np.exp(np.einsum("hgd,khd->hgk", widened(q).astype(np.float64), rows[0]) / dim**0.5)
        self.expected = np.einsum("hgk,khd->hgd", weights, rows[1]) / weights.sum(2)[..., None]
        most = MOST_KEYS // PIECE_KEYS  # items, and a tile, as plan_pages_kernel writes them
        items = np.zeros((most + 1, 8), np.int32)
        items[:, [1, 2, 4, 5]] = [(1, KEYS, piece, 1) for piece in range(most)] + [(1, KEYS, 0, self.pieces)]
        self.plan, self.fault = put(np.concatenate([np.int32([0, 1, 0, 0]), items.ravel()])), put(np.zeros(8, np.int32))
        self.o, self.partials = put(np.zeros(self.expected.shape, np.uint16)), (self.pieces, self.kv_heads, TILE_ROWS, dim + 4)
        self.partial = put(np.full(self.partials, np.nan, np.float32))
        shape = (1, 1, self.kv_heads * self.group, self.kv_heads, self.group, dim, dim, len(table), PAGE_TOKENS, pages + spare, 0,
                 TILE_ROWS, self.group, 1, TILE_ROWS // self.group, self.kv_heads, 1, most)
        divisors = [part for by in (PAGE_TOKENS, 1, self.kv_heads) for part in (by, min((1 << 32) // by, LOW))]
        output = (self.o, False, 0, self.partial, *shape, True, *divisors, self.plan, *[0] * 8)
        self.output = struct.pack("@" + OUTPUT, *output)
        scale, tables = dim**-0.5 / math.log(2), (256, 0)  # the latter: CodeTables
        self.given = struct.pack("@" + SIDES + "2i", put(q), 0, scale, 0, 0, *sides, put(table), 0, 0, *output, self.fault, *tables)

    def attend(self, kernel, pieces):
        """What a block issues that takes all items of the first pieces."""
        self.memory.view(self.plan, np.int32, 1)[0] = pieces
        return kernel.run(self.given, self.memory, 1)

    def errors(self):
        """Of the sums of pieces, merged here, and of merged results; of the largest."""
        partial = self.memory.view(self.partial, np.float32, self.partials)[:, :, :self.group]
        sums = (partial * np.exp2(partial[..., self.dim, None].astype(np.float64))).sum(0)
        found = sums[..., :self.dim] / sums[..., self.dim + 1, None], widened(self.memory.view(self.o, np.uint16, self.expected.shape))
        return [abs(each - self.expected).max() / abs(self.expected).max() for each in found]


def packed(codes, scales, values):
    """[slots, heads, dim] as tiles: kernels/math/kv_codes.h."""
    slots, heads, dim = codes.shape
    tiles = codes.reshape(slots // TILE_KEYS, TILE_KEYS, heads, dim // RUN, 2, 16).transpose(0, 2, 3, 1, 4, 5)
    if values:  # a lane is a dimension of each half of the run, its codes are of slots
        tiles = tiles.transpose(0, 1, 2, 5, 4, 3)
    words = (tiles.reshape(*tiles.shape[:4], 4, 8) << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    scales = np.ascontiguousarray(scales.reshape(-1, TILE_KEYS, heads).transpose(0, 2, 1)).view(np.uint32)
    return np.concatenate([words.swapaxes(3, 4).reshape(*scales.shape[:2], -1), scales], 2)


def profile(kernel, counts):
    lines, by_name = [], {}
    for at, (text, count) in enumerate(zip(kernel.texts, counts)):
        if count:
            name = text.split()[text[0] == "@"]
            by_name[name] = by_name.get(name, 0) + count
            lines.append(f"  {count:8.2f}  {16 * at:06x}  {text}")
    print("\n".join([f"  {count:8.2f}  {name}" for name, count in sorted(by_name.items(), key=lambda each: -each[1])] + lines))


def main():
    np.seterr(all="ignore")  # of lanes that do not count
    options = [each for each in sys.argv[1:] if each != "--profile"]
    nvdisasm = options[1] if len(options) > 1 else shutil.which("nvdisasm") or sys.exit("FAILED: name nvdisasm behind the library")
    wanted, kernels = r"18paged_tiles_kernelINS_5tiles4FormILi([24])ELi1ELi16E|11merge_pagesILi1ELi(16|32)E", {}
    for architecture, elf in machine_code.cubins(open(options[0], "rb").read()):
        if architecture == 90 and any(re.search(wanted, name) for name, _ in machine_code.sections(elf)):
            for name, lines in machine_code.disassembled(nvdisasm, elf).items():
                if found := re.search(wanted, name):
                    kernels[("attend", 32 * int(found[1])) if found[1] else ("merge", 4 * int(found[2]))] = Kernel(lines)
    if len(kernels) < 4:
        sys.exit(f"FAILED: {options[0]} has no code of these kernels for sm_90a")
    for dim, (columns, group) in HEADS.items():
        case, kernel, whole, rest = Case(dim), kernels["attend", dim], KEYS // PIECE_KEYS, KEYS % PIECE_KEYS
        one, most, every = (case.attend(kernel, pieces) for pieces in (1, whole, case.pieces))
        merging = kernels["merge", dim].run(case.output, case.memory, columns).sum() / columns
        further = (most - one) / (columns * (whole - 1))
        a_byte = lambda count, keys: 32 * count / (keys * (dim + 4))
        loop, merged = a_byte(further.sum(), PIECE_KEYS), a_byte(merging, KEYS)
        first, last = a_byte((one - (columns - 1) * further).sum(), PIECE_KEYS), a_byte((every - most).sum() / columns, rest)
        errors, taken = case.errors(), case.memory.view(case.plan, np.int32, 3)[2]
        print(f"heads of {dim}, {group} to each of {columns} key heads, {KEYS} keys: instructions a byte of cache\n"
              f"  {first:6.2f}  a block's first piece, with filling its tables, and its end\n"
              f"  {loop:6.2f}  each further piece, of {columns * whole}: {further.sum():.1f} instructions of {WARPS} warps\n"
              f"  {last:6.2f}  a sequence's last piece, of {rest} keys\n"
              f"  {merged:6.2f}  merging, {merging:.1f} instructions for {case.pieces} pieces\n"
              f"  {loop + merged:6.2f}  further pieces and merging\n"
              "  errors, of the largest: sums of pieces {:.1e}, results {:.1e}".format(*errors))
        if not all(error < LIMIT for error in errors) or taken or case.memory.view(case.fault, np.int32, 8).any():
            sys.exit(f"FAILED: heads of {dim}: these are not the results of attention, or the plan is not left as it was")
        if loop + merged > GOAL:
            sys.exit(f"FAILED: heads of {dim}: more than {GOAL} instructions a byte")
        if "--profile" in sys.argv:
            profile(kernel, further)


main()
