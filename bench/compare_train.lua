-- Prints the table of what bench/train_gpu.sh measured, and writes all of it as OUT/train.json:
--   qeng bench/compare_train.lua OUT
local q = require "qeng"
local out = assert(arg[1], "usage: compare_train.lua OUT")
local peak = 989e12  -- an H100's or H200's dense bf16, FLOP/s
local variants = { "eager", "compiled", "helped", "helped_compiled" }

local function mib(path)
  local text = q.fs.kind(path) == "file" and q.fs.read(path):match "%d+"
  return text and tonumber(text) or nil
end
local function read(path) return q.fs.kind(path) == "file" and q.json.decode(q.fs.read(path)) or nil end
local function memory(run) return run and run.device_mib and ("%.1f"):format(run.device_mib / 1024) or "-" end

local runs = q.json.array {}
for _, name in ipairs(q.fs.list(out)) do
  local dir = out .. "/" .. name
  local ours = q.fs.kind(dir) == "dir" and read(dir .. "/result.json")
  if ours then
    ours.device_mib, ours.peers = mib(dir .. "/qeng.mib"), {}
    for _, variant in ipairs(variants) do
      local peer = read(dir .. "/" .. variant .. ".json")
      if peer then
        peer.device_mib = mib(dir .. "/" .. variant .. ".mib")
        ours.peers[variant] = peer
      end
    end
    runs[#runs + 1] = ours
  end
end
table.sort(runs, function(a, b)
  if a.mode ~= b.mode then return a.mode > b.mode end
  return a.parameters < b.parameters or (a.parameters == b.parameters and a.row_tokens < b.row_tokens)
end)
q.fs.write(out .. "/train.json", q.json.encode(runs) .. "\n")

print(("%-5s %-5s %5s %9s %8s %7s %7s | %8s %8s %8s %10s | %7s %7s | %s"):format("shape", "mode", "row", "tok/s",
  "of peak", "of GEMM", "wait",
  "eager", "compiled", "helped", "both", "GiB", "eager", "losses differ"))
for _, run in ipairs(runs) do
  local ratios, worst = {}, nil
  for i, variant in ipairs(variants) do
    local peer = run.peers[variant]
    ratios[i] = peer and ("%.2f"):format(run.tok_s / peer.tok_s) or "-"
    if peer then worst = math.max(worst or 0, peer.largest_relative_loss_difference) end
  end
  print(("%-5s %-5s %5d %9.0f %7.1f%% %6.1f%% %6.2f%% | %8s %8s %8s %10s | %7s %7s | %s"):format(
    run.shape, run.mode, run.row_tokens, run.tok_s,
    100 * run.flops_s / peak, 100 * run.flops_s / run.limits.flops_bf16, 100 * run.data_wait, ratios[1], ratios[2],
    ratios[3], ratios[4],
    memory(run), memory(run.peers.eager), worst and ("%.1e"):format(worst) or "-"))
end
print("tok/s and its ratios to transformers + PEFT (README.md says what each variant is); " ..
  "of peak: 989 TFLOP/s at 4N (lora) or 6N (full) FLOPs a token")
