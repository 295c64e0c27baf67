-- Queries, keys and values as a model computes them, of whole documents, in files:
--   manifest.json               settings, the model's shape, and each document's file with its hash
--   document_0001.safetensors   layers.3.query [tokens, heads, head_dim], layers.3.key and layers.3.value
--                               [tokens, kv_heads, head_dim], after RoPE
-- A capture that was stopped goes on: files that the manifest names with their hash stay as they are.

local digest = require "qeng.model.digest"
local q = require "qeng.core"

local capture = {}

local format = "qeng kv capture 1"

-- The documents of a text: `count` windows of `tokens` tokens that lie evenly apart, {start =, ids =}.
function capture.windows(ids, tokens, count)
  local room = math.floor(#ids / tokens)
  if room < count then
    q.error("value", ("the text has %d tokens: %d documents of %d; %d are asked for"):format(#ids, room, tokens, count))
  end
  local list = {}
  for d = 1, count do
    local start, window = math.floor((d - 1) * room / count) * tokens, {}
    for i = 1, tokens do window[i] = ids[start + i] end
    list[d] = { start = start, ids = window }
  end
  return list
end

local function same(a, b)
  return q.json.encode(a) == q.json.encode(b)
end

-- The layers that have keys and values.
function capture.layers(model)
  local list = {}
  for _, place in ipairs(model.places) do
    local layer = place:match "^layers%.(%d+)%.attn%.key$"
    if layer then list[#list + 1] = tonumber(layer) end
  end
  return list
end

-- Captures documents of a text to a folder. opt: {tokens =, documents =, layers = list of numbers (all that have keys),
-- store = "f16", "bf16" or "f32", watch = function(document, kept)}. Returns the manifest.
function capture.run(model, text, out, opt)
  local known, layers = {}, opt.layers
  for _, layer in ipairs(capture.layers(model)) do known[layer] = true end
  if not layers or #layers == 0 then layers = capture.layers(model) end
  for _, layer in ipairs(layers) do
    if known[layer] == nil then q.error("value", ("layer %d has no keys, or there is none"):format(layer)) end
    if not known[layer] then q.error("value", ("layer %d is named twice"):format(layer)) end
    known[layer] = false
  end
  local c = model.config
  local settings = {
    layers = layers, heads = c.heads, kv_heads = c.kv_heads, head_dim = c.head_dim,
    scale = c.attention_scale or 1 / math.sqrt(c.head_dim), tokens = opt.tokens, documents = opt.documents,
    store = opt.store, dtype = model.dtype, text = q.host.hash(text), tokenizer = model.tokenizer:hash(),
    weights = digest.of_weights(model),
  }
  local path = out .. "/manifest.json"
  local manifest = { format = format, settings = settings, documents = {} }
  if q.fs.kind(path) then
    local before = capture.manifest(out)
    if not same(before.settings, settings) then
      q.error("value", ("%s: was captured with other settings, or of another model or text; give another folder, or "
        .. "delete this one"):format(path))
    end
    manifest = before
  elseif q.fs.kind(out .. "/document_0001.safetensors") then
    q.error("value", ("%s: there are documents without a manifest; give another folder"):format(out))
  end
  local places = {}
  for _, layer in ipairs(layers) do
    for _, part in ipairs { "query", "key", "value" } do
      places[#places + 1] = ("layers.%d.attn.%s"):format(layer, part)
    end
  end
  for d, window in ipairs(capture.windows(model.tokenizer:encode(text), opt.tokens, opt.documents)) do
    local name = ("document_%04d.safetensors"):format(d)
    local file, entry = out .. "/" .. name, manifest.documents[d]
    local kept = entry and q.fs.kind(file) and q.host.hash(q.fs.read(file)) == entry.hash
    if not kept then
      q.scope(function()
        local seen, tensors = model:activations(window.ids, places), {}
        for place, tensor in pairs(seen) do tensors[place:gsub("%.attn", "")] = tensor end
        q.save(file, tensors, { dtype = opt.store })
        for _, tensor in pairs(seen) do tensor:free() end
      end)
      manifest.documents[d] = { file = name, start = window.start, hash = q.host.hash(q.fs.read(file)) }
      q.fs.write(path, q.json.encode(manifest, { pretty = true }) .. "\n")
    end
    if opt.watch then opt.watch(d, kept) end
  end
  return manifest
end

-- The manifest of a folder.
function capture.manifest(folder)
  local path = folder .. "/manifest.json"
  local manifest = q.json.decode(q.fs.read(path))
  if type(manifest) ~= "table" or manifest.format ~= format or type(manifest.settings) ~= "table"
    or type(manifest.documents) ~= "table" then
    q.error("file", ("%s: is no manifest of a capture (%s)"):format(path, format))
  end
  return manifest
end

-- The tensors of a document, by name, on the device. An error where the file is not the one that was captured.
function capture.document(folder, manifest, d)
  local entry = manifest.documents[d]
  local path = folder .. "/" .. entry.file
  if q.host.hash(q.fs.read(path)) ~= entry.hash then
    q.error("file", ("%s: is not the file that the manifest names; capture it again"):format(path))
  end
  return q.load_tensors(path)
end

return capture
