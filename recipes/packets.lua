-- Makes datasets of datasets, without tokenizing again.
--   qeng recipes/packets.lua merge OUT.qubgpu A.qubgpu B.qubgpu

local packets = require "qeng.data.packets"
local q = require "qeng"

local function dataset(name, help) return { name, nil, help, required = true } end

-- Of each command: its options, and what it does with them.
local commands = {
  merge = { {
    "OUT IN...: one dataset of several", positional = { "out" }, rest = "inputs",
    dataset("out", "the dataset written"),
  }, function(opt)
    if q.fs.kind(opt.out) and not opt.overwrite then
      q.error("value", opt.out .. " is there already, and merge writes its first word: give a new name or --overwrite")
    end
    return packets.merge(opt.out, opt.inputs, opt)
  end },
  append = { { "FILE MORE...: adds datasets to one that exists", positional = { "file" }, rest = "inputs",
    dataset("file", "the dataset that grows") }, function(opt) return packets.append(opt.file, opt.inputs, opt) end },
  split = { {
    "IN OUT: parts of a dataset, OUT-1-of-2 and so on", positional = { "input", "out" },
    dataset("input", "the dataset"), dataset("out", "what the parts are named after"),
    { "shares", {}, "of random records: 0.9,0.1", number = true },
    { "count", 0, "records a part, in order", min = 0 },
    { "by_source", false, "a part for each source" },
    { "seed", 0, "of the random choice", min = 0 },
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
  }, function(opt)
    local where, why = loadstring("return " .. (opt.where ~= "" and opt.where or "true"), "=--where")
    if not where then q.error("usage", why) end
    opt.where = function(info) return setfenv(where, setmetatable(info, { __index = math }))() end
    for _, name in ipairs { "sources", "destinations" } do opt[name] = packets.numbers(opt[name], packets[name]) end
    return packets.filter(opt.input, opt.out, opt)
  end },
  reshard = { {
    "OUT IN... --shards N: the same records in N files", positional = { "out" }, rest = "inputs",
    dataset("out", "what the files are named after"), { "shards", 2, "files", min = 1 },
  }, function(opt) return packets.reshard(opt.out, opt.inputs, opt.shards, opt) end },
  export = { { "OUT.ndp IN...: bare frames; OUT - is standard output", positional = { "out" },
    rest = "inputs", dataset("out", "the frames written") },
    function(opt) return packets.export(opt.out, opt.inputs, opt) end },
  import = { { "OUT IN.ndp: a dataset of bare frames; IN - is standard input", positional = { "out", "input" },
    dataset("out", "the dataset written"), dataset("input", "the frames") },
    function(opt) return packets.import(opt.out, opt.input, opt) end },
}
local common = {
  { "crc", "", "CRC variant written (default: as the first dataset has)", choices = { "ccitt", "xmodem" } },
  { "max_damaged", 0.01, "share of damaged records that is an error", min = 0, max = 1 },
  { "overwrite", false, "write also over a file that is no dataset, or is read here" },
}

local name = table.remove(arg, 1)
local command = commands[name]
if not command then
  local lines, names = { "usage: qeng recipes/packets.lua COMMAND ..., and --help after it for its options", "" }, {}
  for known in pairs(commands) do names[#names + 1] = known end
  table.sort(names)
  for _, known in ipairs(names) do lines[#lines + 1] = ("  %-8s %s"):format(known, commands[known][1][1]) end
  local text = table.concat(lines, "\n")
  return name and name ~= "--help" and q.error("usage", ("%s is no command\n%s"):format(name, text)) or print(text)
end

for _, entry in ipairs(common) do table.insert(command[1], entry) end
local counts = command[2](q.options(command[1], arg, "recipes/packets.lua " .. name))
io.stderr:write(("%d records read, %d damaged and left out\n"):format(counts.records, counts.damaged))
for _, part in ipairs(counts.parts or {}) do io.stderr:write(part, "\n") end
