"""What a byte costs in instructions, of a weight in products of one row by block formats and of a paged cache in attention:
read from the machine code.

    python3 instructions.py libqeng_cuda.so [NVDISASM]

Decoding reads each weight once. It takes no longer than that where the instructions for a byte are issued before the
next byte is there. For each kernel of one row of x (row_blocks.cu, row_bits.cu; code for sm_90a) the instructions of the
main loop are counted: of the backward branches, the one whose body has the most products. Each code of a weight is taken
by one product, and a product of a warp takes so many; so the loop itself tells how many bytes a pass takes:

    bytes of a pass = products, times codes of a product, times bytes of a block / its elements
    thread-instructions a byte = 32 instructions / bytes of a pass

Attention over a paged cache in bf16 or f16 (paged_mma.cu, the form for decoding) is counted likewise: a pass of its loop
takes 64 keys and their values of a head, whose products by tensor cores must all be in the loop. What ends a piece of 256
keys stands in the loop too, and counts as if it ended each pass. So are f16 weights by few rows of x (row_few.cu): a pass
of a warp takes 64 elements of 32 rows.

Attention over a paged cache of codes (paged_tiles.cu, the forms for decoding) takes a piece of 256 keys of a head in a pass
of its loop, from finding it to writing its sums. Much of that loop is rare (keys that are rows, the ends of a sequence,
other widths), so the shortest way through it is counted that has all products of a piece, each with the look-ups of codes
of 4 bits, and all copies; of a block's four warps the first also takes the piece from the plan and finds it, the second
loads q. Left out is what a block does once, which fills the tables, and the merging of partial sums. executed.py runs the
machine code: a piece takes 7 to 9 % more than the shortest way.

Some instruction of the loop must move on by just as many bytes of a row; else codes are no longer taken so. Each kernel
has a limit, and no kernel of the library may use local memory. With NVDISASM, its reading of the counted files is compared.
"""
import functools
import math
import pathlib
import re
import shutil
import sys

import machine_code

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

PRODUCTS = {"dp4a": 32 * 4, "bits": 16 * 256}  # and codes: four for each thread; a tile of the weight

# Thread-instructions a byte. An H200 issues 7 while it reads one: a third is left for what begins and ends a row.
GOAL = 4.5
COMPILER = "13.0.88"  # whose code the limits are of
# (format, rows of the weight to a warp): the most. Above the goal: what it is today, rounded up to a tenth, so that it
# can only become better.
LIMITS = {
    ("Q8_0", 4): GOAL, ("Q6_K", 4): GOAL, ("Q5_0", 4): GOAL, ("Q5_1", 4): GOAL, ("Q4_0", 4): GOAL, ("Q4_1", 4): GOAL,
    ("Q4_K", 4): GOAL, ("Int4", 4): GOAL, ("TQ2_0", 8): GOAL, ("Q2_0", 8): GOAL,
    ("Q5_K", 4): 4.7, ("Q2_K", 4): 5.9, ("Q3_K", 4): 9.0,
    ("TQ2_0", 4): 4.9, ("Q2_0", 4): 5.0, ("PQ2_0", 8): 4.8, ("PQ2_0", 4): 5.3,
    ("OneBit", 16): GOAL, ("Q1_0", 8): 8.2, ("Q1_0", 4): 8.7,
    ("IQ4_NL", 4): 9.1, ("IQ4_XS", 4): 9.4, ("MXFP4", 4): 11.1, ("Ternary", 4): 10.6,
    ("IQ3_S", 4): 17.9, ("IQ3_XXS", 4): 22.5, ("IQ2_S", 4): 22.6, ("IQ2_XS", 4): 26.8, ("IQ2_XXS", 4): 31.8,
    ("IQ1_S", 4): 25.5, ("IQ1_M", 4): 22.4,
    ("PTQ1_0", 1): 59.8, ("TQ1_0", 1): 79.2,
    ("cache bf16", 64): 7.1, ("cache bf16", 128): 4.7, ("cache bf16", 256): 3.0,  # the second: dimensions of a head
    ("cache f16", 64): 7.9, ("cache f16", 128): 5.0, ("cache f16", 256): 3.2,
    ("F16 x f32", 32): GOAL, ("F16 x bf16", 32): GOAL,
    ("4-bit codes", 64): 5.3, ("4-bit codes", 128): 4.0,
}
CACHE_KEYS = 64  # of a pass
FEW_DEPTH = 64  # elements of a row of f16 weights, likewise
PIECE_KEYS, TILE_KEYS, WARPS = 256, 16, 4  # of attention over codes

