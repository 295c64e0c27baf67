-- Tensors of one's own in files: several by name as safetensors, one as NumPy's .npy.

local q = require "qeng.core"

local function expect_ending(fn, path, ending, otherwise)
  if type(path) == "string" and path:sub(-#ending) == ending then return end
  q.error("value", ("%s: %s: expected a path that ends in %s; %s"):format(fn, tostring(path), ending, otherwise))
end

-- opt: dtype, metadata, as for q.safetensors.save.
function q.save(path, tensors, opt)
  expect_ending("save", path, ".safetensors", "q.save_npy(path, tensor) writes one tensor for NumPy")
  local list = {}
  for name, tensor in pairs(type(tensors) == "table" and tensors or {}) do
    if type(name) ~= "string" then
      q.error("value", "save: tensors need names: q.save(path, { weight = w, bias = b })")
    end
    list[#list + 1] = { name, tensor }
  end
  if #list == 0 then q.error("value", "save: no tensors; expected a table, { weight = w, bias = b }") end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  q.safetensors.save(path, list, opt)
end

-- Memory of their own: what is written to a tensor does not change the file, and a new file not the tensor.
function q.load_tensors(path)
  local file, tensors = q.weights.open(path), {}
  for _, name in ipairs(file:names()) do
    tensors[name] = file:tensor(name, { copy = true, label = "activations" }):label(name)
  end
  file:close()
  return tensors
end

local save_npy, load_npy = q.save_npy, q.load_npy

function q.save_npy(path, tensor)
  expect_ending("save_npy", path, ".npy", "q.save(path, { name = tensor }) writes safetensors")
  save_npy(path, tensor)
end

function q.load_npy(path)
  local tensor, remark = load_npy(path)
  if remark ~= "" then io.stderr:write(path, ": ", remark, "\n") end
  return tensor
end
