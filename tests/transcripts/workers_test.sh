#!/usr/bin/env bash
# Layers of a model on workers (recipes/worker.lua): generate, serve and chat give the texts of one process, whoever has the layers; a
# worker that is killed or stopped is a pause to a client; who has no known key gets nothing; what is wrong is said.
set -uo pipefail
qeng=${QENG:?the qeng executable}
if [[ ! -e $(dirname "$qeng")/libqeng_peers.so ]]; then
  echo "SKIPPED workers: libqeng_peers.so is not built here (Debian's libczmq-dev)"
  exit 0
fi
dir=$(mktemp -d)
pids=()
# shellcheck disable=SC2317
cleanup() {
  kill -CONT "${pids[@]}" 2>/dev/null
  kill -KILL "${pids[@]}" 2>/dev/null
  wait 2>/dev/null
  rm -rf "$dir"
}
trap cleanup EXIT
failed=0
fail() { echo "FAILED $*"; failed=1; }
expect() {  # WHAT FILE TEXT
  grep -qF -- "$3" "$2" || fail "$1: no '$3' in: $(tail -5 "$2")"
}
export QENG_KEYS=$dir/keys XDG_CACHE_HOME=$dir/cache

# ---- keys
"$qeng" -e 'print(q.keys { name = "box" })' >"$dir/keys.txt" || fail "q.keys: $(cat "$dir/keys.txt")"
expect "q.keys" "$dir/keys.txt" "box"
[[ $(stat -c %a "$dir/keys/own") == 600 ]] || fail "the secret key may be read by others"

worker() {  # NUMBER [options]: sets port[NUMBER]
  local n=$1
  shift
  "$qeng" recipes/worker.lua --listen 127.0.0.1:"${port[$n]:-0}" --silent --threads 1 --cache "$dir/worker$n" "$@" >"$dir/worker$n.log" 2>&1 &
  pid[n]=$!
  pids+=($!)
  for _ in $(seq 600); do
    port[n]=$(sed -n 's/^worker .* at .*:\([0-9]*\)$/\1/p' "$dir/worker$n.log" 2>/dev/null)
    [[ -z ${port[$n]} ]] || return
    sleep 0.05
  done
  fail "worker $n does not start: $(cat "$dir/worker$n.log")"
}
port=() pid=()
for n in 1 2 3 4; do worker $n; done
at() { local list=() n; for n in "$@"; do list+=("127.0.0.1:${port[$n]}"); done; (IFS=,; echo "${list[*]}"); }
across() {  # NUMBER=LAYERS or here=LAYERS ...: the options that lay layers so
  local workers=() ranges=() each
  for each in "$@"; do
    [[ $each == here=* ]] || { workers+=("${each%%=*}"); each="127.0.0.1:${port[${each%%=*}]}=${each#*=}"; }
    ranges+=("$each")
  done
  echo --peers "$(at "${workers[@]}")" --peer-ranges "$(IFS=,; echo "${ranges[*]}")"
}

# ---- the texts of one process, of 2, 3 and 5; weights come from here, as far as each worker needs them
"$qeng" -e 'local q = require "qeng"
  local model = q.load "recipes/tiny"
  local values = { hidden_size = 256, intermediate_size = 1024, num_hidden_layers = 6 }
  local config = {}
  for key, value in pairs(model.config_values) do config[key] = value end
  for key, value in pairs(values) do config[key] = value end
  local grown = q.random_model(config, { seed = 3, std = 0.05 })
  grown.tokenizer, grown.dir = model.tokenizer, model.dir
  grown:save(...)' "$dir/model" >"$dir/log" 2>&1 || fail "the model: $(cat "$dir/log")"
ask=(recipes/generate.lua --model "$dir/model" --prompt "The bells of" --max-tokens 40 --threads 1)
for how in "--temperature 0" "--temperature 0.8 --seed 3"; do
  # shellcheck disable=SC2086
  expected=$("$qeng" "${ask[@]}" $how | tr -d '\0')
  for split in "1=3 2=3" "1=2 here=4" "1=1 2=1 here=1 3=2 4=1"; do
    # shellcheck disable=SC2046,SC2086
    got=$("$qeng" "${ask[@]}" $how $(across $split) 2>"$dir/log" | tr -d '\0')
    [[ $got == "$expected" ]] || fail "split as $split, $how: $got, expected $expected; $(cat "$dir/log")"
  done
