#!/usr/bin/env bash
# Files that are truncated while the real executable ($QENG) has them open: a model ends it with status 1 and a line that names the
# file, a dataset with an error, and never a bare signal.
set -euo pipefail
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect NAME PATTERN CODE FILE...: CODE, run with FILE... as its arguments, ends with status 1 and the pattern (grep -E)
expect() {
  local name=$1 pattern=$2 output got=0
  shift 2
  output=$(timeout 60 "$QENG" -e "$@" 2>&1 < /dev/null) || got=$?
  [ "$got" = 1 ] && grep -qE -- "$pattern" <<< "$output" || { echo "FAILED $name: exit status $got: $output"; failures=$((failures + 1)); }
}

"$QENG" tests/lua/small_model.lua "$work"
"$QENG" recipes/convert.lua "$work/data.jsonl" "$work/data.qubgpu" --tokenizer "$work/model" > "$work/log" 2>&1
"$QENG" recipes/quantize.lua "$work/model" "$work/small.gguf" --type f16 > "$work/log" 2>&1

generate='local dir, file = ...
  local model = q.load(dir, { weights = "map" })
  assert(os.execute("truncate -s 20000 " .. file) == 0)
  for piece in model:generate { prompt = "the cat", max_tokens = 20 } do io.write(piece) end
  print "went on"'
shrunk='the file became shorter while it was open, or its disk or network failed'
cp -r "$work/model" "$work/cut"
expect "safetensors, generating" "^qeng: $work/cut/model.safetensors: $shrunk" "$generate" "$work/cut" "$work/cut/model.safetensors"
cp "$work/small.gguf" "$work/cut.gguf"
expect "GGUF, generating" "^qeng: $work/cut.gguf: $shrunk" "$generate" "$work/cut.gguf" "$work/cut.gguf"
cp "$work/model/model.safetensors" "$work/cut/"
expect "safetensors, writing it elsewhere" "^qeng: $work/cut/model.safetensors: $shrunk" 'local dir, file, out = ...
  local model = q.load(dir, { weights = "map" })
  assert(os.execute("truncate -s 20000 " .. file) == 0)
  model:save(out)' "$work/cut" "$work/cut/model.safetensors" "$work/saved"
expect "a dataset, training" "$work/data.qubgpu: $shrunk" 'local dir, file, out = ...
  local model, data = q.load(dir):lora { rank = 4 }, q.ndp.open(file)
  assert(os.execute("truncate -s 8000 " .. file) == 0)
  q.train { model = model, data = data, out = out, steps = 50, row_tokens = 64 }' "$work/model" "$work/data.qubgpu" "$work/run"

[ $failures = 0 ] && echo "truncated files: ok"
exit $failures
