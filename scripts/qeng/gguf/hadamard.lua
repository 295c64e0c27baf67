-- Weights that are stored rotated (PrismML's metadata prism.hadamard.*, version 1): what has to be done to their
-- inputs.
--   a weight of weight_names:  y = W H(s * x) / sqrt(block), blockwise over the last dimension of x
--   a table of inverse_weight_names holds rotated rows: h = s * H(row) / sqrt(block)
-- s is the vector of sign_values with the width of x (sign_mode explicit), or all ones (identity).

local names = require "qeng.gguf.names"
local q = require "qeng.core"

local hadamard = {}

local space = "prism.hadamard."
hadamard.keys = {}
for key in ([[
  version block_size transform axis sign_mode sign_widths sign_values weight_names inverse_weight_names gdn_v_grouped
]]):gmatch "%S+" do
  hadamard.keys[space .. key] = true  -- gdn_v_grouped: models/qwen3_5.lua reads it
end

local function set_of(file, path, key)
  local set, list = {}, file:get(space .. key) or {}
  if type(list) ~= "table" then q.error("format", ("%s: %s%s is not a list"):format(path, space, key)) end
  for _, name in ipairs(list) do
    if not file:info(name) then
      q.error("format", ("%s: %s%s names %s, which it does not hold"):format(path, space, key, tostring(name)))
    end
    set[name] = true
  end
  return set
end

-- Signs by width; nil for identity.
local function signs_of(file, path)
  local mode = file:get(space .. "sign_mode")
  if mode == "identity" then return nil end
  if mode ~= "explicit" then
    q.error("unsupported", ("%s: %ssign_mode = %s; identity and explicit are known"):format(path, space,
      tostring(mode)))
  end
  local widths, values = file:get(space .. "sign_widths") or {}, file:get(space .. "sign_values") or {}
  local signs, at = {}, 0
  for _, width in ipairs(widths) do
    local vector = {}
    for i = 1, width do
      vector[i] = values[at + i]
      if vector[i] ~= 1 and vector[i] ~= -1 then
        q.error("format", ("%s: %ssign_values holds something else than 1 and -1, or too few"):format(path, space))
      end
    end
    at = at + width
    signs[width] = q.keep(q.tensor(vector, "f32"))
  end
  if at ~= #values then
    q.error("format", ("%s: %ssign_values has %d values, sign_widths ask for %d"):format(path, space, #values, at))
  end
  return signs
end

-- nil if the file's weights are not rotated. Otherwise function(name, columns) -> forward, inverse: the rotation
-- before the parameter of that Hugging Face name, and the one after a lookup in it. Each is {block =, signs =} or nil.
-- arch: the model file that has these names.
function hadamard.read(file, path, arch)
  local given = false
  for _, key in ipairs(file:keys()) do given = given or key:sub(1, #space) == space end
  if not given then return nil end
  local function must(key, value)
    local found = file:get(space .. key)
    if found ~= value then
      q.error("unsupported", ("%s: %s%s = %s; only %s is known"):format(path, space, key, tostring(found),
        tostring(value)))
    end
  end
  must("version", 1)
  must("transform", "normalized-sylvester-walsh-hadamard")
  must("axis", "input-last-dimension")
  local block = file:get(space .. "block_size")
  local function is_power_of_two(n) return 2 ^ math.floor(math.log(n) / math.log(2) + 0.5) == n end
  if type(block) ~= "number" or block < 2 or block > 65536 or not is_power_of_two(block) then
    q.error("format", ("%s: %sblock_size is %s, expected a power of two"):format(path, space, tostring(block)))
  end
  local forward, inverse = set_of(file, path, "weight_names"), set_of(file, path, "inverse_weight_names")
  local signs = signs_of(file, path)
  return function(name, columns)
    local stored = names.to_gguf(name, arch)
    if not forward[stored] and not inverse[stored] then return nil end
    if columns % block ~= 0 then
      q.error("format", ("%s: %s has %d columns, not a multiple of the rotation's block of %d"):format(path, stored,
        columns, block))
    end
    if signs and not signs[columns] then
      q.error("format", ("%s: %ssign_widths lacks %d, the columns of %s"):format(path, space, columns, stored))
    end
    local rotation = { block = block, signs = signs and signs[columns] }
    return forward[stored] and rotation, inverse[stored] and rotation
  end
end

-- A rotated weight unrotated, in f32: it then reads x itself.
function hadamard.undo(weight, rotation)
  return q.hadamard(weight:to "f32", { block = rotation.block, signs = rotation.signs, inverse = true })
end

return hadamard
