#!/usr/bin/env bash
# The scripts that run qeng on a GPU, with stand-ins for what a machine with one has: where cuBLASLt is looked for, what of a
# run is packed, when gpu-check goes on, and that bundle takes no option for a folder.
# shellcheck disable=SC2016  # what is in single quotes other shells expand
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED $*"; failed=1; }
stand_in() {  # FILE, its lines
  mkdir -p "$(dirname "$1")"
  { echo '#!/usr/bin/env bash'; printf '%s\n' "${@:2}"; } >"$1"
  chmod +x "$1"
}

# find_cublas names a library of PyTorch's wheels where the loader and the toolkit have none, and nothing else.
stand_in "$dir/bin/ldconfig" "cat '$dir/cached' 2>/dev/null"
stand_in "$dir/bin/python" "echo '$dir/other'; echo '$dir/nvidia'"
mkdir -p "$dir/nvidia/cublas/lib" "$dir/nvidia/cu13/lib" "$dir/toolkit/lib64"
found() {  # [VARIABLE=VALUE...]
  env -u LD_LIBRARY_PATH -u CUDA_HOME -u QENG_CUBLASLT PATH="$dir/bin:$PATH" "$@" bash -c '
    source scripts/gpu-environment; find_cublas python; echo "${QENG_CUBLASLT:-none} ${LD_LIBRARY_PATH:-none}"'
}
same() { [[ $2 == "$3" ]] || fail "$1: '$2', expected '$3'"; }
if ! compgen -G '/usr/local/cuda/lib64/libcublasLt.so.1[23]' >/dev/null; then
  same "no library" "$(found)" "none none"
  touch "$dir/nvidia/cublas/lib/libcublasLt.so.12"
  same "a wheel of CUDA 12" "$(found)" "$dir/nvidia/cublas/lib/libcublasLt.so.12 none"
  touch "$dir/nvidia/cu13/lib/libcublasLt.so.13"
  same "wheels of both" "$(found)" "$dir/nvidia/cu13/lib/libcublasLt.so.13 none"
fi
same "the user's" "$(found QENG_CUBLASLT=/mine)" "/mine none"
touch "$dir/toolkit/lib64/libcublasLt.so.12"
same "the toolkit's" "$(found CUDA_HOME="$dir/toolkit")" "none none"
same "on the path" "$(found LD_LIBRARY_PATH="/nowhere:$dir/toolkit/lib64")" "none /nowhere:$dir/toolkit/lib64"
echo $'\tlibcublasLt.so.12 (libc6,x86-64) => /usr/lib/libcublasLt.so.12' >"$dir/cached"
same "the loader's" "$(found)" "none none"

# pack_results takes figures and logs, and leaves weights, checkpoints, large files and its own archive.
results=$dir/results
mkdir -p "$results/compare" "$results/checkpoints/step-1" "$results/7/unfinished"
echo text | tee "$results"/{gpu-check.json,ops.text,commit,7/runs.jsonl,compare/table.md,step.done} "$results/checkpoints/step-1/state.json" \
  "$results/7/unfinished/state.json" "$results/adapter.safetensors" >/dev/null
truncate -s 5M "$results/long.log"
for _ in 1 2; do bash -c 'source scripts/gpu-environment; pack_results "$1"' - "$results" || fail "pack_results"; done
same "packed" "$(tar -tzf "$results/results.tar.gz" | sort | tr '\n' ' ')" "./7/runs.jsonl ./commit ./compare/table.md ./gpu-check.json ./ops.text ./step.done "

# gpu-check goes on after a part `system` that failed late, and ends where there is no device.
stand_in "$dir/build/tests/qeng_conformance" 'echo "all passed: $*"'
touch "$dir/build/libqeng_cuda.so"
check() {  # LINES OF QENG...
  stand_in "$dir/build/qeng" "$@"
  QENG_BUILD=$dir/build PATH="$dir/bin:$PATH" scripts/gpu-check --python "$dir/bin/python" --only system,conformance --slow 2 --out "$dir/check" >"$dir/check.text" 2>&1
}
parts() { cut -f 1,2 "$dir/check/parts.tsv" | tr '\t\n' '= '; }
check 'exit 1' && fail "no device: exit status 0"
same "no device" "$(parts)" "system=failed "
grep -q '==== system (at most 240 s)' "$dir/check.text" || fail "--slow 2: $(head -n 1 "$dir/check.text")"
check '[[ $1 != */system.lua ]] || { echo "{}" >"$3"; exit 1; }' && fail "a late failure: exit status 0"
same "a late failure" "$(parts)" "system=failed conformance=passed "
packed=$(tar -tzf "$dir/check/results.tar.gz")  # no pipe into grep -q, which may end before tar does
grep -q '^./conformance.log$' <<<"$packed" || fail "results.tar.gz: $packed"
same "one process an operation" "$(grep -c 'all passed: every op agrees.* -c ' "$dir/check/conformance.log")" "$(cat kernels/ops/*.h | grep -c 'constexpr const char\* name = "')"

