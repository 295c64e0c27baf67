-- The folder of kv_rotations.lua, as a cache of codes reads it: for each layer the mean of keys of each head, the map
-- of turboquant/fit.lua and its inverse, and the mean of values.

local q = require "qeng.core"

local kv_bases = {}

local function path_of(folder, layer) return ("%s/layer_%03d.safetensors"):format(folder, layer) end

-- The tensors of a layer: {key = {mean, map, inverse}, value = {mean}}, in f32 on the runtime in use. kind: heads,
-- head_dim, value_dim, layer. Error "value" where the file is of another model.
function kv_bases.layer(folder, kind)
  local path = path_of(folder, kind.layer)
  local file = q.safetensors.open(path)
  local ok, found = pcall(q.scope, function()
    local prefix, heads = "transport.", kind.heads
    local function read(name, ...)
      local wanted = { ... }
      local info = file:info(prefix .. name)
      local fits = info and info.dtype == "f32" and #info.shape == #wanted
      for i = 1, fits and #wanted or 0 do fits = fits and info.shape[i] == wanted[i] end
      if not fits then
        q.error("value", ("%s: %s%s is not there as f32 [%s]: it was fitted for another model"):format(path, prefix,
          name, table.concat(wanted, ", ")))
      end
      return q.keep(file:tensor(prefix .. name))
    end
    local dim = kind.head_dim
    local list = { key = {
      mean = read("mean", heads, dim), map = read("map", heads, dim, dim), inverse = read("inverse", heads, dim, dim),
    } }
    if file:info(prefix .. "value_mean") then list.value = { mean = read("value_mean", heads, kind.value_dim) } end
    return list
  end)
  file:close()
  if not ok then error(found, 0) end
  return found
end

-- A text that tells two folders apart for these layers.
function kv_bases.identity(folder, layers)
  local parts = {}
  for i, layer in ipairs(layers) do parts[i] = q.host.hash(q.fs.read(path_of(folder, layer))) end
  return q.host.hash(table.concat(parts))
end

return kv_bases