# What a GPU issues while it reads a byte: multiprocessors, each with 4 schedulers of 32 threads, times GHz (boost), over
# GB/s, by the makers' data sheets. Instructions are counted for sm_90a alone: other GPUs' code differs a little.
GPUS = {
    "H200": 132 * 128 * 1.98 / 4800,
    "H100": 132 * 128 * 1.98 / 3350,  # SXM
    "A100": 108 * 128 * 1.41 / 2039,  # SXM, 80 GB
    "4090": 128 * 128 * 2.52 / 1008,
}


@functools.cache
def formats():
    """{name: (bytes, elements)} of each block, as the headers say and the compiler checks."""
    elements, sizes = {}, {}
    for header in sorted((ROOT / "kernels/math/blocks").glob("*.h")):
        text = header.read_text()
        for name, base, body in re.findall(r"^struct (\w+)(?: : (\w+))? \{\n(.*?)^\};", text, re.M | re.S):
            found = re.search(r"\bkElements = (\d+)", body)
            elements[name] = int(found[1]) if found else elements.get(base)
        sizes |= {name: int(size) for name, size in re.findall(r"^static_assert\(sizeof\((\w+)\) == (\d+)\);", text, re.M)}
    return {name: (size, elements[name]) for name, size in sizes.items()}


def counted(name):
    """Of a mangled name: (format, rows of the weight to a warp) and how many warps share these; or None."""
    if found := re.search(r"10block_rowsINS_6blocks\d+(\w+?)ELi(\d+)ELi1EEE", name):
        return (found[1], int(found[2])), 1
    if "8bit_rowsILi1ELb1EEE" in name:  # bit_rows<1, true>
        return ("OneBit", 16), 4
    return None


def cached(name):
    """Of a mangled name: (format, dimensions) of the kernels of attention that decode; or None."""
    found = re.search(r"16paged_mma_kernelI.*4FormI\w*?\d(bf16|f16)ELi(\d+)ELi16E", name)
    return found and (f"cache {found[1]}", int(found[2]))


def few(name):
    """Of a mangled name: (format, rows of the weight to a warp) of f16 weights by few rows of x; or None."""
    found = re.search(r"14row_few_kernelI(f|NS_4bf16E)", name)
    return found and ("F16 x f32" if found[1] == "f" else "F16 x bf16", 32)


def coded(name):
    """Of a mangled name: the dimensions, 64 or 128, of the kernels of attention over codes that decode with all of a piece's
    values in shared memory; or None. Of the others the ways through the loop are too many to look through."""
    found = re.search(r"18paged_tiles_kernelINS_5tiles4FormILi([24])ELi1ELi16E", name)
    return found and 32 * int(found[1])


def words(code):
    """What counts: {index: a product, "local", or "back to N" for a backward branch}."""
    # IDP, BMMA, HMMA, LDL, STL; the bits above say where operands are.
    kinds = {0x026: "dp4a", 0x03d: "bits", 0x03c: "mma", 0x183: "local", 0x187: "local"}
    found = {i: kinds[low & 0x1ff] for i, (low, _) in enumerate(code) if low & 0x1ff in kinds}
    return found | {last: f"back to {first}" for first, last in machine_code.loops(code)}


def disassembled(lines):
    """The same, from the disassembler's lines."""
    kinds = {"IDP": "dp4a", "BMMA": "bits", "HMMA": "mma", "LDL": "local", "STL": "local"}
    labels, found, at = {}, {}, -1
    for line in lines:
        if label := re.match(r"(\.L_\w+):", line):
            labels[label[1]] = at + 1
        elif instruction := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(\w+)(.*)", line):
            at, name = int(instruction[1], 16) // 16, instruction[2]
            if name in kinds:
                found[at] = kinds[name]
            elif name == "BRA" and (target := re.search(r"`\((\.L_\w+)\)", instruction[3])[1]) in labels:
                found[at] = f"back to {labels[target]}"
    return found


