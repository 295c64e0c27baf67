"""How much of each product's loop is products by tensor cores: from the machine code for sm_90a.

    python3 products.py libqeng_cuda.so

Of each kernel with such instructions the loop is taken that has the most of them, of nested ones the innermost; of a
kernel's variants the one with the smallest share counts. A share may only rise: LEAST is what the compiler made, rounded
down. What else stands in a loop is mostly addresses: those that do not change belong before it. A loop by wgmma that
runs ahead (RUNS_AHEAD) waits so that one batch of products keeps running, and for nothing else.

Rare cases of some kernels (RARE_WITHIN) stand in loops within the loop, which are left out of both. What a piece of keys
of paged_tiles_kernel executes, instructions.py limits. Others (OF_HEADS) have a loop over heads around all they do, which
does not count.
"""
import re
import sys

import machine_code

# Per cent of the loop's instructions; one of wgmma is 64 rows of a product.
LEAST = {
    "attention_grad_kept_sm90": 5.0, "attention_grad_kernel": 6.2, "attention_grad_keys_sm90": 2.9, "attention_grad_queries_sm90": 1.9,
    "attention_kernel": 9.6, "attention_sm90_kernel": 1.2, "bit_rows": 2.9, "block_tiles_kernel": 1.8,
    "delta_prepare": 0.8, "delta_rows_grad": 4.1, "delta_scan": 3.4, "delta_scan_grad": 3.4, "grouped_mma": 16.6,
    "grouped_mma_grad": 13.6, "lora_down": 6.0, "lora_down_grad": 8.1, "lora_up_grad": 10.5, "matmul_sum": 6.6,
    "paged_delta_chunks": 1.8, "paged_delta_prepare": 2.6, "paged_delta_row": 1.3, "paged_mma_kernel": 1.5,
    "paged_sm90_kernel": 0.7, "paged_tiles_kernel": 3.8, "row_few_kernel": 8.0, "row_mma_kernel": 6.0,
    "row_wgmma_kernel": 5.5,
}
RARE_WITHIN = {"paged_tiles_kernel"}
OF_HEADS = {"delta_rows_grad"}
RUNS_AHEAD = {"row_wgmma_kernel", "matmul_sum"}
WGMMA, MMA = 0x9f0, {0x23c, 0x237, 0x23d}  # HGMMA, whose first factor may be in registers; HMMA, IMMA, BMMA


def products(code):
    return sum(low & 0xbff == WGMMA or low & 0xfff in MMA for low, _ in code)


def of_loop(code, rare_within, of_heads):
    """The instructions of the smallest loop that has the most products; empty where no loop has one."""
    loops = machine_code.loops(code)
    found = {loop: products(code[loop[0]:loop[1] + 1]) for loop in loops}
    if of_heads:
        found = {loop: count for loop, count in found.items()
                 if not any(found[other] and other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in found)}
    most = max(found.values(), default=0)
    if most == 0:
        return []
    first, last = min((loop for loop in found if found[loop] == most), key=lambda loop: loop[1] - loop[0])
    within = {i for begin, end in loops if rare_within and first <= begin and end <= last and (begin, end) != (first, last)
              for i in range(begin, end + 1)}
    return [code[i] for i in range(first, last + 1) if i not in within]


def waits(code):
    """How many batches each wait leaves running: WARPGROUP.DEPBAR."""
    return [high >> 8 & 7 for low, high in code if low & 0xfff == 0x9c5 and low >> 47 & 1]


def identifiers(mangled):
    """The names in it, in order."""
    at = 0
    while found := re.compile(r"\d+").search(mangled, at):
        at = found.end() + int(found[0])
        if re.fullmatch(r"[a-z_]\w*", name := mangled[found.end():at]):
            yield name
        else:
            at = found.end()


def main():
    shares, wrong = {}, []
    for arch, elf in machine_code.cubins(open(sys.argv[1], "rb").read()):
        for name, code in machine_code.sections(elf) if arch == 90 else ():
            kernel = next((each for each in identifiers(name) if not re.fullmatch(r"qeng|_GLOBAL__N_\w+", each)), None)
            inner = of_loop(machine_code.instructions(code), kernel in RARE_WITHIN, kernel in OF_HEADS)
            if not inner:
                continue
            shares.setdefault(kernel, []).append(100 * products(inner) / len(inner))
            if kernel in RUNS_AHEAD and (left := waits(inner)) != [1]:
                wrong.append(f"{name}: its waits leave {left} batches running, not 1 by one wait")
    for kernel, each in sorted(shares.items()):
        least = LEAST.get(kernel)
        print(f"{kernel:28} {min(each):5.1f} .. {max(each):5.1f} % of {len(each):3}   at least {least}")
        if least is None or min(each) < least:
            wrong.append(f"{kernel}: {min(each):.1f} % of its loop are products; {least} are wanted")
    if not shares:
        print("SKIPPED: the library was not built for sm_90a")
    elif missing := {*LEAST, *RUNS_AHEAD} - set(shares):
        wrong.append("no code of " + ", ".join(sorted(missing)))
    print("\n".join("FAILED: " + line for line in wrong))
    sys.exit(bool(wrong))


main()
