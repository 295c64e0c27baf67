#!/bin/bash
# Downloads from a hub on loopback (tests/hub_server.py) by the real executable ($QENG): faults, the recipes, Ctrl-C, two
# processes at once.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
command -v python3 >/dev/null || { echo "SKIPPED: python3, which serves the test's hub, is not installed"; exit 0; }
work=$(mktemp -d)
server=
trap 'exec 9>&-; [ -z "$server" ] || wait "$server" 2>/dev/null; rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }
expect() {
  local name=$1 status=$2 pattern=$3 output got
  shift 3
  output=$(timeout 60 "$@" 2>&1 </dev/null)
  got=$?
  [ "$got" = "$status" ] || fail "$name: exit status $got, expected $status: $output"
  printf '%s' "$output" | grep -qE -- "$pattern" || fail "$name: no '$pattern' in: $output"
}

"$QENG" tests/lua/small_model.lua "$work/made" || { echo "FAILED: no model"; exit 1; }
mkdir -p "$work/served/chats/data" "$work/served/parquet/data"
cp -r "$work/made/model" "$work/served/model"
cp -r "$work/made/model" "$work/served/second"
printf '{"text":"a"}' >"$work/served/chats/data/train-00000-of-00002.jsonl"
printf '{"text":"b"}\n' >"$work/served/chats/data/train-00001-of-00002.jsonl"
printf '{"text":"t"}\n' >"$work/served/chats/data/test.jsonl"
echo '# A dataset' >"$work/served/chats/README.md"
for shard in 0 1; do cp tests/golden/parquet/chats.parquet "$work/served/parquet/data/train-0000$shard-of-00002.parquet"; done
mkdir -p "$work/served/configs/en" "$work/served/configs/fr/data" "$work/served/parts"
cat >"$work/served/configs/README.md" <<'END'
---
license: [mit, "a: b"]
configs:
- config_name: english
  default: true
  data_files:
  - split: train
    path: ["en/part-*.jsonl", en/more.jsonl]
  - split: held.out
    path: en/held.jsonl
- config_name: french
  data_dir: fr
- config_name: piped
  sep: "|"
  data_files: table.csv
---
configs: of no meaning here
END
printf -- '---\nconfigs:\n- {config_name: a, data_files: x.jsonl}\n- {config_name: b, data_files: "*.jsonl"}\n---\n' >"$work/served/parts/README.md"
for file in en/part-2 en/part-1 en/more en/held en/train fr/data/train-00000-of-00001 fr/test; do
  printf '{"text":"%s"}' "$file" >"$work/served/configs/$file.jsonl"
done
echo 'text' >"$work/served/configs/table.csv"
for file in x y; do printf '{"text":"%s"}\n' $file >"$work/served/parts/$file.jsonl"; done
mkdir -p "$work/served/task" && cp "$work/made/data.jsonl" "$work/served/task/train.jsonl"

mkfifo "$work/stdin" "$work/port"
python3 tests/hub_server.py "$work/served" "$work/log" <"$work/stdin" >"$work/port" &
server=$!
exec 9>"$work/stdin"  # the server ends when this closes
read -r port <"$work/port"
unset HF_TOKEN HF_HUB_CACHE HF_HUB_OFFLINE HF_TOKEN_PATH http_proxy https_proxy
export HF_HOME=$work/home HF_ENDPOINT=http://127.0.0.1:$port XDG_CACHE_HOME=$work/xdg

"$QENG" tests/hub_cases.lua "$HF_ENDPOINT" "$work/served/model" "$work" >"$work/cases" 2>&1 || { fail "hub_cases.lua"; cat "$work/cases"; }

# ---- the recipes
commit=c0ffee0000000000000000000000000000000000
expect "fetch" 0 "/home/hub/models--plain--model/snapshots/$commit\$" "$QENG" recipes/fetch.lua plain/model
expect "fetch of a config" 0 "again: --model or --data plain/configs@$commit:french:train\$" "$QENG" recipes/fetch.lua plain/configs:french:train --kind dataset
expect "fetch by pattern" 0 "/snapshots/$commit\$" "$QENG" recipes/fetch.lua plain/chats --kind dataset --files 'data/*,README.md'
[ -L "$work/home/hub/datasets--plain--chats/snapshots/$commit/data/test.jsonl" ] || fail "a file in a folder is no link"
[ "$(readlink "$work/home/hub/datasets--plain--chats/snapshots/$commit/data/test.jsonl")" = "../../../blobs/$(sha256sum <"$work/served/chats/data/test.jsonl" | cut -c1-64)" ] ||
  fail "the link is not relative"
expect "fetch of nothing" 1 'has no file like' "$QENG" recipes/fetch.lua plain/model --files 'x*'
expect "fetch of a wrong name" 1 'expected org/name' "$QENG" recipes/fetch.lua model
expect "training by names" 0 'adapter/ \(PEFT\)' "$QENG" recipes/lora_qwen.lua --model plain/model@v1 --data plain/task --out "$work/out" --steps 3 --threads 1
expect "the same without a network" 0 'adapter/ \(PEFT\)' env HF_HUB_OFFLINE=1 HF_ENDPOINT=http://127.0.0.1:9 \
  "$QENG" recipes/lora_qwen.lua --model "plain/model@$commit" --data plain/task --out "$work/out2" --steps 3 --threads 1
expect "a slip in a path" 1 'no such file' "$QENG" recipes/lora_qwen.lua --model plain/model --data some/chats.jsonl --out "$work/out3"
expect "a token in the file" 0 'snapshots' env HF_HOME="$work/other" bash -c "mkdir -p '$work/other' && echo secret >'$work/other/token' && '$QENG' recipes/fetch.lua private/model"
expect "a strange token" 1 'blank or a strange character' env HF_TOKEN=$'a\rb' "$QENG" recipes/fetch.lua private/model
grep -q 'Bearer:secret' "$work/log" || fail "the token was never sent"
grep '^[A-Z]* cdn ' "$work/log" | grep -q Bearer && fail "the token was shown to another host"
grep -q ' cdn .*bytes=[1-9]' "$work/log" || fail "no download was gone on from"

# ---- Ctrl-C keeps what has come; a run after it goes on
head -c 3000000 /dev/urandom >"$work/served/second/model.safetensors"
part=$(sha256sum <"$work/served/second/model.safetensors" | cut -c1-64)
blobs=$work/home/hub/models--trickle--second/blobs
(trap - INT; exec "$QENG" recipes/fetch.lua trickle/second --files model.safetensors) >"$work/interrupted" 2>&1 &
fetch=$!
for _ in $(seq 100); do [ -s "$blobs/$part.incomplete" ] && break; sleep 0.05; done
kill -INT $fetch
wait $fetch
got=$?
[ $got = 130 ] || fail "Ctrl-C: exit status $got, expected 130: $(cat "$work/interrupted")"
[ -s "$blobs/$part.incomplete" ] || fail "Ctrl-C left nothing to go on from"
[ ! -e "$blobs/$part" ] || fail "Ctrl-C came too late to test anything"

# ---- two processes want the same file: one fetches, the other waits for it
for _ in 1 2; do (timeout 60 "$QENG" recipes/fetch.lua cut/second --files 'model.safetensors' >>"$work/both" 2>&1) & both="${both:-} $!"; done
for one in $both; do wait "$one" || fail "two at once: $(cat "$work/both")"; done
cmp -s "$work/served/second/model.safetensors" "$work/home/hub/models--cut--second/snapshots/$commit/model.safetensors" || fail "two at once: not the file"

[ $failures = 0 ] && echo "hub: ok"
exit $((failures > 0))