# An operation that hangs and one that dies are wrong, and the others are checked all the same. Attention comes first, alone;
# where it is right by mma.sync, that is what the parts below use.
checked() {  # OPTIONS OF gpu-check...; the stand-in logs when it begins and ends: one operation hangs, others die
  : >"$dir/log"
  QENG_BUILD=$dir/build PATH="$dir/bin:$PATH" scripts/gpu-check --python "$dir/bin/python" --out "$dir/check" "$@" >"$dir/check.text" 2>&1
}
operations() {  # HANGS DIES...
  stand_in "$dir/build/tests/qeng_conformance" 'name=${*: -1}' "hangs=$1 dies=' ${*:2} '" "log=$dir/log" \
    'echo "begin $name ${QENG_ATTENTION:-}" >>"$log"' '[[ $name != "$hangs" || -n ${QENG_ATTENTION:-} ]] || exec sleep 60' \
    '[[ $dies != *" $name "* ]] || kill -SEGV $$' 'echo "end $name" >>"$log"'
}
stand_in "$dir/build/qeng" '[[ $1 != */system.lua ]] || echo "{}" >"$3"' "[[ \$1 != */parity_test.lua ]] || echo \"parity \${QENG_ATTENTION:-}\" >>'$dir/log'"
operations attention rope
rm -r "$dir/check"
checked --only system,conformance,parity --budget 26 --results "$dir/kept.tar.gz" && fail "an operation that hangs: exit status 0"
# The first part is begun in any case; conformance, which may take 120 s, is left out and named.
same "the budget" "$(parts)" "system=passed "
grep -q '^==== left out for the budget: conformance parity; to go on: --from conformance$' "$dir/check.text" || fail "the budget: $(cat "$dir/check.text")"
rm -r "$dir/check"  # another machine, which has the archive alone
checked --only system,conformance,parity --budget 26 --results "$dir/kept.tar.gz" --from conformance && fail "--from: exit status 0"
same "--from goes on" "$(parts)" "system=passed conformance=failed "
same "what is wrong" "$(cat "$dir/check/conformance.summary")" "$(cat kernels/ops/*.h | grep -c 'constexpr const char\* name = "') operations; wrong: attention (right with QENG_ATTENTION=mma, which the parts below use); wrong: rope"
# The two begin side by side, in either order, and so do their other ways.
same "attention first and alone" "$(head -n 4 "$dir/log" | sed 's/attention_grad mma/attention mma/' | sort | tr '\n' ';')" \
  "begin attention ;begin attention mma;begin attention_grad ;end attention_grad;"
same "the others" "$(grep -c '^end ' "$dir/log")" "$(($(cat kernels/ops/*.h | grep -c 'constexpr const char\* name = "') - 2 + 2))"  # but two, and two by mma
grep -q '^no end within 2 s$' "$dir/check/conformance.log" || fail "an operation that hangs: $(grep -A 3 FAILED "$dir/check/conformance.log")"
grep -q '^exit status 139$' "$dir/check/conformance.log" || fail "an operation that dies: $(grep -A 3 FAILED "$dir/check/conformance.log")"
packed=$(tar -xzOf "$dir/kept.tar.gz" ./parts.tsv)
grep -q '^conformance' <<<"$packed" || fail "--results lacks the last part: $packed"
[[ ! -e $dir/kept.tar.gz.new ]] || fail "--results leaves $dir/kept.tar.gz.new"
checked --only system,conformance,parity --from parity || true
grep -q '^parity mma$' "$dir/log" || fail "the parts below do not use mma.sync: $(cat "$dir/log")"

checked --from everything && fail "--from a part that is none: exit status 0"

# A paged kernel that is wrong changes nothing of how training computes attention; attention wrong by both is not waited for.
operations none paged_attention
checked --only conformance,parity && fail "paged_attention is wrong: exit status 0"
same "paged_attention" "$(cat "$dir/check/conformance.summary")" "$(cat kernels/ops/*.h | grep -c 'constexpr const char\* name = "') operations; wrong: paged_attention"
grep -q '^parity $' "$dir/log" || fail "a wrong paged_attention moves training to mma.sync: $(cat "$dir/log")"
operations none attention attention_grad
checked --only conformance,parity && fail "attention is wrong: exit status 0"
grep -q 'wrong: attention attention_grad (wrong with QENG_ATTENTION=mma too)' "$dir/check/conformance.summary" || fail "attention is wrong: $(cat "$dir/check/conformance.summary")"
grep -q 'not begun: attention is wrong' "$dir/check.text" || fail "attention is wrong: $(cat "$dir/check.text")"
! grep -q parity "$dir/log" || fail "parity was begun"

