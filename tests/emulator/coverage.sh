#!/usr/bin/env bash
# coverage.sh LIBRARY LAUNCHED: which kernels of the emulated library did the tests before this one launch? LAUNCHED is what
# $QENG_EMULATOR_KERNELS named (coverage.cpp). Each kernel that was not is listed; 95 of 100 have to be.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
library=$1 launched=$2
[[ -s $launched ]] || { echo "$launched: no kernel was launched" >&2; exit 1; }

# The name of a __global__ function is the last word before its parameters.
names=$(find kernels/cuda -name "*.cu" -o -name "*.h" | sort | xargs cat | tr '\n' ' ' | grep -o '__global__[^;{]*' | sed -E 's/__launch_bounds__\([^)]*\)//; s/\(.*//; s/.*[ *&]//' | sort -u)
# With the compiler's copies of one kernel (.constprop, .isra), a launch of any counts.
nm -C "$library" | awk -v names="$names" -v launched="$launched" -v library="$(basename "$library")" '
  BEGIN {
    while ((getline line < launched) > 0) { split(line, word, " "); if (word[1] == library) ran[word[2]] = 1 }
    n = split(names, list, /[ \n]+/)
    for (i = 1; i <= n; i++) kernel[list[i]] = 1
  }
  $2 ~ /^[tTwW]$/ {
    text = $0
    sub(/^[^ ]+ . /, "", text)
    if (text ~ /::\{lambda\([^{}]*\)#[0-9]+\}::operator\(\)/) next  # of a kernel, which the compiler did not inline
    base = text
    sub(/ \[clone.*/, "", text)
    sub(/\(anonymous namespace\)::/, "", base); sub(/qeng::/, "", base); sub(/^void /, "", base)
    sub(/[<(].*/, "", base); sub(/.*::/, "", base)
    if (!(base in kernel)) next
    seen[text] = 1
    if ($1 in ran) done[text] = 1
  }
  END {
    for (text in seen) { all++; if (text in done) count++; else print "not run in the emulator: " text }
    printf "%d of %d kernels were run in the emulator\n", count, all
    exit !(all > 0 && count >= 0.95 * all)
  }'
