"""Kernels that are launched ahead read nothing before the kernel before them has ended: from the machine code for sm_90a.

    python3 ahead.py libqeng_cuda.so

Such a kernel waits first (griddepcontrol.wait, ACQBULK). No instruction that reads or writes global memory may stand
before that. And none may read through the path for constant data, as the compiler makes of __restrict__ and __ldg: it
may move such loads up over the wait; but for formats with a codebook, which is a constant. The emulator finds the
first, too, where a test takes that way.
"""
import re
import sys

import machine_code

KERNELS = {"block_rows", "bit_rows", "row_few_kernel", "row_wgmma_kernel", "norm_apart", "gate_apart", "heads_apart",
           "round_activations", "paged_mma_kernel", "paged_sm90_kernel", "paged_tiles_kernel", "merge_pages",
           "plan_pages_kernel", "sort_segments", "take_sorted"}
CODEBOOKS = re.compile(r"blocks\d+IQ[123]_")
WAIT, LOAD = 0x82e, 0x981  # ACQBULK, LDG
# LDG, LDGSTS, UTMALDG, LD, STG, ST, ATOMG, ATOM, REDG
GLOBAL = {LOAD, 0xfae, 0x5b4, 0x980, 0x986, 0x985, 0x3a9, 0x9a8, 0x38b, 0x98a, 0x98e}

seen, wrong = {}, []
for arch, elf in machine_code.cubins(open(sys.argv[1], "rb").read()):
    for name, code in machine_code.sections(elf) if arch == 90 else ():
        found = re.search(r"\d(" + "|".join(KERNELS) + r")(?=I|E)", name)
        order = machine_code.instructions(code)
        waits = [i for i, (low, _) in enumerate(order) if low & 0xfff == WAIT]
        if found and not waits:
            wrong.append(f"{name} does not wait for the kernel before it")
        if not waits:
            continue
        seen[found[1] if found else name] = seen.get(found[1] if found else name, 0) + 1
        if any(low & 0xfff in GLOBAL for low, _ in order[:waits[0]]):
            wrong.append(f"{name} touches memory before it waits for the kernel before it")
        if not CODEBOOKS.search(name) and any(low & 0xfff == LOAD and high >> 15 & 1 for low, high in order):
            wrong.append(f"{name} reads as constant what other kernels may write: no __restrict__, no __ldg there")
if not seen:
    print("SKIPPED: the library was not built for sm_90a")
elif missing := (KERNELS - set(seen)) | (set(seen) - KERNELS):
    wrong.append("not in both the library and this list: " + ", ".join(sorted(missing)))
print("\n".join("FAILED: " + line for line in wrong) or ", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
sys.exit(bool(wrong))
