#!/usr/bin/env bash
# Packets as a user meets them: round trips against an independent decoder, editing, damage, pipes, disks that are full.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
  echo "packets_test: $*" >&2
  exit 1
}
expect() {  # expect STATUS TEXT command...: it ends so, and says so
  local status=0 wanted=$1 text=$2
  shift 2
  "$@" > "$dir/said" 2>&1 < "${input:-/dev/null}" || status=$?
  ((status == wanted)) || fail "$*: status $status, expected $wanted: $(cat "$dir/said")"
  grep -qF -- "$text" "$dir/said" || fail "$*: nothing says '$text': $(cat "$dir/said")"
}

count=${QENG_ROUNDTRIP:-1500}
for crc in ccitt xmodem; do
  "$QENG" tests/packets_roundtrip.lua "$dir/$crc" "$count" 7 $crc
  if command -v python3 > /dev/null; then
    python3 tests/packets_decoder.py "$dir/$crc.qubgpu" --lines | cmp - "$dir/$crc.txt"
    python3 tests/packets_decoder.py "$dir/$crc.ndp" --bare $crc --lines | cmp - "$dir/$crc.txt"
  else
    echo "SKIPPED: the Python decoder of packets: no python3 here"
  fi
done

# The same records, whichever way they went: merged, split, filtered, through a pipe, in the other CRC variant.
packets() { "$QENG" recipes/packets.lua "$@"; }
data=$dir/ccitt.qubgpu
packets split "$data" "$dir/part.qubgpu" --count 700 2> /dev/null
packets merge "$dir/whole.qubgpu" "$dir"/part-*-of-*.qubgpu 2> /dev/null
cmp <("$QENG" recipes/inspect.lua "$data" --count 100 | tail -n +2) <("$QENG" recipes/inspect.lua "$dir/whole.qubgpu" --count 100 | tail -n +2)
packets export - "$data" --crc xmodem 2> /dev/null | packets import "$dir/piped.qubgpu" - --crc xmodem 2> /dev/null
packets export "$dir/back.ndp" "$dir/piped.qubgpu" --crc ccitt 2> /dev/null
cmp "$dir/back.ndp" "$dir/ccitt.ndp"
packets split "$data" "$dir/share.qubgpu" --shares 0.9,0.1 2> "$dir/said"
grep -q 'share-2-of-2' "$dir/said" || fail "split names its parts"
packets split "$data" "$dir/source.qubgpu" --by-source 2> /dev/null
[[ -f $dir/source-0x03.qubgpu ]] || fail "split by source"
packets filter "$data" "$dir/long.qubgpu" --sources chat,0x42 --where 'tokens > 5' 2> /dev/null
expect 0 "source 0x" "$QENG" recipes/inspect.lua "$dir/long.qubgpu" --verify
packets reshard "$dir/shard.qubgpu" "$data" --shards 3 2> /dev/null
packets append "$dir/shard-1-of-3.qubgpu" "$dir/shard-2-of-3.qubgpu" "$dir/shard-3-of-3.qubgpu" 2> /dev/null
packets export "$dir/again.ndp" "$dir/shard-1-of-3.qubgpu" 2> /dev/null
cmp "$dir/again.ndp" "$dir/ccitt.ndp"
input=$dir/ccitt.ndp expect 0 "bare frames, $count records" "$QENG" recipes/inspect.lua -
expect 0 "every frame of $count records" "$QENG" recipes/inspect.lua "$data" --count 0 --verify

# Misuse.
expect 2 "nonsense is no command" "$QENG" recipes/packets.lua nonsense
expect 0 "usage: qeng recipes/packets.lua" "$QENG" recipes/packets.lua
expect 0 "of random records" "$QENG" recipes/packets.lua split --help
"$QENG" -e 'local q = require "qeng"; local w = q.ndp.create(arg[1], { meta = { tokenizer_hash = "other" } }); w:add { 1, 2 }; w:finish()' "$dir/other.qubgpu"
expect 1 "datasets of different tokenizers do not mix" "$QENG" recipes/packets.lua merge "$dir/no.qubgpu" "$data" "$dir/other.qubgpu"

# Damage is named with its place; the copy leaves it out.
cp "$data" "$dir/bad.qubgpu"
printf 'x' | dd of="$dir/bad.qubgpu" bs=1 seek=4108 conv=notrunc 2> /dev/null
expect 1 "damaged: record 0, frame at byte 4096" "$QENG" recipes/inspect.lua "$dir/bad.qubgpu" --count 0 --verify
expect 1 "block of 1 MiB at byte 4096" "$QENG" recipes/inspect.lua "$dir/bad.qubgpu" --count 0 --verify
expect 0 "1 damaged and left out" "$QENG" recipes/packets.lua merge "$dir/mended.qubgpu" "$dir/bad.qubgpu"
expect 0 "every frame of $((count - 1)) records" "$QENG" recipes/inspect.lua "$dir/mended.qubgpu" --count 0 --verify
head -c 5000 "$data" > "$dir/torn.qubgpu"
expect 1 "truncated or damaged" "$QENG" recipes/inspect.lua "$dir/torn.qubgpu"
head -c 5000 "$dir/ccitt.ndp" > "$dir/torn.ndp"
expect 1 "frames are damaged" "$QENG" recipes/inspect.lua "$dir/torn.ndp"

# A full disk, and a folder that cannot be written: nothing is left behind.
mkdir "$dir/full"
(ulimit -f 2; trap '' XFSZ; expect 1 "cannot write" "$QENG" recipes/packets.lua merge "$dir/full/a.qubgpu" "$data")
[[ -z $(ls "$dir/full") ]] || fail "a failed write left $(ls "$dir/full")"
if [[ -e /dev/full ]]; then
  status=0
  "$QENG" recipes/packets.lua export - "$data" > /dev/full 2> "$dir/said" || status=$?
  ((status == 1)) && grep -q "No space left" "$dir/said" || fail "/dev/full: status $status, $(cat "$dir/said")"
fi
if ((EUID != 0)); then
  chmod a-w "$dir/full"
  expect 1 "cannot create" "$QENG" recipes/packets.lua merge "$dir/full/a.qubgpu" "$data"
else
  expect 1 "cannot create" "$QENG" recipes/packets.lua merge "/proc/a.qubgpu" "$data"
fi
echo "packets: ok"
