"""The machine code of libqeng_cuda.so, read without a disassembler: an instruction for sm_90a is 16 bytes."""
import ctypes
import heapq
import re
import struct
import subprocess
import sys
import tempfile


def cubins(library):
    """(architecture, ELF file) of the GPU code of each source; 90 for sm_90a. They lie in fat binaries: a header, then
    entries with headers of their own. nvcc compresses the largest."""
    for found in re.finditer(struct.pack("<IHH", 0xba55ed50, 1, 16), library):
        at = found.end() + 8
        end = at + struct.unpack_from("<Q", library, found.end())[0]
        while at < end:
            kind, header, size, packed, arch, flags, unpacked = struct.unpack_from("<H2xIQI8xI8xQ8xQ", library, at)
            elf = library[at + header:at + header + (packed or size)]
            if flags & 0x8000:
                elf = decompressed(elf, unpacked)
            if kind == 2:  # not PTX
                if elf[:4] != b"\x7fELF":
                    sys.exit("FAILED: GPU code is compressed, and not by zstd: build with nvcc's --no-compress")
                yield arch, elf
            at += header + size


def decompressed(data, size):
    """What zstd packed."""
    try:
        decompress = ctypes.CDLL("libzstd.so.1").ZSTD_decompress
    except OSError:
        sys.exit("FAILED: GPU code is compressed: install libzstd1, or build with nvcc's --no-compress")
    decompress.argtypes, decompress.restype = [ctypes.c_char_p, ctypes.c_size_t] * 2, ctypes.c_size_t
    unpacked = ctypes.create_string_buffer(size)
    decompress(unpacked, size, data, len(data))
    return unpacked.raw


def sections(elf):
    """(name, code) of each section of code."""
    table, size, count, names = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        start = headers[names][4] + name
        text = elf[start:elf.index(b"\0", start)].decode()
        if text.startswith(".text."):
            yield text[6:], elf[offset:offset + length]


def compiler(elf):
    """The version of the toolkit that made it; None before 13, which began to say."""
    found = re.search(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)", elf)
    return found and found[1].decode()


def instructions(code):
    """The two words of each."""
    return list(struct.iter_unpack("<QQ", code[:len(code) // 16 * 16]))


def jumps(code):
    """{instruction: where it branches to}, as indices."""
    found = {}
    for i, (low, high) in enumerate(code):
        if low & 0xfff == 0x947:  # BRA
            steps = low >> 16 & 255 | low >> 34 << 8 | (high & 0x3ffff) << 38  # of 4 bytes, from the next instruction: 56 bits
            found[i] = i + 1 + (steps - (steps >> 55 << 56)) // 4
    return found


def loops(code):
    """(first, last) of what each backward branch repeats, as indices of instructions."""
    return [(target, i) for i, target in jumps(code).items() if target <= i]


def blocks(code):
    """{first: (past the last, where it may go on)} of each run of instructions without a branch."""
    targets, found = jumps(code), {}
    ends = {i for i, (low, _) in enumerate(code) if low & 0xfff in (0x947, 0x94d)}  # BRA, EXIT
    firsts = sorted({0} | set(targets.values()) | {i + 1 for i in ends if i + 1 < len(code)})
    for first, stop in zip(firsts, firsts[1:] + [len(code)]):
        low, high = code[stop - 1]
        always = stop - 1 in ends and low >> 12 & 15 == 7 and high >> 23 & 15 == 7  # by both predicates
        found[first] = stop, ([] if always else [stop]) + [targets[i] for i in [stop - 1] if i in targets]
    return found


def shortest_way(code, loop, wanted, counts):
    """Instructions of the shortest way once through a loop, never backwards, that has just so many of the things wanted; None if there is
    none. counts(instructions): how many of each a block has, or None, where no way may lead."""
    graph, done, queue = blocks(code), set(), [(0, loop[0], (0,) * len(wanted))]
    counted = {first: counts(code[first:stop]) for first, (stop, _) in graph.items()}
    while queue:
        taken, first, before = heapq.heappop(queue)
        if (first, before) in done or counted[first] is None:
            continue
        done.add((first, before))
        stop, following = graph[first]
        have = tuple(map(sum, zip(before, counted[first])))
        if any(some > most for some, most in zip(have, wanted)):
            continue
        taken += stop - first
        for to in following:
            if to == loop[0] and have == wanted:
                return taken
            if first < to <= loop[1]:
                heapq.heappush(queue, (taken, to, have))
    return None


def disassembled(nvdisasm, elf):
    """The lines of the disassembler for each function."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(elf)
        file.flush()
        text = subprocess.run([nvdisasm, file.name], capture_output=True, text=True, check=True).stdout
    functions = {}
    for line in text.splitlines():
        if found := re.match(r"\s*\.section\s+\.text\.([^,\s]+)", line):
            lines = functions.setdefault(found[1], [])
        elif functions:
            lines.append(line)
    return functions
