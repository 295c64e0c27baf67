-- Fits changes of basis to captures, for kv_evaluate.lua to judge on the documents that are left.
--   qeng recipes/kv_rotations.lua --captures captures --documents 15 --out rotations
--   qeng recipes/kv_evaluate.lua --captures captures --from 16 --rotations rotations --methods transport/sphere3
local fit = require "qeng.turboquant.fit"
local progress = require "qeng.console.progress"
local q = require "qeng"

local opt = q.options {
  "Fits rotations and other changes of basis, layer by layer; goes on where it was stopped.",
  { "captures", nil, "folder of kv_capture.lua", kind = "input", required = true },
  { "documents", 15, "the first so many are fitted to", min = 1 },
  { "names", fit.names, "transport (of keys, from their and the queries' moments), values (which channels matter), " ..
    "and the learned so8_ ones" },
  { "bits", 3, "of the codes that learned rotations are fitted to", min = 1, max = 8 },
  { "rows", 64, "keys of a document and head that those are fitted to", min = 8 },
  { "out", "rotations", "output folder, of this recipe alone", kind = "folder" },
  "device",
}
for _, name in ipairs(opt.names) do
  if not fit.known[name] then
    q.error("usage", ("--names %s; expected some of %s"):format(name, table.concat(fit.names, ", ")))
  end
end
q.use_device(opt)
q.fs.mkdir(opt.out)
q.fs.hold(opt.out)
local line = progress.new()
opt.watch = function(i, count) line:line(("layer %d of %d"):format(i, count)) end
fit.run(opt.captures, opt.out, opt)
line:finish()
print(opt.out .. ": layer_000.safetensors and on, fitted to " .. opt.documents .. " documents")
