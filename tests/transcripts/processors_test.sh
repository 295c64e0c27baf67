#!/usr/bin/env bash
# The executable on processors that have fewer instructions than the one that built it, as qemu emulates them.
set -euo pipefail
if ! command -v qemu-x86_64 >/dev/null; then
  echo "SKIPPED processors: no qemu-x86_64 here (Debian's package qemu-user)"
  exit 0
fi
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
for pair in Nehalem:baseline Haswell:avx2; do
  found=$(qemu-x86_64 -cpu "${pair%:*}" "$QENG" -e "$script" 2>/dev/null)
  [[ $found == *"${pair#*:}"$'\n'"$here" ]] || { echo "${pair%:*}: expected ${pair#*:} and $here, found: $found"; exit 1; }
done
