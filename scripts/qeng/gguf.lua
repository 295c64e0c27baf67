-- A GGUF file as a model's checkpoint.

local gguf_config = require "qeng.gguf_config"
local hadamard = require "qeng.gguf_hadamard"
local names = require "qeng.gguf_names"
local q = require "qeng.core"
local stream = require "qeng.stream"

local gguf = {}

-- Tensors that hold no weights of the network: tables that llama.cpp's older files keep, and what gguf_config reads.
local function is_table(name) return name == "rope_freqs.weight" or name:find("%.attn_rot_embd%.") ~= nil or name:find("%.rope_freqs%.") ~= nil end

-- The dtype of activations and of what is not a matrix: bf16 where all matrices are, f32 otherwise. Matrices of f16, of block
-- formats, and under f32 of bf16 stay as they are stored.
local function activation_dtype(file)
  for _, name in ipairs(file:names()) do
    local info = file:info(name)
    if #info.shape > 1 and info.dtype ~= "bf16" then return "f32" end
  end
  return "bf16"
end

-- The ids that end an answer, by the file's own word; those that llama.cpp has no key for are in one of ours (gguf_export.lua).
local function stop_ids(file)
  local ids = {}
  local function take(id) if type(id) == "number" then ids[#ids + 1] = id end end
  for _, key in ipairs { "eos", "eot", "eom" } do take(file:get("tokenizer.ggml." .. key .. "_token_id")) end
  local others = file:get "qeng.stop_token_ids"
  for _, id in ipairs(type(others) == "table" and others or {}) do take(id) end
  return ids
end

-- Brings the weights of an open GGUF or safetensors file into memory as q.load's options have it; returns whether they are there.
function gguf.into_memory(file, opt)
  if opt.weights and opt.weights ~= "copy" and opt.weights ~= "map" and opt.weights ~= "stream" then
    q.error("value", ("weights = %q: expected \"map\", \"copy\" or \"stream\""):format(tostring(opt.weights)))
  end
  if opt.weights == "map" or opt.weights == "stream" or not opt.weights and opt.writable then return false end
  return file:load { if_room = not opt.weights }
end

-- Opens `path` and returns {values = of a config.json, factors =, dtype =, rotations =, source(name, shape), finish(model)}. opt: dtype,
-- writable, weights, as q.load has them.
function gguf.open(path, opt)
  local file = q.gguf.open(path)
  stream.check(path, opt)
  local in_memory = gguf.into_memory(file, opt)
  local values, architecture, factors = gguf_config.read(file, path, hadamard.keys)
  local dtype = opt.dtype or activation_dtype(file)
  local known = {}
  local c = { heads = values.num_attention_heads, kv_heads = values.num_key_value_heads }

  local function source(name, shape)
    local stored = names.to_gguf(name, architecture)
    local info = stored and file:info(stored)
    if not info then q.error("format", ("%s: tensor %s is missing"):format(path, stored or name)) end
    known[stored] = true
    if names.plus_one(architecture, name) then
      return q.no_grad(function()
        return (file:tensor(stored, { dtype = "f32", shape = shape }) + q.zeros(shape, "f32"):fill(-1)):to(dtype)
      end)
    end
    local converted = info.dtype == "f32" or info.dtype == "bf16" and dtype == "bf16"
    local as = (converted or #shape == 1 or opt.writable) and dtype or nil
    return file:tensor(stored, {
      dtype = as, shape = shape, heads = names.heads(architecture, name, c), copy = opt.writable, stream = opt.weights == "stream",
      label = opt.weights == "stream" and "weights in files" or "weights",
      interleave = in_memory and (stored ~= "token_embd.weight" or not file:info "output.weight"),  -- not what is read by rows alone
    })
  end

  local function finish(model)
    for _, name in ipairs(file:names()) do
      if not known[name] and not is_table(name) then
        q.error("format", ("%s: tensor %s belongs to no part of a %s model"):format(path, name, architecture))
      end
    end
    model.gguf = { path = path, architecture = architecture }
    model.stop_ids = stop_ids(file)
    local ok, tokenizer = pcall(q.tokenizer, path)
    if ok then model.tokenizer = tokenizer else model.tokenizer_error = tokenizer end
    file:close()
  end
  return { values = values, factors = factors, dtype = dtype, rotations = hadamard.read(file, path), source = source, finish = finish }
end

return gguf
