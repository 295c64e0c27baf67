-- Keeps the queries, keys and values of documents as a model computes them, for kv_evaluate.lua.
--   qeng recipes/kv_capture.lua --model DIR --data text.txt --tokens 2048 --documents 30 --out captures
local capture = require "qeng.turboquant.capture"
local progress = require "qeng.console.progress"
local q = require "qeng"

local opt = q.options {
  "Captures what attention computes with, document by document; goes on where it was stopped.",
  "model",
  { "data", nil, "a text file, of which windows are the documents", kind = "input", required = true },
  { "tokens", 2048, "of a document", min = 2 },
  { "documents", 30, "windows of the text, evenly apart", min = 1 },
  { "layers", {}, "numbers of layers, from 0; by default all that have keys", number = "whole", min = 0 },
  { "store", "f16", "dtype of the files", choices = { "f16", "bf16", "f32" } },
  { "out", "captures", "output folder, of this recipe alone", kind = "folder" },
  "weights", "device",
}
q.use_device(opt)
q.fs.mkdir(opt.out)
q.fs.hold(opt.out)
local line, model = progress.new(), q.load(opt.model, opt)
local manifest = capture.run(model, q.fs.read(opt.data), opt.out, {
  tokens = opt.tokens, documents = opt.documents, layers = opt.layers, store = opt.store,
  watch = function(d, kept) line:line(("document %d of %d%s"):format(d, opt.documents, kept and ", there" or "")) end,
})
line:finish()
print(("%s: %d documents of %d tokens, %d layers, in %s"):format(opt.out, #manifest.documents, opt.tokens,
  #manifest.settings.layers, opt.store))
