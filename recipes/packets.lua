-- Datasets made of datasets, without tokenizing again:  qeng recipes/packets.lua merge OUT.qubgpu A.qubgpu B.qubgpu

local packets = require "qeng.data.packets"
local q = require "qeng"

local crc = { "", "CRC variant written (default: as the first dataset has)", choices = { "ccitt", "xmodem" }, order = 90 }
local overwrite = { false, "write also over a file that is no dataset, or is read here", order = 98 }
local max_damaged = { 0.01, "share of damaged records that is an error", min = 0, max = 1, order = 91 }
local function dataset(help, order) return { nil, help, required = true, order = order } end

local commands = {
  merge = { "OUT IN...: one dataset of several", { positional = { "out" }, rest = "inputs", out = dataset("the dataset written", 1) },
    function(opt)
      if q.fs.kind(opt.out) and not opt.overwrite then q.error("value", opt.out .. " is there already, and merge writes its first word: give a new name, or say --overwrite") end
      return packets.merge(opt.out, opt.inputs, opt)
    end },
  append = { "FILE MORE...: adds datasets to one that exists", { positional = { "file" }, rest = "inputs", file = dataset("the dataset that grows", 1) },
    function(opt) return packets.append(opt.file, opt.inputs, opt) end },
  split = { "IN OUT: parts of a dataset, OUT-1-of-2 and so on", {
    positional = { "input", "out" }, input = dataset("the dataset", 1), out = dataset("what the parts are named after", 2),
    shares = { "", "of random records: 0.9,0.1", order = 3 }, count = { 0, "records a part, in order", min = 0, order = 4 },
    by_source = { false, "a part for each source", order = 5 }, seed = { 0, "of the random choice", min = 0, order = 6 } },
    function(opt)
      local shares = {}
      for word in opt.shares:gmatch "[^,]+" do
        shares[#shares + 1] = tonumber(word) or q.error("usage", ("--shares %s: %s is no number"):format(opt.shares, word))
      end
      return packets.split(opt.input, opt.out, { shares = #shares > 0 and shares or nil, count = opt.count > 0 and opt.count or nil,
        by_source = opt.by_source, seed = opt.seed, crc = opt.crc, max_damaged = opt.max_damaged, overwrite = opt.overwrite })
    end },
  filter = { "IN OUT: the records that match", {
    positional = { "input", "out" }, input = dataset("the dataset", 1), out = dataset("the dataset written", 2),
    sources = { "", "numbers or names: chat,0x42", order = 3 }, destinations = { "", "numbers or names: lora", order = 4 },
    min_tokens = { 0, "shortest document", min = 0, integer = true, order = 5 }, max_tokens = { 4294967295, "longest document", min = 0, order = 6 },
    where = { "", "a Lua expression of type, tokens, loss_tokens, src, dst, frames, bytes: 'loss_tokens > tokens / 2'", order = 7 } },
    function(opt)
      local where, why = loadstring("return " .. (opt.where ~= "" and opt.where or "true"), "=--where")
      if not where then q.error("usage", why) end
      return packets.filter(opt.input, opt.out, { overwrite = opt.overwrite, crc = opt.crc, max_damaged = opt.max_damaged, min_tokens = opt.min_tokens,
        max_tokens = opt.max_tokens, sources = packets.numbers(opt.sources, packets.sources),
        destinations = packets.numbers(opt.destinations, packets.destinations),
        where = function(info) return setfenv(where, setmetatable(info, { __index = math }))() end })
    end },
  reshard = { "OUT IN... --shards N: the same records in N files", {
    positional = { "out" }, rest = "inputs", out = dataset("what the files are named after", 1), shards = { 2, "files", min = 1, order = 2 } },
    function(opt) return packets.reshard(opt.out, opt.inputs, opt.shards, opt) end },
  export = { "OUT.ndp IN...: a bare stream of frames; OUT - is standard output", { positional = { "out" }, rest = "inputs", out = dataset("the stream written", 1) },
    function(opt) return packets.export(opt.out, opt.inputs, opt) end },
  import = { "OUT IN.ndp: a dataset of a bare stream; IN - is standard input", {
    positional = { "out", "input" }, out = dataset("the dataset written", 1), input = dataset("the stream", 2) },
    function(opt) return packets.import(opt.out, opt.input, opt) end },
}

local name = table.remove(arg, 1)
local command = commands[name]
if not command then
  local lines, names = { "usage: qeng recipes/packets.lua COMMAND ..., and --help after a command for its options", "" }, {}
  for known in pairs(commands) do names[#names + 1] = known end
  table.sort(names)
  for _, known in ipairs(names) do lines[#lines + 1] = ("  %-8s %s"):format(known, commands[known][1]) end
  if name and name ~= "--help" then q.error("usage", ("%s is no command\n%s"):format(name, table.concat(lines, "\n"))) end
  print(table.concat(lines, "\n"))
  return
end

local declared = command[2]
declared[1], declared.crc, declared.max_damaged, declared.overwrite = command[1], crc, max_damaged, overwrite
local counts = command[3](q.options(declared, arg, "recipes/packets.lua " .. name))
io.stderr:write(("%d records read, %d damaged and left out\n"):format(counts.records, counts.damaged))
for _, part in ipairs(counts.parts or {}) do io.stderr:write(part, "\n") end
