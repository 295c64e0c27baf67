#!/usr/bin/env bash
# Signals and standard streams of the real executable ($QENG): SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 end training with a checkpoint, as Ctrl-C does; a
# run outlives its readers; output that did not arrive is exit status 1.
set -uo pipefail
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }
status() { [[ $2 =~ ^($3)$ ]] || fail "$1: exit status $2, expected $3: $(cat "$work/log")"; }
told() { grep -qE -- "$2" "$work/log" || fail "$1: no '$2' in: $(cat "$work/log")"; }
spaced() { for _ in $(seq 300); do [ -s "$1" ] && return; sleep 0.05; done; fail "nothing in $1: $(cat "$work/log")"; }

"$QENG" tests/lua/small_model.lua "$work" || exit 1
"$QENG" recipes/convert.lua "$work/data.jsonl" "$work/data.qubgpu" --tokenizer "$work/model" > "$work/log" 2>&1 || fail "convert: $(cat "$work/log")"
train=("$QENG" recipes/lora_qwen.lua --model "$work/model" --data "$work/data.qubgpu" --row-tokens 64 --threads 1 --eval-share 0.1 --eval-every 0 --save-every 0)
bits() { sha256sum < "$work/$1/adapter/adapter_model.safetensors"; }
checkpointed() { ls "$work/$1"/checkpoints/step-*/state.json > /dev/null 2>&1 || fail "$2: no checkpoint"; }

