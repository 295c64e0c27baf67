#!/usr/bin/env bash
# Files between machines as a user meets them: serve, pull and push, whose processes are killed on the way.
# BYTES=1000000000 CUTS=20 bash tests/transcripts/peers_files_test.sh: more of it.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
dir=$(mktemp -d)
server=
trap 'kill -9 $server 2> /dev/null || true; rm -rf "$dir"' EXIT
bytes=${BYTES:-24000001} cuts=${CUTS:-3}
rate=$((bytes / cuts))  # a second: that so many cuts come before the end
export XDG_CACHE_HOME=$dir/cache QENG_KEYS=$dir/keys

fail() {
  echo "peers_files_test: $*" >&2
  exit 1
}
expect() {  # expect STATUS TEXT command...: it ends so, and says so
  local status=0 wanted=$1 text=$2
  shift 2
  "$@" > "$dir/said" 2>&1 < /dev/null || status=$?
  ((status == wanted)) || fail "$*: status $status, expected $wanted: $(cat "$dir/said")"
  grep -qF -- "$text" "$dir/said" || fail "$*: nothing says '$text': $(cat "$dir/said")"
}
packets=("$QENG" recipes/packets.lua)  # no function: a signal reaches the process itself
serve() {  # at the port that a first one had; several that share an address take it in turn
  for _ in $(seq 100); do
    : > "$dir/log"
    "${packets[@]}" serve "$dir/data.bin" "$dir/adapter" --accept "$dir/taken" --rate $rate --listen "127.0.0.1:${port:-0}" 2> "$dir/log" &
    server=$!
    for _ in $(seq 200); do
      grep -q '^listening at' "$dir/log" && break 2
      kill -0 $server 2> /dev/null || break
      sleep 0.05
    done
    grep -q 'in use' "$dir/log" || fail "serve: $(cat "$dir/log")"
    sleep 0.1
  done
  port=$(sed -n 's/^listening at 127.0.0.1://p' "$dir/log")
  address=127.0.0.1:$port
}

if "$QENG" -e 'require "qeng".peers.open { keys = "'"$dir"'/none" }' 2>&1 | grep -q 'this qeng cannot talk to peers'; then
  echo "SKIPPED: files between peers: this qeng has no libqeng_peers.so"
  exit 0
fi
head -c "$bytes" /dev/urandom > "$dir/data.bin"
mkdir -p "$dir/adapter/deep"
echo '{}' > "$dir/adapter/config.json"
head -c 1500000 /dev/urandom > "$dir/adapter/deep/weights"
serve

# cut COMMAND...: runs it, kills it on the way, so many times, then lets it end while its server is killed once.
cut() {
  local kills=0 i
  for ((i = 0; i < cuts; i++)); do
    "$@" > /dev/null 2>&1 &
    local pid=$!
    sleep 0.$((4 + i % 4))
    if kill -9 $pid 2> /dev/null; then kills=$((kills + 1)); fi
    wait $pid 2> /dev/null || true
  done
  ((kills > cuts / 2)) || fail "$*: ended before it was killed"
  "$@" > "$dir/said" 2>&1 &
  pid=$!
  sleep 0.4
  kill -9 $server
  wait $server 2> /dev/null || true
  serve
  wait $pid || fail "$*: $(cat "$dir/said")"
}

# Until it is whole, nothing has its name; then nothing is left beside it.
cut "${packets[@]}" pull data.bin --from "$address" --to "$dir/got.bin"
cmp "$dir/data.bin" "$dir/got.bin"
mkdir "$dir/send"
mv "$dir/got.bin" "$dir/send/pushed.bin"
cut "${packets[@]}" push "$dir/send/pushed.bin" --to "$address"
cmp "$dir/data.bin" "$dir/taken/pushed.bin"
cp "$dir/data.bin" "$dir/got.bin"
[[ -z $(ls -d "$dir"/*.coming "$dir"/taken/*.coming 2> /dev/null) ]] || fail "something is left beside it"

expect 1 "is there already" "${packets[@]}" pull data.bin --from "$address" --to "$dir/got.bin"
expect 1 "nobody offers other; there are: data.bin, adapter" "${packets[@]}" pull other --from "$address"
expect 0 "is here, whole and verified" "${packets[@]}" pull adapter --from "$address,127.0.0.1:9" --to "$dir/copy"
diff -r "$dir/adapter" "$dir/copy"
hash=$(awk '$NF == "data.bin" { print $1 }' "$dir/log")
expect 0 "whole and verified: $hash" "${packets[@]}" pull "$hash" --from "$address" --to "$dir/by_hash"
cmp "$dir/data.bin" "$dir/by_hash"

expect 0 "has it, whole and verified" "${packets[@]}" push "$dir/copy" "$dir/by_hash" --to "$address"
cmp "$dir/data.bin" "$dir/taken/by_hash"
diff -r "$dir/adapter" "$dir/taken/copy"
echo other > "$dir/by_hash"
expect 1 "holds something else" "${packets[@]}" push "$dir/by_hash" --to "$address"

# Training on a dataset that lies there has the losses of training on it here, and so have later runs, from the cache: the
# last one while nobody answers.
"$QENG" recipes/convert.lua recipes/README.md "$dir/send/texts.qubgpu" --tokenizer recipes/tiny 2> /dev/null
"${packets[@]}" serve "$dir/send/texts.qubgpu" --listen 127.0.0.1:0 2> "$dir/log2" &
second=$!
trap 'kill -9 $server $second 2> /dev/null || true; rm -rf "$dir"' EXIT
for _ in $(seq 200); do grep -q '^listening at' "$dir/log2" && break; sleep 0.05; done
data=peer:$(sed -n 's/^listening at //p' "$dir/log2")/texts.qubgpu
for name in here there again alone; do
  from=$data says="3 steps"
  [[ $name != here ]] || from=$dir/send/texts.qubgpu
  if [[ $name == alone ]]; then
    expect 1 "nobody offers other.qubgpu" "$QENG" recipes/lora_qwen.lua --model recipes/tiny --data "${data/texts/other}" --out "$dir/x"
    kill $second
    wait $second || true
    says="nobody answers: what came before is taken"
  fi
  expect 0 "$says" "$QENG" recipes/lora_qwen.lua --model recipes/tiny --data "$from" --steps 3 --row-tokens 64 --rows 2 \
    --out "$dir/run_$name"
  sed 's/.*"loss":\([0-9.]*\).*/\1/' "$dir/run_$name/metrics.jsonl" > "$dir/losses_$name"
  cmp "$dir/losses_here" "$dir/losses_$name"
done

part=$(ls "$dir"/cache/qeng/remote/*.part)  # no longer what the note says
printf x | dd of="$part" bs=1 seek=100 conv=notrunc 2> /dev/null
status=0
"$QENG" recipes/lora_qwen.lua --model recipes/tiny --data "$data" --steps 3 --out "$dir/damaged" > "$dir/said" 2>&1 || status=$?
((status == 1)) || fail "a damaged cache is taken: status $status"

expect 2 "keys: made a pair" "${packets[@]}" serve --listen 127.0.0.1:0 --keys "$dir/mistyped"
expect 2 "--from says who is asked" "${packets[@]}" pull data.bin
expect 2 "serve: give files or folders to offer" "${packets[@]}" serve --listen 127.0.0.1:0
status=0
kill $server
wait $server || status=$?
((status == 0)) || fail "serve ended with $status: $(cat "$dir/log")"
server=
echo "files between machines: ok"