done
whole=$(stat -c %s "$dir"/model/*.safetensors) sent=$(du -sk "$dir/worker4" | cut -f1)
((sent * 1024 < whole / 2)) || fail "worker 4 was sent $sent KB for a part of $whole bytes"
ln -s model "$dir/mo,del"  # a comma in its path
got=$("$qeng" "${ask[@]}" --model "$dir/mo,del" --temperature 0 --peers cpu,cpu --peer-ranges "cpu=2,cpu (2)=3,here=1" 2>"$dir/log" | tr -d '\0')
[[ $got == "$("$qeng" "${ask[@]}" --temperature 0 | tr -d '\0')" ]] || fail "devices of this machine: $got; $(cat "$dir/log")"

# ---- planned: what memory asks for is done, and who is not needed is said
"$qeng" "${ask[@]}" --temperature 0 --peers "$(at 1 2)" >"$dir/out" 2>"$dir/log" || fail "planned: $(cat "$dir/log")"
grep -qE "^peers: layers 0 to 5: " "$dir/log" || fail "the plan is not said: $(cat "$dir/log")"
"$qeng" "${ask[@]}" --temperature 0 --peers "auto,$(at 1)" --peer-ranges "$(at 1)=6" >"$dir/out" 2>"$dir/log" ||
  grep -q "no beacon at" "$dir/log" || fail "auto and an address: $(cat "$dir/log")"  # no network, nothing to hear

# ---- served: a worker that is killed or stopped is a pause
# shellcheck disable=SC2046
"$qeng" recipes/serve.lua --model "$dir/model" --port 0 --threads 1 --context 512 $(across 1=2 2=2 3=2) >"$dir/serve.out" 2>"$dir/serve.log" &
server=$!
pids+=("$server")
url=""
for _ in $(seq 600); do
  url=$(sed -n 's/.* answers at \(http:[^ ]*\)$/\1/p' "$dir/serve.out" 2>/dev/null)
  [[ -z $url ]] || break
  sleep 0.05
done
[[ -n $url ]] || fail "the server does not start: $(cat "$dir/serve.log")"
complete() {
  curl -sS -m 60 "$url/completions" -H 'content-type: application/json' -d '{"prompt": "The bells of", "max_tokens": 400, "temperature": 0, "ignore_eos": true}' |
    "$qeng" -e 'local q = require "qeng" local said = q.json.decode(io.read "*a") io.write((said.choices and said.choices[1].text or q.json.encode(said)):gsub("%z", ""))'
}
expected=$(complete)
[[ ${#expected} -gt 400 ]] || fail "the server says: $expected"
for what in KILL STOP; do
  complete >"$dir/got" &
  job=$!
  sleep 0.15
  kill -$what "${pid[2]}"
  wait $job
  [[ $(cat "$dir/got") == "$expected" ]] || fail "after SIG$what: $(head -c 300 "$dir/got")"
  kill -CONT "${pid[2]}" 2>/dev/null
  kill -KILL "${pid[2]}" 2>/dev/null
  wait "${pid[2]}" 2>/dev/null
  worker 2
done
expect "a loss is told" "$dir/serve.log" "is gone"

# ---- a coordinator that dies leaves workers that are ready for the next
kill -KILL "$server"
wait "$server" 2>/dev/null
for _ in $(seq 100); do
  [[ $(grep -c "has left" "$dir/worker3.log") == $(grep -c "is here" "$dir/worker3.log") ]] && break
  sleep 0.05
done
[[ $(grep -c "has left" "$dir/worker3.log") == $(grep -c "is here" "$dir/worker3.log") ]] || fail "a dead coordinator: $(tail -3 "$dir/worker3.log")"
expected=$("$qeng" "${ask[@]}" --temperature 0 | tr -d '\0')
# shellcheck disable=SC2046
got=$("$qeng" "${ask[@]}" --temperature 0 $(across 3=4 4=2) 2>"$dir/log" | tr -d '\0')
[[ $got == "$expected" ]] || fail "after a dead coordinator: $got; $(cat "$dir/log")"

# ---- who is not known gets nothing, and is told what to do
QENG_KEYS=$dir/stranger timeout 60 "$qeng" "${ask[@]}" --peers "$(at 1)" >"$dir/out" 2>&1 && fail "a stranger was served"
expect "a stranger" "$dir/out" "knows the other's key"
grep -q stranger "$dir/worker1.log" && fail "the worker noticed a stranger by name"
# shellcheck disable=SC2046
"$qeng" "${ask[@]}" $(across 1=5) >"$dir/out" 2>&1 && fail "five of six layers"
expect "five of six layers" "$dir/out" "the model has 6"
"$qeng" recipes/generate.lua --model "$dir/model" --prompt a --peers nowhere >"$dir/out" 2>&1 && fail "an address without a port"
expect "an address without a port" "$dir/out" "nowhere"

timeout 60 "$qeng" recipes/packets.lua push "$dir/log" --to "$(at 1)" >"$dir/out" 2>&1 && fail "a worker takes what is pushed"
expect "a push to a worker" "$dir/out" "does not take log"

# ---- Ctrl-C ends a worker
kill -INT "${pid[1]}"
wait "${pid[1]}"
status=$?
((status == 0 || status == 130)) || fail "Ctrl-C: status $status"
((failed == 0)) && echo "workers: passed"
exit $failed