# ---- one signal, or what is one: a supervisor sends SIGTERM to the process and its group, a terminal that closes two SIGHUP
stopped() { # stopped NAME STATUS SIGNALS...
  local name=$1 expected=$2
  shift 2
  rm -rf "$work/out"
  "${train[@]}" --steps 1000000 --out "$work/out" > "$work/log" 2>&1 &
  local job=$!
  spaced "$work/out/metrics.jsonl"
  kill "-$1" $job
  [ $# = 1 ] || { sleep "$pause"; kill "-$2" $job 2> /dev/null; }
  wait $job
  status "$name" $? "$expected"
  told "$name" 'stopped after step [0-9]+; the checkpoint is in .*; go on with --resume'
  checkpointed out "$name"
}
pause=0
stopped "SIGTERM" 143 TERM
stopped "SIGHUP" 129 HUP
stopped "SIGUSR1" 138 USR1
stopped "SIGUSR2" 140 USR2
stopped "SIGTERM twice at once" 143 TERM TERM
stopped "SIGHUP twice" 129 HUP HUP
stopped "SIGTERM with SIGHUP" '143|129' TERM HUP  # which of them comes first is the system's choice
stopped "SIGHUP with SIGTERM" '143|129' HUP TERM
pause=0.3
stopped "Ctrl-C, then a closed terminal" 130 INT HUP
timeout 4 "${train[@]}" --steps 1000000 --out "$work/timeout" > "$work/log" 2>&1
status "timeout" $? 124
checkpointed timeout "timeout"

# ---- stopped and gone on with: the same bits
"${train[@]}" --steps 600 --out "$work/straight" > "$work/log" 2>&1 || fail "straight through: $(cat "$work/log")"
"${train[@]}" --steps 600 --out "$work/halves" > "$work/log" 2>&1 &
job=$!
spaced "$work/halves/metrics.jsonl"
kill -TERM $job
wait $job
status "half a run" $? 143
"${train[@]}" --steps 600 --out "$work/halves" --resume > "$work/log" 2>&1 || fail "resumed: $(cat "$work/log")"
[ "$(bits straight)" = "$(bits halves)" ] || fail "stopped by SIGTERM and resumed gives other bits"

# ---- a second SIGTERM, of somebody who does not want to wait
"$QENG" -e 'q.host.defer_interrupt(true) local t = q.time() while q.time() < t + 30 do end' > "$work/log" 2>&1 &
job=$!
sleep 0.5; kill -TERM $job; sleep 1.3; kill -TERM $job
wait $job
status "a second SIGTERM" $? 143
told "a second SIGTERM" 'interrupted by SIGTERM'

mkfifo "$work/silence"
exec 9<> "$work/silence"  # an input that nothing is written to

# ---- outside of training they end at once, also an endless loop
for signal in "TERM 143" "HUP 129"; do
  for code in 'while true do end' 'while true do q.time() end' 'io.read()'; do
    "$QENG" -e "$code" > "$work/log" 2>&1 <&9 &
    job=$!
    sleep 0.5; kill "-${signal% *}" $job
    wait $job
    status "$signal in $code" $? "${signal#* }"
  done
done
"$QENG" > "$work/log" 2>&1 <&9 &
job=$!
sleep 0.5; kill -TERM $job
wait $job
status "SIGTERM in the REPL" $? 143
(trap '' HUP; exec "$QENG" -e 'local t = q.time() while q.time() < t + 2 do end print "went on"' > "$work/log" 2>&1) &
job=$!
sleep 0.5; kill -HUP $job
wait $job
status "SIGHUP under nohup" $? 0
told "SIGHUP under nohup" 'went on'

# ---- a terminal that closes
cat > "$work/terminal.py" << 'P'
import os, pty, sys, time
child, master = pty.fork()
if child == 0: os.execv(sys.argv[2], sys.argv[2:])
while not os.path.exists(sys.argv[1]) or os.path.getsize(sys.argv[1]) == 0: os.read(master, 4096)
os.close(master)
print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
P
timeout 60 python3 "$work/terminal.py" "$work/closed/metrics.jsonl" "${train[@]}" --steps 1000000 --out "$work/closed" > "$work/log" 2>&1
told "a terminal that closes" '^status 129$'
checkpointed closed "a terminal that closes"

# ---- readers that leave, full disks
"${train[@]}" --steps 30 --out "$work/unread" --merge 2> "$work/log" | true
status "a run whose standard output nobody reads" "${PIPESTATUS[0]}" 1
told "a run whose standard output nobody reads" 'not all that was printed arrived'
[ -s "$work/unread/merged/config.json" ] || fail "a run that nobody reads did not finish"
"${train[@]}" --steps 30 --out "$work/unheard" 2>&1 | true
status "a run that nobody reads" "${PIPESTATUS[0]}" 1
[ "$(wc -l < "$work/unheard/metrics.jsonl")" = 30 ] && [ -s "$work/unheard/adapter/adapter_config.json" ] || fail "a run that nobody hears did not finish"
generate=("$QENG" recipes/generate.lua --model "$work/model" --prompt "the cat" --threads 1)
"${generate[@]}" --max-tokens 5 > /dev/full 2> "$work/log"
status "generate to a full disk" $? 1
told "generate to a full disk" '^qeng: standard output: not all that was printed arrived'
"${generate[@]}" --max-tokens 200 2> "$work/log" | true
status "generate to nobody" "${PIPESTATUS[0]}" 141
[ -s "$work/log" ] && fail "generate to nobody said: $(cat "$work/log")"
for words in --help --version 'recipes/generate.lua --help' '-e print(1)' '-e os.exit(0, true)'; do
  case $words in -e*) command=("$QENG" -e "io.write('x') ${words#-e }") ;; *) read -ra command <<< "$QENG $words" ;; esac
  "${command[@]}" > /dev/full 2> "$work/log"
  status "$words to a full disk" $? 1
  "${command[@]}" >&- 2> "$work/log"
  status "$words without standard output" $? 1
done
"$QENG" -e 'q.fs.write(arg[1], "data") local file = io.open(arg[1], "a") print "printed" file:close()' "$work/file" >&- 2> /dev/null
[ "$(cat "$work/file")" = data ] || fail "what is printed went into a file: $(cat "$work/file")"

[ $failures = 0 ] && echo "signals: ok"
exit $((failures > 0))
