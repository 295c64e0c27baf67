-- The model that a plan is of, before anything is loaded: how it is built in a rehearsal, whatever it was called.

local config = require "qeng.model.config"
local hub = require "qeng.hub"
local models = require "qeng.model"
local onebit = require "qeng.onebit"
local options = require "qeng.console.options"
local q = require "qeng.core"
local shapes = require "qeng.plan.shapes"

local folders = {}  -- of names on a hub, which is asked once: {path, whole}

-- The path of `model`, and whether weights may be read there.
local function find(model)
  if shapes.find(model) then return model, true end
  if folders[model] and q.fs.kind(folders[model].path) then return folders[model].path, folders[model].whole end
  local path, whole = hub.resolve_texts(model)
  if path ~= model then folders[model] = { path = path, whole = whole } end
  return path, whole
end

-- opt: model, model_file, mode, dtype and stored, as q.plan takes them. Returns a function that builds the model (in a
-- rehearsal), its name, and where its tokenizer may be.
return function(opt)
  local values, name, found_in = opt.model, "this config", nil
  if type(values) == "string" then
    name = values
    local path, whole = find(values)
    local kind = q.fs.kind(path)
    local stored = kind == "file" and not path:find "%.json$"
    if kind == "dir" then
      found_in = path
      for _, entry in ipairs(whole and q.fs.list(path) or {}) do
        stored = stored or entry:find "%.safetensors$" ~= nil
      end
    end
    if stored and opt.mode == "onebit" then
      q.error("unsupported", ("plan: one-bit training starts from a config; %s holds weights"):format(path))
    elseif stored then
      if opt.stored then
        q.error("value", ("stored = %s: %s says itself how its weights are stored"):format(opt.stored, path))
      end
      local how = { model_file = opt.model_file, dtype = opt.dtype, writable = opt.mode == "full", weights = "map" }
      return function() return models.load(path, how) end, name
    end
    if kind == "dir" then
      values = config.values(path .. "/config.json")
    elseif kind == "file" then
      values = config.values(path)
    else
      values = shapes.find(values)
      if not values then
        local near = options.nearest(name, shapes.names())
        q.error("value", ("plan: %s is no file, no folder and no shape%s; shapes are %s"):format(name,
          #near > 0 and " (did you mean " .. near[1] .. "?)" or "", table.concat(shapes.names(), ", ")))
      end
    end
    if not whole and values.quantization_config ~= nil then
      q.error("unsupported",
        ("plan: %s is packed (quantization_config), and how is in its weights, which are not here: fetch them " ..
          "(recipes/fetch.lua %s), then plan again"):format(name, name))
    end
  end
  local word = values.dtype or values.torch_dtype
  -- kept, and computed in f32 (model/init.lua)
  local half = word == "float16" and not opt.dtype and opt.mode ~= "full" and opt.mode ~= "onebit"
  local dtype = opt.dtype or (word == "float32" or word == "float16") and "f32" or "bf16"
  return function()
    if opt.mode == "onebit" then return onebit.random(values, { rule = "counter", dtype = dtype }) end
    return models.random(values, {
      dtype = dtype,
      weights = function(weight, shape)
        local linear = weight:find "_proj[%w_]*%.weight$" or weight:find(".experts.", 1, true)
        local as = linear and opt.stored or half and #shape > 1 and "f16" or dtype == "fp8" and "bf16"
          or dtype
        return q.empty(shape, as, "weights")
      end,
    })
  end, name, found_in
end
