"""The softmax of Hopper's attention runs beside a product: read from the machine code.

    python3 overlap.py libqeng_cuda.so [NVDISASM]

The kernels start a product, work on the softmax, then wait for the product. ptxas may move that wait up over the
exponentials: results stay right, and the two no longer overlap. So, in the code for sm_90a of each such kernel, every
exponential that the source has between the two waits must stand between them. No disassembler is needed: the
instructions that count are told by the bits below. With NVDISASM, its reading is compared.
"""
import re
import shutil
import sys

import machine_code

# Share of a kernel's exponentials that stand between a wait that leaves one product running and the next wait, and for
# which heads it is there: half of the forward pass's (the other half is the first step's, with nothing beside it), over
# pages with the four more that merge pieces; all of the gradient's.
DIMS = (64, 96, 128, 256)
KERNELS = {"attention_sm90_kernel": (0.5, DIMS), "paged_sm90_kernel": (38 / 72, (64, 128)),
           "attention_grad_keys_sm90": (1, DIMS), "attention_grad_queries_sm90": (1, DIMS)}


def words(code):
    """What counts, in order: "product", "exp", and "wait N" for a wait that leaves N products running."""
    for low, high in machine_code.instructions(code):
        if low & 0xbff == 0x9f0:  # HGMMA, its first factor in shared memory or in registers
            yield "product"
        elif low & 0xfff == 0x308 and high >> 10 & 15 == 2:  # MUFU.EX2
            yield "exp"
        elif low & 0xfff == 0x9c5 and low >> 47 & 1:  # WARPGROUP.DEPBAR; without that bit, WARPGROUP.ARRIVE
            yield f"wait {high >> 8 & 7}"


def disassembled(lines):
    """The same, from the disassembler's lines."""
    for line in lines:
        if found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?(HGMMA|MUFU\.EX2|WARPGROUP\.DEPBAR\S* gsb0, 0x(\d))", line):
            yield {"H": "product", "M": "exp", "W": f"wait {found[2]}"}[found[1][0]]


def main():
    library = open(sys.argv[1], "rb").read()
    nvdisasm = sys.argv[2] if len(sys.argv) > 2 else shutil.which("nvdisasm")
    seen, wrong, any_cubin = set(), False, False
    for _, elf in machine_code.cubins(library):
        any_cubin, compared = True, None
        for name, code in machine_code.sections(elf):
            found = re.search(r"\d(" + "|".join(KERNELS) + r")ILi(\d+)E", name)
            order = list(words(code)) if found else []
            if "product" not in order:
                continue  # another architecture's stand-in, which gives up
            if nvdisasm:
                compared = compared or machine_code.disassembled(nvdisasm, elf)
                if (theirs := list(disassembled(compared[name]))) != order:
                    sys.exit(f"FAILED: {name}: {nvdisasm} reads {theirs}, this test {order}")
            waits = [i for i, word in enumerate(order) if word.startswith("wait")]
            beside = max(order[i:j].count("exp") for i, j in zip(waits, waits[1:]) if order[i] == "wait 1")
            wanted = int(order[:waits[-1]].count("exp") * KERNELS[found[1]][0])  # behind the last wait are those of sinks
            label = f"{found[1]}<{found[2]}>"
            print(f"{label}: {beside} of {wanted} exponentials beside a product" + (", as nvdisasm reads it" if nvdisasm else ""))
            seen.add(label)
            if beside != wanted or wanted == 0:
                wrong = True
                print(f"FAILED: {label}: ptxas moved the wait for the product before the exponentials: "
                      "kernels/cuda/ptx/ptx_sm90.h, keep_before_wait")
    if not any_cubin:
        sys.exit(f"FAILED: {sys.argv[1]} holds no code for a GPU")
    if not seen:
        print("SKIPPED: the library was not built for sm_90a")
    elif missing := {f"{name}<{dim}>" for name, (_, dims) in KERNELS.items() for dim in dims} - seen:
        sys.exit("FAILED: no code of " + ", ".join(sorted(missing)))
    sys.exit(wrong)


main()
