-- Measures what types of the cache cost a model: distributions of the next token against a cache in f16.
--   qeng recipes/kv_quality.lua --model model.gguf --data text.txt --types "tq4 q8_0" --out quality
--   qeng recipes/kv_quality.lua --model model.gguf --data text.txt --tokens 512,2048,8192 --needle 2048,8192
local bench = require "qeng.infer.decode_bench"
local grid = require "qeng.report.grid"
local needle = require "qeng.turboquant.needle"
local progress = require "qeng.console.progress"
local q = require "qeng"
local quality = require "qeng.turboquant.quality"

local opt = q.options {
  "Scores documents under each type of the cache; goes on where it was stopped.",
  "model",
  { "data", nil, "a text file, of which windows are the documents", kind = "input", required = true },
  { "tokens", { 2048 }, "lengths of documents, each with a table of its own", min = 8 },
  { "documents", 30, "windows of the text, evenly apart", min = 1 },
  { "from", 0, "the first position that counts; 0: the middle", min = 0 },
  { "types", "q8_0 tq4 tq3 tq2", "types of --kv, with blanks between; the others are compared with the first" },
  { "needle", {}, "lengths of documents in which facts are hidden, and asked for at the end; compared with f16",
    number = "whole", min = 8 },
  { "decode", 0, "tokens of the context at which the rate of decoding is measured; 0: not", min = 0 },
  { "out", "quality", "output folder, of this recipe alone", kind = "folder" },
  "weights", "device",
}
for _, tokens in ipairs(opt.tokens) do
  if opt.from > tokens - 2 then  -- after the last token none comes
    q.error("usage", ("--from %d: has to be at most %d in documents of %d tokens"):format(opt.from, tokens - 2, tokens))
  end
end
if not opt.types:find "%S" then q.error("usage", "--types: expected types of --kv, as \"q8_0 tq4\"") end
q.use_device(opt)
q.fs.mkdir(opt.out)
q.fs.hold(opt.out)
local model, types, tables = q.load(opt.model, opt), {}, {}
for name in opt.types:gmatch "%S+" do types[#types + 1] = quality.parse(model, name) end

-- Documents of so many tokens, whose figures are in a folder of that name.
local function run(name, tokens, list, document)
  local line = progress.new()
  q.fs.mkdir(opt.out .. "/" .. name)
  local documents = quality.run(model, q.fs.read(opt.data), list, opt.out .. "/" .. name, {
    tokens = tokens, documents = opt.documents, from = opt.from > 0 and opt.from or math.floor(tokens / 2),
    document = document, watch = function(d) line:line(("%s: document %d of %d"):format(name, d, opt.documents)) end,
  })
  line:finish()
  return documents
end

local function add(title, columns, rows)
  tables[#tables + 1] = ("## %s\n\n%s\n"):format(title, grid.markdown(columns, rows))
  print(title .. "\n" .. grid.text(columns, rows))
end

for _, length in ipairs(opt.tokens) do
  local columns, rows = quality.rows(types, run(("%d"):format(length), length, types))
  if opt.decode > 0 then
    columns[#columns + 1] = ("tokens/s at %d"):format(opt.decode)
    for i, kind in ipairs(types) do
      rows[i][#columns] = kind.name:find "^sim:" and "" or ("%.1f"):format(1 / bench.decode(model, 1, opt.decode, 16,
        { kv = kind.name }).median)
    end
  end
  add(("%d documents of %d tokens"):format(opt.documents, length), columns, rows)
end
for _, length in ipairs(opt.needle) do
  local list = { quality.parse(model, "f16"), unpack(types) }
  add(("Facts that are found in documents of %d tokens, by depth"):format(length),
    needle.rows(list, run(("needle_%d"):format(length), length, list, needle.document)))
end
q.fs.write(opt.out .. "/summary.md", table.concat(tables, "\n"))
print(opt.out .. ": summary.md, and the figures of each document")
