-- Adds tokens to a model before it is trained, and trains embedding and head beside its adapters so that it learns
-- them.

local q = require "qeng.core"

local new_tokens = {}

-- The files that a folder's tokenizer is read from.
local tokenizer_files = {
  "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
  "vocab.json", "merges.txt",
  "chat_template.jinja",
}

function new_tokens.copy_tokenizer(from, to)
  for _, name in ipairs(tokenizer_files) do
    if q.fs.kind(from .. "/" .. name) == "file" then q.fs.copy(from .. "/" .. name, to .. "/" .. name) end
  end
end

local function decode_file(path) return q.json.decode(q.fs.read(path)) end
local function encode_file(path, value) q.fs.write(path, q.json.encode(value, { pretty = true }) .. "\n") end

-- Writes the model's tokenizer into the folder, with `names` added from id `first` on.
local function write_tokenizer(model, names, first, folder)
  local from = model.tokenizer_dir or model.dir
  if from then new_tokens.copy_tokenizer(from, folder) end
  if q.fs.kind(folder .. "/tokenizer.json") ~= "file" and q.fs.kind(folder .. "/tokenizer.model") ~= "file" then
    model.tokenizer:save(folder)
  end
  local config_path, json_path = folder .. "/tokenizer_config.json", folder .. "/tokenizer.json"
  local config = q.fs.kind(config_path) == "file" and decode_file(config_path) or {}
  local json = q.fs.kind(json_path) == "file" and decode_file(json_path)
  local plain = folder .. "/added_tokens.json"  -- beside a SentencePiece model
  local added = q.fs.kind(plain) == "file" and decode_file(plain) or {}
  for i, name in ipairs(names) do
    local id = first + i - 1
    local token = {
      content = name, single_word = false, lstrip = false, rstrip = false, normalized = false, special = true,
    }
    if type(config.added_tokens_decoder) == "table" then config.added_tokens_decoder[("%d"):format(id)] = token end
    if json then
      local entry = { id = id }
      for key, value in pairs(token) do entry[key] = value end
      json.added_tokens = type(json.added_tokens) == "table" and json.added_tokens or q.json.array {}
      table.insert(json.added_tokens, entry)
    else
      added[name] = id
    end
  end
  encode_file(config_path, config)
  if json then encode_file(json_path, json) else encode_file(plain, added) end
end

-- Puts `tensor` in the place of the model's parameter `name`.
local function replace(model, name, tensor)
  for _, parameter in ipairs(model.parameters) do
    if parameter.name == name then parameter.tensor, parameter.row_scale = tensor, nil end
  end
  tensor:label(name)
end

local embed_name, head_name = "model.embed_tokens.weight", "lm_head.weight"

local function refuse_stored(model, what)
  if model.stream then
    q.error("unsupported", what .. ": the weights are streamed; load the model without --weights stream")
  end
  if model.rotations then q.error("unsupported", what .. ": the embedding is stored rotated") end
  if model.names then q.error("unsupported", ("%s: of %s it is not supported"):format(what, model.arch.hf)) end
end

-- Gives the model other matrices for embedding and head, of its dtype and in memory. Both have the same number of rows,
-- which becomes the vocabulary. The head may be the embedding.
function new_tokens.set_embeddings(model, embed, head)
  refuse_stored(model, "embedding and head")
  if model.config.tied and head ~= embed then
    model.config.tied, model.config_values.tie_word_embeddings = false, false
    table.insert(model.parameters, { name = head_name, tensor = head })
  end
  replace(model, embed_name, embed)
  if head ~= embed then replace(model, head_name, head) end
  model.embed, model.head, model.own_embeddings = embed, head, true
  model.config.vocab = embed:shape()[1]
  model.config_values.vocab_size = model.config.vocab
end

-- Trains embedding and head beside the adapters. They get gradients only when Model:trainable() is asked for: inference
-- does not need them.
function new_tokens.train_embeddings(model)
  refuse_stored(model, "training the embedding")
  if not model.own_embeddings then  -- they lie in the model's file
    local function own(tensor)
      return q.keep(tensor:dtype() == model.dtype and tensor:clone() or tensor:to(model.dtype))
    end
    local embed = own(model.embed)
    new_tokens.set_embeddings(model, embed, model.config.tied and embed or own(model.head))
  end
  model.extra = { { name = embed_name, tensor = model.embed } }
  if not model.config.tied then table.insert(model.extra, { name = head_name, tensor = model.head }) end
end

-- Adds `names` as special tokens. The model's tokenizer is then the one of `folder`, which is written here. Their rows
-- of embedding and head are the mean of the others. Returns the names that were new. written: another process has
-- written the folder.
function new_tokens.add(model, names, folder, written)
  refuse_stored(model, "new tokens")
  local fresh, seen = {}, {}
  for _, name in ipairs(names) do
    if name == "" then q.error("value", "new tokens: a name is empty") end
    if not model.tokenizer:id(name) and not seen[name] then fresh[#fresh + 1], seen[name] = name, true end
  end
  if #fresh == 0 then return fresh end
  local first = model.tokenizer:vocab_size()
  if first > model.config.vocab then
    q.error("value", ("new tokens: the tokenizer has %d tokens, the model %d"):format(first, model.config.vocab))
  end
  if not written then
    q.fs.write_dir(folder, function(temporary) write_tokenizer(model, fresh, first, temporary) end)
  end
  local tokenizer = q.tokenizer(folder)
  for i, name in ipairs(fresh) do
    if tokenizer:id(name) ~= first + i - 1 then
      q.error("unsupported", ("new tokens: %s cannot be added to this tokenizer's files"):format(name))
    end
  end
  model.tokenizer, model.tokenizer_dir = tokenizer, folder
  local function grown(matrix) return q.keep(q.adapters.new_rows(matrix, first, #fresh, { dtype = model.dtype })) end
  local embed = grown(model.embed)
  new_tokens.set_embeddings(model, embed, model.config.tied and embed or grown(model.head))
  return fresh
end

new_tokens.embed_name, new_tokens.head_name = embed_name, head_name
return new_tokens
