#!/usr/bin/env bash
# The executable on processors that have fewer instructions than the one that built it, as qemu emulates them.
set -euo pipefail
case $("$QENG" -e 'print(jit.arch)') in
  arm64) emulator=qemu-aarch64 pairs=(cortex-a72:neon cortex-a76:dotprod max:armv86) ;;
  *) emulator=qemu-x86_64 pairs=(Nehalem:baseline Haswell:avx2) ;;
esac
if ! command -v "$emulator" >/dev/null; then
  echo "SKIPPED processors: no $emulator here (Debian's package qemu-user)"
  exit 0
fi
run=("$emulator" "$QENG")
[[ $(head -c 2 "$QENG") != '#!' ]] || run=("$QENG")  # of a cross build, which is run by the emulator anyway
script='
local q = require "qeng"
q.device { device = "cpu", threads = 1 }
print(q.devices()[1].description)
local w, x = q.randn({ 8, 40 }, { seed = 1 }), q.randn({ 3, 40 }, { seed = 2 })
w:requires_grad(true)
local loss = (q.linear(x, w):softmax() * q.randn({ 3, 8 }, { seed = 3, dtype = "bf16" }):sigmoid()):sum()
loss:backward()
print(("%.4f %.4f"):format(loss:item(), w:grad():norm():item()))
'
here=$("$QENG" -e "$script" | tail -n 1)
for pair in "${pairs[@]}"; do
  found=$(QEMU_CPU=${pair%:*} "${run[@]}" -e "$script" 2>/dev/null)
  [[ $found == *"${pair#*:}"$'\n'"$here" ]] || { echo "${pair%:*}: expected ${pair#*:} and $here, found: $found"; exit 1; }
done
