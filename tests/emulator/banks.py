"""Turns that the banks of shared memory take for each kernel's reads and writes, beside the least: from the addresses
of all lanes, which the emulator notes (tests/emulator/banks.h).

    python3 banks.py qeng_conformance libqeng_cuda_races.so [KERNEL ...]     KERNEL: and the places in it that take more

A kernel may take MOST times the least; what may take more stands in LIMITS, with the reason. Limits may only fall.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

MOST = 1.1
LIMITS = {
    "layer_norm_grad_rows": (1.25, "as rmsnorm_grad_rows"),
    "lora_up_grad": (1.25, "copies of a narrow tile, by the way that wide ones have"),
    "matmul_sum": (1.5, "pairs of sums in f32 on their way to whole rows, two to a bank: once a tile"),
    "paged_attention_kernel": (1.25, "keys and values widen to f32 in shared memory a number at a time; a rare kernel"),
    "paged_delta_chunks": (1.25, "rows of D are made one after another, which takes longer than their turns"),
    "paged_delta_prepare": (1.15, "lanes that skip what lies above the diagonal are not matched rightly"),
    "rmsnorm_grad_rows": (1.2, "eight sums of a lane are two writes of 16 bytes, 32 bytes apart: once a block"),
    "rotate_heads": (1.4, "eight angles of a lane likewise: 16 turns of the time in which 4 KB pass"),
    "row_mma_kernel": (1.3, "as row_wgmma_kernel"),
    "row_wgmma_kernel": (1.35, "eight sums of a lane likewise, once a tile"),
}
# The device's compute capability, an operation (or all), and how many draws of each: more where they cost little.
RUNS = [("9.0", "", 6), ("9.0", "row_linear", 60), ("9.0", "paged_attention", 16), ("8.0", "row_linear", 60),
        ("8.0", "attention", 6), ("8.0", "attention_grad", 6), ("8.0", "grouped_matmul", 6), ("7.5", "matmul", 30)]
TEST = "every op agrees with float64 on every backend"

Place = collections.namedtuple("Place", "kernel key kind bytes")


def run(conformance, library, capability, operation, rounds, counts):
    """Adds to counts[Place] the accesses, turns and least of draws."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "banks")
        environment = dict(os.environ, QENG_EMULATOR_BANKS=out, QENG_CUDA_LIBRARY=library, QENG_BACKENDS="cuda",
                           QENG_EMULATOR_CC=capability, QENG_ROUNDS=str(rounds))
        command = [conformance, TEST] + (["-c", operation] if operation else [])
        done = subprocess.run(command, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            sys.exit(f"FAILED: {operation} on {capability}\n{done.stdout[-3000:]}")
        with open(out, encoding="utf-8") as lines:
            for line in lines:
                module, kernel, key, kind, size, *numbers = line.split("\t")
                if os.path.basename(module) == os.path.basename(library):
                    entry = counts[Place(kernel, key, kind, size)]
                    for i, number in enumerate(numbers):
                        entry[i] += int(number)


def kernel_names(library):
    """The own name of the function at each address."""
    names = {}
    symbols = subprocess.run(["nm", "-C", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    for address, text in re.findall(r"^([0-9a-f]+) . (.*)$", symbols, re.M):
        text = text.replace("(anonymous namespace)::", "").replace("qeng::", "").removeprefix("void ")
        if name := re.match(r"[\w:]+", text):
            names[hex(int(address, 16))] = name[0].rsplit("::", 1)[-1]
    return names


def places(library, keys):
    """In words: file:line, of an inlined function also that of its caller."""
    words = {key: key for key in keys}
    addresses = "\n".join(key for key in keys if key.startswith("0x"))
    said = subprocess.run(["addr2line", "-a", "-i", "-e", library], input=addresses, stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    for part in re.split(r"^0x", said, flags=re.M)[1:]:
        address, *lines = part.splitlines()
        lines = [re.sub(r" \(.*", "", line).rsplit("/", 1)[-1] for line in lines]
        words[hex(int(address, 16))] = " in ".join(line for line in lines if not line.startswith("?"))
    return words


def sums(counts, key_of):
    """Of equal keys together: accesses, turns, least."""
    together = collections.defaultdict(lambda: [0, 0, 0])
    for place, numbers in counts.items():
        for i, number in enumerate(numbers):
            together[key_of(place)][i] += number
    return together


def main():
    conformance, library, *wanted = sys.argv[1:]
    counts = collections.defaultdict(lambda: [0, 0, 0])
    for capability, operation, rounds in RUNS:
        run(conformance, library, capability, operation, rounds, counts)
    names = kernel_names(library)
    wrong = []
    print(f"{'kernel':32} {'accesses':>10} {'turns':>10} {'least':>10}  above")
    of_kernel = sums(counts, lambda place: names[place.kernel])
    for kernel, (accesses, turns, least) in sorted(of_kernel.items()):
        limit = LIMITS.get(kernel, (MOST, ""))[0]
        print(f"{kernel:32} {accesses:10} {turns:10} {least:10}  {turns / least:5.2f}   at most {limit}")
        if turns > limit * least:
            wrong.append(f"{kernel}: reads and writes take {turns / least:.3f} times the least turns, over {limit}")
    if missing := set(LIMITS) - set(of_kernel):
        wrong.append("nothing was seen of " + ", ".join(sorted(missing)))
    for kernel in wanted:
        above = {place: each for place, each in counts.items() if names[place.kernel] == kernel and each[1] > each[2]}
        words = places(library, {place.key for place in above})
        print(f"\n{kernel}")
        of_place = sums(above, lambda place: (words[place.key], place.kind, place.bytes))
        for (where, kind, size), each in sorted(of_place.items(), key=lambda item: item[1][2] - item[1][1]):
            print(f"  {'reads' if kind == 'r' else 'writes'} {size:>2} bytes {each[0]:8} times, "
                  f"{each[1]:8} turns, least {each[2]:8}  {where}")
    print("\n".join("FAILED: " + line for line in wrong))
    sys.exit(bool(wrong))


main()
