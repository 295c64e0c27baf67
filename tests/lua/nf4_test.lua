-- Base models in bitsandbytes' NF4 (tests/golden/nf4_golden.py): decoded, they are the numbers that it dequantizes, and
-- give transformers' logits.
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
end

-- Parts that do not fit, and settings that are another format.
local source = golden .. "/double"
local function changed(key, value)
  local folder = at("bad_" .. key)
  q.fs.mkdir(folder)
  q.fs.copy(source .. "/model.safetensors", folder .. "/model.safetensors")
  local config = q.json.decode(q.fs.read(source .. "/config.json"))
  config.quantization_config[key] = value
  q.fs.write(folder .. "/config.json", q.json.encode(config))
  return function() q.load(folder) end
end
refused("bnb_4bit_quant_type is fp4; nf4 is supported", changed("bnb_4bit_quant_type", "fp4"))
refused("load_in_4bit is false", changed("load_in_4bit", false))
refused("bnb_4bit_quant_storage is bfloat16", changed("bnb_4bit_quant_storage", "bfloat16"))
refused("cannot be streamed", q.load, source, { weights = "stream" })
local file = q.safetensors.open(source)
local weight = "model.layers.0.mlp.up_proj.weight"
local function parts(more)
  local all = { codes = file:tensor(weight), map = file:tensor(weight .. ".quant_map"),
    absmax = file:tensor(weight .. ".absmax"),
    nested_map = file:tensor(weight .. ".nested_quant_map"), nested_absmax = file:tensor(weight .. ".nested_absmax"),
      nested_offset = 0.1 }
  for key, value in pairs(more) do all[key] = value or nil end
  return all
end
assert(q.decode_nf4(parts {}, { 128, 64 }, "f32"):dtype() == "f32")
refused("the weight is u8 [4096, 1], expected u8 of 4064 elements", q.decode_nf4, parts {}, { 127, 64 }, "f32")
refused("rows of 96 inputs are no whole blocks of 64", q.decode_nf4, parts {}, { 64, 96 }, "f32")
refused("nested_quant_map is missing", q.decode_nf4, parts { nested_map = false }, { 128, 64 }, "f32")
refused("absmax is u8", q.decode_nf4, parts { block = 32 }, { 128, 64 }, "f32")
refused("blocks of 0", q.decode_nf4, parts { block = 0 }, { 128, 64 }, "f32")
refused("u8 is none of f32, bf16, f16", q.decode_nf4, parts {}, { 128, 64 }, "u8")
print "nf4: ok"
