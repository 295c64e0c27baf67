-- Measures what types of the cache cost a model: distributions of the next token against a cache in f16.
--   qeng recipes/kv_quality.lua --model model.gguf --data text.txt --types tq4,q8_0 --out quality
local bench = require "qeng.infer.decode_bench"
local grid = require "qeng.report.grid"
local progress = require "qeng.console.progress"
local q = require "qeng"
local quality = require "qeng.turboquant.quality"

local opt = q.options {
  "Scores documents under each type of the cache; goes on where it was stopped.",
  "model",
  { "data", nil, "a text file, of which windows are the documents", kind = "input", required = true },
  { "tokens", 2048, "of a document", min = 8 },
  { "documents", 30, "windows of the text, evenly apart", min = 1 },
  { "from", 0, "the first position that counts; 0: the middle", min = 0 },
  { "types", "q8_0 tq4 tq3 tq2", "types of --kv, with blanks between; the others are compared with the first" },
  { "decode", 0, "tokens of the context at which the rate of decoding is measured; 0: not", min = 0 },
  { "out", "quality", "output folder, of this recipe alone", kind = "folder" },
  "weights", "device",
}
q.use_device(opt)
q.fs.mkdir(opt.out)
q.fs.hold(opt.out)
local model, types = q.load(opt.model, opt), {}
for name in opt.types:gmatch "%S+" do types[#types + 1] = quality.parse(model, name) end
local line = progress.new()
local documents = quality.run(model, q.fs.read(opt.data), types, opt.out, {
  tokens = opt.tokens, documents = opt.documents, from = opt.from > 0 and opt.from or math.floor(opt.tokens / 2),
  watch = function(d) line:line(("document %d of %d"):format(d, opt.documents)) end,
})
line:finish()
local columns, rows = quality.rows(types, documents)
if opt.decode > 0 then
  columns[#columns + 1] = ("tokens/s at %d"):format(opt.decode)
  for i, kind in ipairs(types) do
    local simulated = kind.name:find "^sim:"
    rows[i][#columns] = simulated and "" or ("%.1f"):format(1 / bench.decode(model, 1, opt.decode, 16,
      { kv = kind.name }).median)
  end
end
local text = grid.markdown(columns, rows)
q.fs.write(opt.out .. "/summary.md", text .. "\n")
print(grid.text(columns, rows))
print(("%s: summary.md, and the figures of %d documents of %d tokens"):format(opt.out, #documents, opt.tokens))
