#!/usr/bin/env bash
# scripts/kernel-report on what ptxas says of a kernel that stands in for ours: figures by architecture, a change, and a build
# for fewer architectures than the file holds, which may check it but not replace it.
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED $*"; failed=1; }
mkdir -p "$dir"/{scripts,bench,kernels/cuda}
cp scripts/kernel-report "$dir/scripts/"
touch "$dir/kernels/cuda/one.cu"
words() {  # BUILD REGISTERS ARCHITECTURE...
  local to=$dir/$1/kernels/cuda/CMakeFiles/qeng_cuda.dir
  mkdir -p "$to"
  { echo "version 13.0"
    for arch in "${@:3}"; do
      echo "ptxas info    : Compiling entry function '_Z3onev' for 'sm_$arch'"
      echo "ptxas info    : Function properties for _Z3onev"
      echo "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
      echo "ptxas info    : Used $2 registers, used 0 barriers"
    done
  } >"$to/one.cu.o.ptxas"
}
report() { "$dir/scripts/kernel-report" "$@" >"$dir/text" 2>&1; }
kept=$dir/bench/kernels-report.txt

words all 40 80 90a
report --check "$dir/all" && fail "--check without a file: exit status 0"
report --update "$dir/all" || fail "--update, the first: $(cat "$dir/text")"
grep -qE '^ +40 +1024 .* 80 90a +one: one$' "$kept" || fail "the file: $(cat "$kept")"
report --check "$dir/all" || fail "--check of what was written: $(cat "$dir/text")"

cp "$kept" "$dir/before"
words few 40 90a
report --check "$dir/few" || fail "--check of fewer architectures: $(cat "$dir/text")"
report --update "$dir/few" && fail "--update from fewer architectures: exit status 0"
grep -q 'lacks \[sm_80\]' "$dir/text" || fail "--update from fewer architectures says $(cat "$dir/text")"
cmp -s "$kept" "$dir/before" || fail "--update from fewer architectures changed the file"
[[ ! -e $kept.new ]] || fail "--update from fewer architectures left $kept.new"

words other 48 90a 120
report --check "$dir/other" && fail "--check of other figures and one more architecture: exit status 0"
words newer 48 120
report --check "$dir/newer" || fail "--check of an architecture that the file lacks: $(cat "$dir/text")"
grep -q '^SKIPPED: .* has nothing of \[sm_120\]$' "$dir/text" || fail "an architecture that the file lacks: $(cat "$dir/text")"

words all 48 80 90a
report --check "$dir/all" && fail "--check of other figures: exit status 0"
report --update "$dir/all" || fail "--update of other figures: $(cat "$dir/text")"
report --check "$dir/all" || fail "--check after the update: $(cat "$dir/text")"
exit $failed
