-- Prints the tables of what bench/decode_gpu.sh measured, and writes all of it as OUT/decode.json:
--   qeng bench/decode_table.lua OUT
local q = require "qeng"
local out = assert(arg[1], "usage: decode_table.lua OUT")

local function read(path) return q.fs.kind(path) == "file" and q.json.decode(q.fs.read(path)) or nil end

local runs, devices, by_device = q.json.array {}, {}, {}
for _, name in ipairs(q.fs.list(out)) do
  local dir = out .. "/" .. name
  local run = q.fs.kind(dir) == "dir" and read(dir .. "/run.json")
  if run then
    run.measured, run.peer = read(dir .. "/decode.json"), read(dir .. "/peer.json")
    run.measured.model = nil  -- a path that is no more
    run.peer_failed = q.fs.kind(dir .. "/peer.failed") == "file" and
      q.fs.read(dir .. "/peer.failed"):gsub("%s+$", "") or nil
    runs[#runs + 1] = run
  end
end
table.sort(runs, function(a, b)
  if a.shape ~= b.shape then return a.shape > b.shape end
  return a.measured.weight_bytes < b.measured.weight_bytes
end)
for _, run in ipairs(runs) do  -- figures of different devices do not stand in one table
  if not by_device[run.device] then devices[#devices + 1], by_device[run.device] = run.device, {} end
  table.insert(by_device[run.device], run)
end
q.fs.write(out .. "/decode.json", q.json.encode(runs, { pretty = true }) .. "\n")

local function row(cells) print("| " .. table.concat(cells, " | ") .. " |") end
local function rule(count) row((function(list) for i = 1, count do list[i] = "---" end return list end) {}) end

local function ours(list)
  local head = { "shape", "type", "matrices, GB", "read, GB/s", "prefill" }
  for _, one in ipairs(list[1].measured.decode) do head[#head + 1] = ("batch %d"):format(one.batch) end
  row(head)
  rule(#head)
  for _, run in ipairs(list) do
    local m = run.measured
    local cells = { run.shape, run.type, ("%.3f"):format(m.weight_bytes / 1e9),
      ("%.0f"):format(m.decode[1].bandwidth / 1e9), ("%.0f"):format(m.prefill.tokens_per_second) }
    for _, one in ipairs(m.decode) do
      cells[#cells + 1] = ("%.1f (%.0f %%)"):format(one.tokens_per_second, 100 * one.share)
    end
    row(cells)
  end
end

local function theirs(list)
  local head = { "shape", "qeng", "PyTorch", "ratio", "its token waited for, queued", "of the bandwidth", "its prefill",
    "graph breaks, CUDA graphs skipped", "torch, transformers" }
  row(head)
  rule(#head)
  for _, run in ipairs(list) do
    local first, peer = run.measured.decode[1], run.peer
    if peer then
      row { run.shape, ("%.1f"):format(first.tokens_per_second), ("%.1f"):format(peer.tokens_per_second),
        ("%.2f"):format(first.tokens_per_second / peer.tokens_per_second),
        ("%.1f, %.1f"):format(peer.waited, peer.queued),
        ("%.0f %%"):format(100 * peer.tokens_per_second / first.limit), ("%.0f"):format(peer.prefill_tokens_per_second),
        ("%d, %d"):format(peer.graph_breaks, peer.skipped_cuda_graphs), peer.torch .. ", " .. peer.transformers }
    else
      row { run.shape, ("%.1f"):format(first.tokens_per_second), run.peer_failed or "SKIPPED", "-", "-", "-",
        "-", "-", "-" }
    end
  end
end

for _, device in ipairs(devices) do
  local list, bf16 = by_device[device], {}
  print(("## %s, %s, commit %s\n"):format(device, list[1].date, list[1].commit))
  print(("tokens/s after %d tokens, median of %d steps; in brackets, share of what the bandwidth measured in the " ..
      "same process allows.\n"):format(
    list[1].context, list[1].tokens))
  ours(list)
  for _, run in ipairs(list) do if run.type == "bf16" then bf16[#bf16 + 1] = run end end
  if #bf16 > 0 then
    print "\nbf16, one sequence, and PyTorch with a static cache and torch.compile in the same run:\n"
    theirs(bf16)
  end
  print ""
end
if #devices == 0 then print "nothing has been measured" end
