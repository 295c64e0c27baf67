#!/bin/bash
# By hand: do two executables compute the same bits? Trains and generates with each, small models and one seed on two
# threads, and compares losses, gradient norms and the files that were trained. OLD_TREE, NEW_TREE: folders whose recipes/
# they run (this one), with the library of their scripts/, if there is one, instead of the executable's.
#   bash tests/campaigns/same_bits.sh OLD_QENG NEW_QENG
set -u
cd "$(dirname "$(realpath "$0")")/../.." || exit 1
[ $# = 2 ] || { echo "usage: same_bits.sh OLD_QENG NEW_QENG"; exit 2; }
old=$(realpath "$1") new=$(realpath "$2")
old_tree=$(realpath "${OLD_TREE:-.}") new_tree=$(realpath "${NEW_TREE:-.}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
different=0

qeng() { # qeng WHICH SCRIPT ARGUMENTS...: what it says goes to a log, which is shown when it fails
  local program=$old tree=$old_tree given=${OLD_TREE-} which=$1 script=$2
  [ "$which" = old ] || program=$new tree=$new_tree given=${NEW_TREE-}
  unset QENG_SCRIPTS
  if [ -n "$given" ] && [ -d "$tree/scripts/qeng" ]; then export QENG_SCRIPTS=$tree/scripts; fi
  case $script in /* | -e) ;; *) script=$tree/$script ;; esac
  (cd "$tree" && "$program" "$script" "${@:3}") >"$work/log" 2>&1 && return
  echo "FAILED: $which ${*:2}"
  cat "$work/log"
  exit 1
}

# What a run computed: losses and norms of its steps, and the files that hold what was trained.
digest() { # digest FOLDER FILES...
  local folder=$1 file
  shift
  grep -oE '"(step|loss|eval_loss|grad_norm|flip_rate|pulse_rate|lr)":[^,}]*' "$folder/metrics.jsonl" 2>/dev/null | sort
  for file in "$@"; do (cd "$folder" && sha256sum "$file"); done
}
compare() { # compare NAME FILES...: of $work/old and $work/new
  local name=$1
  shift
  for file in "$@"; do [ -s "$work/old/$file" ] || { echo "FAILED: $name wrote no $file"; exit 1; }; done
  if [ "$(digest "$work/old" "$@")" = "$(digest "$work/new" "$@")" ]; then
    echo "equal      $name"
  else
    echo "different  $name"
    different=$((different + 1))
    diff <(digest "$work/old" "$@") <(digest "$work/new" "$@") | head -n 6
  fi
  rm -rf "$work/old" "$work/new"
}
both() { # both ARGUMENTS...: OUT stands for the folder of each
  local which
  for which in old new; do qeng $which "${@//OUT/$work/$which}"; done
}

adapter=(adapter/adapter_model.safetensors adapter/adapter_config.json)
"$old" tests/lua/small_model.lua "$work" >/dev/null 2>&1 || { echo "FAILED: no model"; exit 1; }
mine=(--data "$work/data.jsonl" --row-tokens 64 --threads 2 --out OUT)
small=(recipes/lora_qwen.lua --seed 3 --model "$work/model" "${mine[@]}" --rows 2 --accumulate 2 --dropout 0.1 --steps 40)

both recipes/lora_qwen.lua --seed 3 --threads 2 --steps 12 --rank 16 --optim adamw --rows 2 --out OUT
compare "LoRA, the demo" "${adapter[@]}"
both "${small[@]}" --eval-every 10 --clip 0.5 --warmup 5 --eager
compare "LoRA, eager, accumulated, with dropout" "${adapter[@]}"
both "${small[@]}" --mode full --dropout 0 --decay 0.1 --drop 0.1 --recompute
compare "full" model/model.safetensors
both "${small[@]}" --weights stream --host-budget 1.5G
compare "streamed" "${adapter[@]}"
for which in old new; do qeng old "${small[@]//OUT/$work/$which}" --schedule constant --save-every 20; done
both "${small[@]}" --schedule constant --steps 60 --resume
compare "LoRA, begun by the first and gone on with" "${adapter[@]}"
qeng old recipes/quantize.lua "$work/model" "$work/model.gguf" --type q8_0
both recipes/lora_qwen.lua --seed 3 --model "$work/model.gguf" "${mine[@]}" --steps 30 --gguf
compare "LoRA on a GGUF file" "${adapter[@]}" adapter.gguf

onebit=("${mine[@]}" --hidden 64 --layers 2 --heads 2 --ffn 96 --steps 40)
both recipes/onebit_pretrain.lua "${onebit[@]}" --levels 3 --accumulate 2
compare "one bit" model/model.safetensors
both recipes/onebit_phased.lua "${onebit[@]}" --phase-steps 8 --by gradient --rows 2
compare "one bit in phases" model/model.safetensors
both recipes/onebit_convert.lua --model "$old_tree/recipes/tiny" "${mine[@]}" --steps 30
compare "to one bit" model/model.safetensors
head -c 20000 README.md >"$work/text.txt"
both recipes/onebit_compare.lua --data "$work/text.txt" --methods frozen,latent,7,bop,grid1,phased --lrs 1.2e-2 --seeds 1 \
  --steps 30 --rows 4 --tokens 32 --hidden 32 --layers 2 --heads 2 --ffn 64 --threads 2 --out OUT
sed -i 's/"seconds": *[0-9.e+-]*//g' "$work/old/runs.jsonl" "$work/new/runs.jsonl"
compare "rules of one bit" runs.jsonl

both recipes/ab_pipeline.lua --model "$work/model" "${mine[@]}" --seeds 3 --steps 20 --rows 1
for which in old new; do
  qeng new -e 'local q = require "qeng"
    for way, runs in pairs(q.json.decode(q.fs.read(arg[1] .. "/figures.json")).runs) do
      for i, run in ipairs(runs) do
        q.fs.write(("%s/%s-%d"):format(arg[1], way, i), run.loss .. " " .. table.concat(run.losses, " "))
      end
    end' "$work/$which"
done
compare "three ways of data" jsonl-1 packets-2 packets+drop-3

cat >"$work/ask.lua" <<'L'
local q = require "qeng"
q.device { threads = 2 }
local model = q.load(arg[1])
for _, prompt in ipairs { "How many legs has a cat?", "red" } do
  local messages = { { role = "user", content = prompt } }
  local answer = model:answer { messages = messages, temperature = 0, max_tokens = 48, template = "chatml" }
  q.fs.append(arg[2], answer .. "\n")
end
local digest = q.no_grad(q.scope, function() return model:logits({ 5, 9, 100, 7 }):hash() end)
q.fs.append(arg[2], digest .. "\n")
L
for model in "$old_tree/recipes/tiny" "$work/model" "$work/model.gguf"; do
  for which in old new; do mkdir -p "$work/$which" && qeng $which "$work/ask.lua" "$model" "$work/$which/answers"; done
  compare "generation, $(basename "$model")" answers
done
[ $different = 0 ] && echo "the same bits everywhere"
exit $((different > 0))
