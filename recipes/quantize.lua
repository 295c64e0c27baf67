-- Writes a model as a GGUF file, in any of the format's types that qeng has.
--   qeng recipes/quantize.lua MODEL OUT.gguf --type q4_k_m [--calibration text.txt] [--tensor 'ffn_down=q6_k']

local importance = require "qeng.gguf.importance"
local q = require "qeng"
local quantized = require "qeng.gguf.quantized"
local types = require "qeng.gguf.types"

local opt = q.options {
  "Writes a model as a GGUF file: " .. table.concat(types.names(), ", ") .. ".",
  positional = { "model", "out" },
  { "model", nil, "Hugging Face folder, GGUF file, or org/name[@revision] on the hub", required = true },
  { "out", nil, "GGUF file", kind = "output", holds = "gguf", required = true },
  { "type", "q4_k_m", "type of the matrices, or a mix as llama.cpp's" },
  { "tensor", "", "types of single tensors, PATTERN=TYPE,...: how a name, or what follows a dot in it, begins; * for "
    .. "anything" },
  { "calibration", "", "text whose use of the weights says which of them matter most", kind = "input" },
  { "chunks", 64, "documents of 512 tokens taken from the calibration text", min = 1 },
  { "importance", "", "importance matrix of an earlier run (or llama.cpp's); with --calibration: where to keep it",
    kind = "input" },
  { "split", nil, "bytes of the tensors of a part, as 4G: parts OUT-00001-of-0000N.gguf, of which the first is the one "
    .. "to open", kind = "bytes" },
  "model_file",
}

if opt.__given.chunks and opt.calibration == "" then
  q.error("usage", "--chunks counts documents of a calibration text: give --calibration")
end
if opt.calibration ~= "" and opt.importance ~= "" then
  local reads = { opt.model, opt.calibration }
  q.check_output(opt.importance, { holds = "imatrix", reads = reads, overwrite = opt.overwrite })
end
local job = quantized.begin(opt.model, opt.out, {
  type = opt.type, tensor = opt.tensor, split = opt.split, model_file = opt.model_file,
  weighed = opt.calibration .. opt.importance ~= "",
})

local found
if opt.calibration ~= "" then
  local model = q.load(opt.model, { model_file = opt.model_file, dtype = "f32" })
  found = importance.collect(model, q.fs.read(opt.calibration), { chunks = opt.chunks })
  if opt.importance ~= "" then importance.save(found, opt.importance, 512) end
elseif opt.importance ~= "" then
  found = importance.load(opt.importance)
end

for _, line in ipairs(quantized.lines(quantized.finish(job, found and importance.tensors(found)))) do print(line) end
