#!/bin/bash
# By hand: kills training ($QENG) with SIGKILL at random moments, KILLS times (200), resuming each time; whenever a run comes
# to its end, its weights have to be those of a run that was never killed, and nothing half written may be left.
#   QENG=build/release/qeng KILLS=200 bash tests/campaigns/train_kills.sh         ONEBIT=layer, rows, gradient, bop or convert before it: one-bit weights
#                                                                                 HYBRID=1 before it: gated delta nets (Qwen3.5)
#                                                                                 SMALL=1 before it: moments in 8 bits, gradients in bf16
# STEPS=600 where a run takes less than 3 s: loading takes its part of each, and one killed while it loads gets nowhere.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=${QENG_SEED:-4711}
kills=${KILLS:-200} landed=0 finished=0 failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }
run() { "$QENG" "$here/train_kills.lua" "$work/model" "$work/data.qubgpu" "$1" >"$work/log" 2>&1; } 2>/dev/null
bits() { cat "$work/$1/model/model.safetensors" <(grep -o '"loss":[^,}]*' "$work/$1/metrics.jsonl") | sha256sum; }
whole() {  # every checkpoint that has its own name can be read
  [ -d "$work/k/checkpoints" ] || return
  "$QENG" -e "
    local q = require 'qeng'
    for _, name in ipairs(q.fs.list '$work/k/checkpoints') do
      local dir = '$work/k/checkpoints/' .. name
      if name:match '^step%-%d+$' then
        q.json.decode(q.fs.read(dir .. '/state.json'))
        assert(#q.safetensors.open(dir .. '/parameters.safetensors'):names() > 0)
        assert(#q.safetensors.open(dir .. '/optimizer.safetensors'):names() > 0)
        if os.getenv 'ONEBIT' then assert(#q.safetensors.open(dir .. '/bits.safetensors'):names() > 0) end
      end
    end" || fail "kill $landed: a checkpoint cannot be read"
}
finish() {
  finished=$((finished + 1))
  [ "$(bits k)" = "$expected" ] || fail "run $finished differs from the one that was not killed"
  [ -z "$(find "$work/k" -name '*.tmp*' -o -name '*.old')" ] || fail "run $finished left: $(find "$work/k" -name '*.tmp*' -o -name '*.old')"
  rm -rf "$work/k"
}

"$QENG" "$here/../lua/small_model.lua" "$work" || exit 1
begin=$(date +%s%N)
run "$work/a" || { cat "$work/log"; exit 1; }
took=$((($(date +%s%N) - begin) / 1000000))
expected=$(bits a)
echo "a run takes $took ms"
while [ $landed -lt "$kills" ] && [ $failures -lt 10 ]; do
  run "$work/k" &
  job=$!
  wait_ms=$((RANDOM * took / 32768 / 2 + 30))
  sleep "$(printf '%d.%03d' $((wait_ms / 1000)) $((wait_ms % 1000)))"
  # run() is a subshell: the executable is its child
  if child=$(pgrep -P $job) && kill -9 "$child" 2>/dev/null; then
    landed=$((landed + 1))
    wait $job 2>/dev/null
    whole
    [ $((landed % 20)) = 0 ] && echo "$landed kills, $finished runs to the end"
  elif wait $job; then
    finish
  else
    fail "a run ended by itself: $(cat "$work/log")"
  fi
done
run "$work/k" && finish || fail "the last run: $(cat "$work/log")"
echo "$landed kills, $finished runs to the end, $failures failures"
exit $failures