def instructions_a_byte(kernel, warps, code, found):
    """Of the main loop, in each thread; kernel, warps: as counted() has them, found: words(code)."""
    products = [(i, PRODUCTS[word]) for i, word in found.items() if word in PRODUCTS]
    codes = lambda loop: sum(count for i, count in products if loop[0] <= i <= loop[1])
    first, last = max(machine_code.loops(code), key=lambda loop: (codes(loop), loop[0] - loop[1]))  # of equals, the shorter
    (name, weights), (size, elements) = kernel, formats()[kernel[0]]
    taken = codes((first, last)) * size // elements
    of_a_row = taken * warps // weights
    if not taken or not {of_a_row, -of_a_row & 0xffffffff} & {low >> 32 for low, _ in code[first:last + 1]}:
        sys.exit(f"FAILED: {name}, {weights} rows to a warp: by its products a pass takes {of_a_row} bytes of a row, but it does "
                 "not move on by that many: tell tests/gpu/instructions.py how to count")
    return 32 * (last + 1 - first) / taken


def of_pass(kernel, code, found, wanted, warps, taken):
    """The same of a pass in which `warps` warps take so many bytes, by so many products of each."""
    products = [i for i, word in found.items() if word == "mma"]
    inside = lambda loop: sum(loop[0] <= i <= loop[1] for i in products)
    first, last = max(machine_code.loops(code), key=lambda loop: (inside(loop), loop[0] - loop[1]))
    if inside((first, last)) != wanted:
        sys.exit(f"FAILED: {kernel}: {inside((first, last))} products in the loop, expected {wanted}: tell tests/gpu/instructions.py "
                 "how to count")
    return 32 * warps * (last + 1 - first) / taken