# Results of another commit do not count.
echo other >"$dir/check/commit"
checked --only system || fail "system alone: $(cat "$dir/check.text")"
same "another commit" "$(parts)" "system=passed "

# train_gpu.sh measures all of ours before any peer, and --go-on what is missing.
stand_in "$dir/trainer/qeng" 'case $1 in */train.lua) ;; *) exit ;; esac' 'while (($#)); do case $1 in --out) out=$2 ;; --mode) mode=$2 ;; esac; shift; done' \
  "echo qeng \$mode >>'$dir/order'; echo {} | tee \$out/result.json >\$out/batches.json"
stand_in "$dir/trainer/python" '[[ $1 == -c ]] && exit' 'while (($#)); do case $1 in --dir) out=$2 ;; --variant) variant=$2 ;; esac; shift; done' \
  "echo \$variant \${out##*/} >>'$dir/order'; [[ \$out != *full* || -e '$dir/again' ]] && echo {} >\$out/\$variant.json"
train_gpu() { QENG=$dir/trainer/qeng bench/train_gpu.sh --tiny --device cpu --python "$dir/trainer/python" --out "$dir/train" "$@" >"$dir/train.text" 2>&1; }
train_gpu || fail "train_gpu: $(cat "$dir/train.text")"
same "ours first" "$(paste -sd ';' <"$dir/order")" "qeng lora;qeng full;eager tiny_lora_64;helped tiny_lora_64;eager tiny_full_64"
rm "$dir/order"
touch "$dir/again"
train_gpu --go-on || fail "train_gpu --go-on: $(cat "$dir/train.text")"
same "--go-on" "$(paste -sd ';' <"$dir/order")" "eager tiny_full_64"

# decode_gpu.sh on the CPU, at a tiny shape. Without PyTorch that is said; once it can be had, both are measured again; what is done stays.
decode() { bench/decode_gpu.sh --tiny --device cpu --models "$dir" --out "$dir/decode" "$@" >"$dir/decode.text" 2>&1; }
line() { grep "^| tiny | $1" "$dir/decode/decode.md" | tail -n 1; }
decode --only bf16,tq2_0 --python "$dir/no-python" || fail "decode_gpu: $(tail -n 5 "$dir/decode.text")"
grep -q "^SKIPPED: PyTorch: $dir/no-python has no torch" "$dir/decode.text" || fail "decode_gpu does not say that it skips: $(cat "$dir/decode.text")"
same "decode_gpu, parts" "$(cd "$dir/decode" && echo *.done)" "tiny_bf16.done tiny_tq2_0.done"
same "decode_gpu, one sequence and two" "$(line 'tq2_0 ' | grep -oc '([0-9]* %) | [0-9.]* ([0-9]* %) |$')" 1
same "decode_gpu, no peer" "$(line '[0-9]' | cut -d '|' -f 4)" " SKIPPED "
stand_in "$dir/bin/peer" '[[ $1 == -c ]] && exit' 'echo "$@" >>"'"$dir"'/peer.text"; [[ -r $3 ]] || exit 1' 'echo "{\"tokens_per_second\": 8, \"waited\": 4, \"queued\": 8, \
  \"prefill_tokens_per_second\": 1, \"graph_breaks\": 0, \"skipped_cuda_graphs\": 0, \"torch\": \"2\", \"transformers\": \"5\"}"'
decode --only bf16,tq2_0 --python "$dir/bin/peer" || fail "decode_gpu with a peer: $(tail -n 5 "$dir/decode.text")"
grep -q '^tiny tq2_0: done$' "$dir/decode.text" || fail "decode_gpu measured again what was done: $(cat "$dir/decode.text")"
same "decode_gpu, the peer's work is ours" "$(cut -d ' ' -f 4- "$dir/peer.text")" "--context 16 --tokens 8 --repeats 2 --device cpu --budget 225"
same "decode_gpu, its ratio" "$(line '[0-9]' | awk -F ' [|] ' '{print ($2 / 8 - $4) ^ 2 < 1e-4 * $4 ^ 2 + 1e-3}')" 1
mkdir "$dir/elsewhere"
decode --only bf16 --python "$dir/bin/peer" --from "$dir/decode/results.tar.gz" --out "$dir/elsewhere" || fail "decode_gpu --from: $(tail -n 5 "$dir/decode.text")"
grep -q '^tiny bf16: done$' "$dir/decode.text" || fail "decode_gpu --from measured again what was done: $(cat "$dir/decode.text")"
same "decode_gpu leaves no model" "$(echo "$dir"/qeng_decode.*)" "$dir/qeng_decode.*"
decode --only 70B && fail "decode_gpu --only 70B: exit status 0"

scripts/bundle --no-install --hoper >"$dir/bundle.text" 2>&1
same "bundle --hoper" "$?: $(cut -d ' ' -f 1,2 "$dir/bundle.text")" "2: usage: scripts/bundle"
exit $failed
