-- Makes datasets of datasets, without tokenizing again, and carries files between machines whose keys know each other.
--   qeng recipes/packets.lua merge OUT.qubgpu A.qubgpu B.qubgpu
--   qeng recipes/packets.lua pull data.qubgpu --from 10.0.0.2:28767

local commands = require "qeng.console.commands"
local deliveries = require "qeng.peers.deliveries"
local packets = require "qeng.data.packets"
local q = require "qeng"

local function dataset(name, help) return { name, nil, help, required = true } end

-- Of each command: its options, and what it does with them.
local list = {
  merge = { {
    "OUT IN...: one dataset of several", positional = { "out" }, rest = "inputs",
    dataset("out", "the dataset written"), "packets",
  }, function(opt)
    if q.fs.kind(opt.out) and not opt.overwrite then
      q.error("value", opt.out .. " is there already, and merge writes its first word: give a new name or --overwrite")
    end
    return packets.merge(opt.out, opt.inputs, opt)
  end },
  append = { { "FILE MORE...: adds datasets to one that exists", positional = { "file" }, rest = "inputs",
    dataset("file", "the dataset that grows"), "packets" },
    function(opt) return packets.append(opt.file, opt.inputs, opt) end },
  split = { {
    "IN OUT: parts of a dataset, OUT-1-of-2 and so on", positional = { "input", "out" },
    dataset("input", "the dataset"), dataset("out", "what the parts are named after"),
    { "shares", {}, "of random records: 0.9,0.1", number = true },
    { "count", 0, "records a part, in order", min = 0 },
    { "by_source", false, "a part for each source" },
    { "seed", 0, "of the random choice", min = 0 }, "packets",
  }, function(opt)
    opt.shares, opt.count = opt.shares[1] and opt.shares, opt.count > 0 and opt.count or nil
    return packets.split(opt.input, opt.out, opt)
  end },
  filter = { {
    "IN OUT: the records that match", positional = { "input", "out" },
    dataset("input", "the dataset"), dataset("out", "the dataset written"),
    { "sources", {}, "numbers or names: chat,0x42" },
    { "destinations", {}, "numbers or names: lora" },
    { "min_tokens", 0, "shortest document", min = 0 },
    { "max_tokens", 4294967295, "longest document", min = 0 },
    { "where", "",
      "a Lua expression of type, tokens, loss_tokens, src, dst, frames, bytes: 'loss_tokens > tokens / 2'" },
    "packets",
  }, function(opt)
    local where, why = loadstring("return " .. (opt.where ~= "" and opt.where or "true"), "=--where")
    if not where then q.error("usage", why) end
    opt.where = function(info) return setfenv(where, setmetatable(info, { __index = math }))() end
    for _, name in ipairs { "sources", "destinations" } do opt[name] = packets.numbers(opt[name], packets[name]) end
    return packets.filter(opt.input, opt.out, opt)
  end },
  reshard = { {
    "OUT IN... --shards N: the same records in N files", positional = { "out" }, rest = "inputs",
    dataset("out", "what the files are named after"), { "shards", 2, "files", min = 1 }, "packets",
  }, function(opt) return packets.reshard(opt.out, opt.inputs, opt.shards, opt) end },
  export = { { "OUT.ndp IN...: bare frames; OUT - is standard output", positional = { "out" },
    rest = "inputs", dataset("out", "the frames written"), "packets" },
    function(opt) return packets.export(opt.out, opt.inputs, opt) end },
  import = { { "OUT IN.ndp: a dataset of bare frames; IN - is standard input", positional = { "out", "input" },
    dataset("out", "the dataset written"), dataset("input", "the frames"), "packets" },
    function(opt) return packets.import(opt.out, opt.input, opt) end },
  serve = { { "PATH...: offers files and folders to peers, and takes what they push", rest = "paths",
    "delivery_serve" }, deliveries.serve },
  pull = { { "WHAT --from HOST:PORT: fetches a file or folder that peers offer", positional = { "what" },
    "delivery_pull" }, deliveries.pull },
  push = { { "PATH... --to HOST:PORT: gives files and folders to a peer that takes them", rest = "paths",
    "delivery_push" }, deliveries.push },
}

local counts = commands.run("recipes/packets.lua", list, arg)
if counts then
  io.stderr:write(("%d records read, %d damaged and left out\n"):format(counts.records, counts.damaged))
  for _, part in ipairs(counts.parts or {}) do io.stderr:write(part, "\n") end
end
