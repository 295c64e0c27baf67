#!/usr/bin/env bash
# By hand: starts jobs of 2 to 4 ranks ($QENG under mpirun), kills a random rank at a random moment, and resumes with another number of
# ranks, KILLS times (10); when the run comes to its end, it has the losses and weights of one rank that was never killed.
#   QENG=build/release/qeng KILLS=10 bash tests/campaigns/rank_kills.sh           MODE=full ZERO=3 before it: every weight, shared out
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
here=$(dirname "$(realpath "$0")")
cd "$here/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=${QENG_SEED:-4711}
kills=${KILLS:-10} landed=0 failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none  # what Open MPI 5 calls them
fail() { echo "FAILED $*"; failures=$((failures + 1)); }
run() {  # RANKS OUT [options]
  mpirun -n "$1" "$QENG" recipes/lora_qwen.lua --model recipes/tiny --data "$work/data.jsonl" --mode "${MODE:-lora}" --zero "${ZERO:-0}" --accumulate 4 \
    --rows 1 --row-tokens 128 --steps "${STEPS:-2500}" --eval-share 0.1 --eval-every 150 --save-every 10 --lr 1e-4 --threads 1 --out "$work/$2" "${@:3}" </dev/null >"$work/log" 2>&1
}
bits() { cat "$work/$1"/*/*.safetensors <(grep -o '"loss":[^,}]*' "$work/$1/metrics.jsonl") | sha256sum; }

"$QENG" -e 'require("qeng.train.demo").write_examples(..., 7, 300)' "$work/data.jsonl" || exit 1
begin=$(date +%s%N)
run 1 a || { cat "$work/log"; exit 1; }
took=$((($(date +%s%N) - begin) / 1000000))
echo "a run on one rank takes $took ms"
resume=()
while ((landed < kills && failures < 5)); do
  ranks=$((RANDOM % 3 + 2)) victim=$((RANDOM % ranks)) wait_ms=$((RANDOM * took / 32768 / 8 + 1200))
  run "$ranks" k "${resume[@]}" &
  job=$!
  sleep "$(printf '%d.%03d' $((wait_ms / 1000)) $((wait_ms % 1000)))"
  for process in $(pgrep -f -- "--out $work/k"); do
    if grep -qzx "OMPI_COMM_WORLD_RANK=$victim" "/proc/$process/environ" 2>/dev/null && kill -9 "$process" 2>/dev/null; then victim=-1; fi
  done
  killed=$(date +%s%N)
  if wait $job; then
    ((victim < 0)) && fail "a job of $ranks with a dead rank ended well"
    break  # it had come to its end
  fi
  ((victim < 0)) || fail "a job ended by itself: $(cat "$work/log")"
  took_to_end=$((($(date +%s%N) - killed) / 1000000))
  ((took_to_end < 10000)) || fail "the job took $took_to_end ms to end"
  landed=$((landed + 1)) resume=(--resume)
  echo "kill $landed: rank of $ranks, after $wait_ms ms; the job ended $took_to_end ms later, at $(find "$work/k/checkpoints" -maxdepth 1 -name "step-??????" 2>/dev/null | sort | tail -1 | grep -o '[0-9]*$')"
done
run 3 k "${resume[@]}" || fail "the last run: $(cat "$work/log")"
[[ $(bits k) == "$(bits a)" ]] || fail "the run that was killed $landed times differs from the other"
[[ -z $(find "$work/k" -name '*.tmp*') ]] || fail "left: $(find "$work/k" -name '*.tmp*')"
echo "$landed kills, $failures failures"
exit "$failures"
