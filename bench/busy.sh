#!/usr/bin/env bash
# bench/busy.sh OUT_DIR [QENG...]: speeds beside 0, 1, 2 and 4 processes that compute without end, by each qeng given in turn
# (build/release/qeng), with one and two threads; with $GGUF its decoding too, and llama.cpp's where $PYTHON has llama_cpp.
# $ROUNDS (2): the whole so often; figures are means. Then a table: rows are figures, columns busy processes.
set -euo pipefail
out=$1
shift
qengs=("${@:-build/release/qeng}")
mkdir -p "$out"
busy=()
quiet() {
  for pid in "${busy[@]}"; do kill "$pid"; done 2>/dev/null || true
  wait 2>/dev/null || true
  busy=()
}
trap quiet EXIT
"${qengs[0]}" -e "require('qeng.train.demo').write_examples('$out/examples.jsonl', 0, 500)"

for ((round = 0; round < ${ROUNDS:-2}; round++)); do
  for count in ${BUSY:-0 1 2 4}; do
    for ((i = 0; i < count; i++)); do
      sh -c 'while :; do :; done' &
      busy+=($!)
    done
    for threads in 1 2; do
      for at in "${!qengs[@]}"; do
        qeng=${qengs[at]}
        {
          "$qeng" bench/busy.lua --threads "$threads" --seconds "${SECONDS_EACH:-1}" ${GGUF:+--gguf "$GGUF"}
          rm -rf "$out/run"
          "$qeng" recipes/lora_qwen.lua --model recipes/tiny --data "$out/examples.jsonl" --steps 23 --row-tokens 512 --rows 2 --eval-share 0 \
            --save-every 0 --dtype f32 --threads "$threads" --out "$out/run" >"$out/train.log"
          "$qeng" -e "
            local q, ms, n = require 'qeng', 0, 0
            for line in q.fs.read('$out/run/metrics.jsonl'):gmatch '[^\n]+' do
              local step = q.json.decode(line)
              if step.step_ms and step.step > 3 then ms, n = ms + step.step_ms, n + 1 end
            end
            print(('lora_step %.5g steps/s'):format(1000 * n / ms))"
        } | sed "s/^/$count $at:$threads /" >>"$out/figures.txt"
      done
      if [[ -n ${GGUF:-} && -n ${PYTHON:-} ]]; then
        "$PYTHON" bench/llama_speed.py --threads "$threads" --prompt 64 --decode 64 --rounds 2 --mean "$GGUF" |
          sed -nE "s/.*decode ([0-9.]+) tokens.*/$count llama.cpp:$threads real_1 \1 tokens\/s/p" >>"$out/figures.txt"
      fi
    done
    quiet
  done
done
for at in "${!qengs[@]}"; do echo "$at: ${qengs[at]}"; done
awk '
  { key = $3 " (" $5 ") | " $2; if (!(key in seen)) { order[++rows] = key; seen[key] = 1 } sum[key, $1] += $4; n[key, $1]++; if (!($1 in column)) { counts[++columns] = $1; column[$1] = 1 } }
  END {
    printf "| figure | who:threads |"; for (c = 1; c <= columns; c++) printf " %d busy |", counts[c]; print ""
    printf "|---|---|"; for (c = 1; c <= columns; c++) printf "---|"; print ""
    for (r = 1; r <= rows; r++) {
      printf "| %s |", order[r]
      for (c = 1; c <= columns; c++) printf " %.5g |", sum[order[r], counts[c]] / n[order[r], counts[c]]
      print ""
    }
  }' "$out/figures.txt" >"$out/table"
{ head -n 2 "$out/table"; tail -n +3 "$out/table" | sort -s -t'|' -k2,2; } | tee "$out/table.md"