def of_cache(kernel, code, found):
    """Of keys and values of two bytes an element."""
    dim = kernel[1]
    # Of 16 rows, 8 columns and 16 terms: a warp's 16 keys times the queries, and its quarter of the columns.
    return of_pass(kernel, code, found, dim // 16 * 2 + CACHE_KEYS // 16 * (dim // 4 // 8), 4, 2 * CACHE_KEYS * dim * 2)


def of_few(kernel, code, found):
    """Of f16 weights: products of 16 rows, 8 of the 16 of x and 8 terms, two for an element of x in f32."""
    wanted = kernel[1] // 16 * 2 * FEW_DEPTH // 8 * (2 if "f32" in kernel[0] else 1)
    return of_pass(kernel, code, found, wanted, 1, kernel[1] * FEW_DEPTH * 2)


def of_codes(dim, code):
    """The same of a piece of keys and values that are codes of 4 bits."""
    runs, tiles = dim // 32, PIECE_KEYS // TILE_KEYS
    chunks = TILE_KEYS * dim // 2 // 16  # of a tile's codes; a warp copies all its scales at once
    # A warp has the keys of a quarter of the tiles, and of all values a run or more, or half a run.
    products = tiles // WARPS * runs * 2 + tiles * max(1, runs * 2 // WARPS)
    values = tiles // 4 if runs < WARPS else tiles // 2 * runs // WARPS  # of four halves of a run at a time, or of two runs
    copies = tiles // WARPS * math.ceil(chunks / 32) + 1 + values

    def counts(some):
        kinds = [low & 0xfff for low, _ in some]
        of_size = lambda kind, size: sum(low & 0xfff == kind and high >> 9 & 7 == size for low, high in some)
        mma = kinds.count(0x23c)
        if of_size(0x984, 4) < 4 * mma or 0 < mma < 4:  # LDS: a product takes four pairs of levels; some tiles alone are rare
            return None
        # HMMA, LDGSTS, ATOMG.ADD, LDG.128, VOTE
        return mma, kinds.count(0xfae), kinds.count(0x9a8), of_size(0x981, 6), kinds.count(0x806)

    loop = max(machine_code.loops(code), key=lambda loop: loop[1] - loop[0])
    ways = [machine_code.shortest_way(code, loop, (products, copies, *more), counts)
            for more in ((1, 2, 3), (0, runs, 0), (0, 0, 0))]
    if None in ways:
        sys.exit(f"FAILED: codes, {dim} dimensions: no way through the loop has {products} products and {copies} copies: tell "
                 "tests/gpu/instructions.py how to count")
    return 32 * (sum(ways) + ways[-1] * (WARPS - len(ways))) / (PIECE_KEYS * (dim + 4))


def faults(figures, limits):
    """What is wrong, a line each."""
    for kernel in sorted(figures.keys() | limits.keys()):
        label = "{}, {} rows to a warp or dimensions,".format(*kernel)
        if kernel not in figures:
            yield f"{label} has a limit, and is not in the library"
        elif kernel not in limits:
            yield f"{label} takes {figures[kernel]:.2f} instructions a byte: it needs a limit in tests/gpu/instructions.py"
        elif figures[kernel] > limits[kernel]:
            yield f"{label} takes {figures[kernel]:.2f} instructions a byte, at most {limits[kernel]} are allowed"


def check_this(figures):
    """What it would find."""
    assert not list(faults(figures, figures))
    for kernel, figure in figures.items():
        others = {other: more for other, more in figures.items() if other != kernel}
        assert len(list(faults(figures, figures | {kernel: figure - 0.01}))) == 1, "a limit that is passed"
        assert len(list(faults(figures, others))) == 1, "a kernel without a limit"
        assert len(list(faults(others, figures))) == 1, "a kernel that is gone"
    for local in (0x000000000f0f7983, 0x000f220000100800), (0x0001000401007387, 0x0003e20000100c00):
        assert words([local]) == {0: "local"}, "LDL R15, [R15]; STL.128 [R1+0x100], R4"


def main():
    library = open(sys.argv[1], "rb").read()
    nvdisasm = sys.argv[2] if len(sys.argv) > 2 else shutil.which("nvdisasm")
    figures, wrong, compiler, kernels = {}, [], None, 0
    for architecture, elf in machine_code.cubins(library):
        if architecture != 90:
            continue
        some = any(counted(name) or cached(name) or few(name) for name, _ in machine_code.sections(elf))
        theirs = machine_code.disassembled(nvdisasm, elf) if nvdisasm and some else {}
        for name, code in machine_code.sections(elf):
            code = machine_code.instructions(code)
            found = words(code)
            kernels += 1
            if theirs and (other := disassembled(theirs[name])) != found:
                sys.exit(f"FAILED: {name}: {nvdisasm} reads {other}, this test {found}")
            if "local" in found.values():
                wrong.append(f"{name} uses local memory")
            if of := cached(name):
                figures[of] = of_cache(of, code, found)
            if of := few(name):  # of linear layers and of experts
                figures[of] = max(figures.get(of, 0), of_few(of, code, found))
            if dim := coded(name):
                figures["4-bit codes", dim] = max(of_codes(dim, code), figures.get(("4-bit codes", dim), 0))
            if of := counted(name):
                figures[of[0]] = instructions_a_byte(*of, code, found)
                compiler = machine_code.compiler(elf)
    if not kernels:
        print("SKIPPED: the library was not built for sm_90a")
        return
    print("format, rows to a warp or dimensions; instructions a byte, limit; share of the bandwidth that issue allows on "
          + ", ".join(f"{name} (issues {issued:.1f})" for name, issued in GPUS.items()))
    for (name, weights), figure in sorted(figures.items(), key=lambda each: each[1]):
        limit = LIMITS.get((name, weights), 0)
        shares = "".join(f"{min(1, issued / figure):6.0%}" for issued in GPUS.values())
        print(f"{name:10} {weights:3}   {figure:6.2f} {limit:5.1f}  {shares}" + f"   above the goal of {GOAL}" * (limit > GOAL))
    check_this(figures)
    if compiler != COMPILER:
        print(f"SKIPPED: the limits are of ptxas {COMPILER}, this build's is {compiler}: only what is there is compared")
    wrong += faults(figures, LIMITS if compiler == COMPILER else dict.fromkeys(LIMITS, math.inf))
    how = f", as {nvdisasm} reads them" if nvdisasm else ""
    print(f"{len(figures)} loops{how}; {kernels} kernels looked through for local memory")
    print("".join(f"FAILED: {line}\n" for line in wrong), end="")
    sys.exit(bool(wrong))


main()
