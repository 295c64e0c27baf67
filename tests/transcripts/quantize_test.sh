#!/usr/bin/env bash
# recipes/quantize.lua: what it prints, what it refuses, and that its file generates what the folder does.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
expect() { grep -qF -- "$1" "$2" || { echo "expected '$1' in:"; cat "$2"; exit 1; }; }

"$QENG" recipes/quantize.lua recipes/tiny "$out/tiny.gguf" --type q4_k_m --tensor 'ffn_down=q8_0' > "$out/log" 2> "$out/err"
expect "as q5_0 instead of q4_k, whose blocks of 256 do not divide 128 columns" "$out/log"
expect "bits per weight" "$out/log"

if "$QENG" recipes/quantize.lua recipes/tiny "$out/no.gguf" --type q9 > "$out/log" 2>&1; then exit 1; fi
expect "there is no type q9; there are bf16" "$out/log"
if "$QENG" recipes/quantize.lua recipes/tiny "$out/no.gguf" --tensor 'nothing=q8_0' > "$out/log" 2>&1; then exit 1; fi
expect "no matrix is called like nothing" "$out/log"
test ! -e "$out/no.gguf"
# What can be refused is, before the calibration text is even read.
if "$QENG" recipes/quantize.lua recipes/tiny "$out/no.gguf" --calibration "$out/no.txt" --type q9 > "$out/log" 2>&1; then exit 1; fi
expect "there is no type q9" "$out/log"
if "$QENG" recipes/quantize.lua recipes/tiny "$out/none/no.gguf" --calibration "$out/no.txt" > "$out/log" 2>&1; then exit 1; fi
expect "the folder $out/none does not exist" "$out/log"
if "$QENG" recipes/quantize.lua "$out/tiny.gguf" "$out/tiny.gguf" --calibration "$out/no.txt" > "$out/log" 2>&1; then exit 1; fi
expect "give the file that is written another name" "$out/log"
if "$QENG" recipes/quantize.lua recipes/tiny "$out/no.gguf" --chunks 3 > "$out/log" 2>&1; then exit 1; fi
expect "--chunks counts documents of a calibration text: give --calibration" "$out/log"
test ! -e "$out/no.gguf"
head -c 3000 "$out/tiny.gguf" > "$out/cut.gguf"
if "$QENG" recipes/quantize.lua "$out/cut.gguf" "$out/no.gguf" > "$out/log" 2>&1; then exit 1; fi
expect "cut short" "$out/log"

"$QENG" recipes/quantize.lua recipes/tiny "$out/f32.gguf" --type f32 > "$out/log" 2>&1
"$QENG" recipes/quantize.lua recipes/tiny "$out/parts.gguf" --type f32 --split 1M > "$out/log" 2>&1
expect "$out/parts-00001-of-00004.gguf and 3 more: " "$out/log"
for model in recipes/tiny "$out/f32.gguf" "$out/parts-00001-of-00004.gguf"; do
  "$QENG" recipes/generate.lua --model "$model" --prompt "Once upon a time" --temperature 0 --max-tokens 20 --dtype f32
done > "$out/texts"
test "$(sort -u "$out/texts" | wc -l)" = 1 || { cat "$out/texts"; exit 1; }
echo "quantize: passed"
