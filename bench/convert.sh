#!/bin/bash
# How fast JSONL becomes packets:  bench/convert.sh BUILD DATA_FOLDER WORK [MB]
# Makes MB (default 200) of chat JSONL in WORK from DATA_FOLDER's code_alpaca_2k.json and wikitext2_test.txt, no two records
# the same, then times each stage (qeng_bench_convert) and the recipe, with its peak memory.
set -euo pipefail
build=$1 data=$2 work=$3 megabytes=${4:-200}
mkdir -p "$work"
jsonl=$work/bench-$megabytes.jsonl
if [ ! -s "$jsonl" ]; then
  python3 - "$data" "$jsonl" "$megabytes" <<'PY'
import json, random, sys
folder, out, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
alpaca = json.load(open(folder + "/code_alpaca_2k.json"))
prose = [p.strip() for p in open(folder + "/wikitext2_test.txt", encoding="utf-8") if len(p) > 80]
draw, written = random.Random(1), 0
with open(out, "w", encoding="utf-8") as f:
    while written < megabytes * 1e6:
        a, b, p = draw.choice(alpaca), draw.choice(alpaca), draw.choice(prose)
        messages = [{"role": "user", "content": a["instruction"] + "\n\n" + a["input"] + f" ({draw.randrange(10**9)})"}, {"role": "assistant", "content": a["output"]},
                    {"role": "user", "content": p}, {"role": "assistant", "content": b["output"]}]
        line = json.dumps({"messages": messages}, ensure_ascii=False) + "\n"
        f.write(line)
        written += len(line.encode())
PY
fi
"$build/qeng_bench_convert" "$jsonl" "$data/qwen.tiktoken" 2
"$build/qeng" -e 'local out = arg[2] .. "/bench.qubgpu"
  local tokenizer = q.tokenizer(arg[3])
  local best = 0
  for round = 1, 5 do
    local began = q.time()
    q.convert(arg[1], out, { tokenizer = tokenizer, template = "chatml", threads = 2 })
    best = math.max(best, tonumber(arg[4]) / (q.time() - began))
  end
  print(("q.convert, 2 workers, best of five: %.1f MB/s, peak memory %.0f MB"):format(best, q.host.peak_rss() / 1e6))' "$jsonl" "$work" "$data/qwen.tiktoken" "$megabytes"
