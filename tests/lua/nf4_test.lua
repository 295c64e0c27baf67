-- Base models in bitsandbytes' NF4 (tests/golden/nf4_golden.py): decoded, they are the numbers that it dequantizes, and
-- give transformers' logits. (Parts and settings: tests/unit/nf4_test.cpp.)
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused

local golden = "tests/golden/nf4"
local expected = q.json.decode(q.fs.read(golden .. "/expected.json"))
local function near(what, model, rows)
  local got = model:logits(expected.tokens):table()
  for i, row in ipairs(rows) do
    for j, value in ipairs(row) do
      assert(math.abs(got[i][j] - value) < 2e-5, ("%s: %g, expected %g"):format(what, got[i][j], value))
    end
  end
end
for name, rows in pairs(expected.logits) do
  local model = q.load(golden .. "/" .. name, { dtype = "f32" })
  near(name, model, rows)
  -- Saved, it is an ordinary model. Adapters are trained on it as on any.
  model:save(at(name))
  near(name .. " saved", q.load(at(name)), rows)
  assert(q.load(golden .. "/" .. name).dtype == "bf16")
  model:lora { rank = 2, targets = { "q_proj" } }
  near(name .. " with a new adapter", model, rows)
  local said, streaming = scratch.said(q.load, golden .. "/" .. name, { dtype = "f32", weights = "stream" })
  near(name .. " streamed", streaming, rows)
  assert(said:find("weights of bitsandbytes' NF4 are decoded, and take four times their size in memory", 1, true), said)
end

-- Settings that are another format, and weights of another model.
local source = golden .. "/double"
local function changed(name, edit)
  q.fs.mkdir(at(name))
  q.fs.copy(source .. "/model.safetensors", at(name) .. "/model.safetensors")
  local config = q.json.decode(q.fs.read(source .. "/config.json"))
  edit(config)
  q.fs.write(at(name) .. "/config.json", q.json.encode(config))
  return at(name)
end
refused("bnb_4bit_quant_type is fp4; nf4 is supported: convert the unquantized model instead", q.load,
  changed("fp4", function(c) c.quantization_config.bnb_4bit_quant_type = "fp4" end))
refused("is [128, 64], expected [256, 64]", q.load, changed("shape", function(c) c.intermediate_size = 256 end))
q.fs.remove(scratch.folder)
print "nf4: ok"
