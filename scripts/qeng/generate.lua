-- Text generation of one sequence: a KV cache over the whole context, one token a step.

local chat = require "qeng.chat"
local q = require "qeng.core"

local generate = {}

local Cache = {}
Cache.__index = Cache

-- Keys and values of every layer, [capacity, kv_heads, head_dim] each.
function generate.cache(model, capacity)
  local c = model.config
  local self = setmetatable({ length = 0, capacity = capacity, keys = {}, values = {} }, Cache)
  for i = 1, c.layers do
    self.keys[i] = q.zeros({ capacity, c.kv_heads, c.head_dim }, model.dtype, "kv")
    self.values[i] = q.zeros({ capacity, c.kv_heads, c.head_dim }, model.dtype, "kv")
  end
  return self
end

-- Stores the new rows of a layer; returns all rows so far. cache.length is the number before them.
function Cache:extend(layer, key, value)
  local count = key:shape()[1]
  self.keys[layer]:rows(self.length, count):copy(key)
  self.values[layer]:rows(self.length, count):copy(value)
  return self.keys[layer]:rows(0, self.length + count), self.values[layer]:rows(0, self.length + count)
end

function Cache:free()
  for i = 1, #self.keys do self.keys[i]:free(); self.values[i]:free() end
end

-- An iterator over token ids that continue `ids` (an array). opt: max_tokens, stop (set of ids), and the sampler's options.
function generate.tokens(model, ids, opt)
  if #ids == 0 then q.error("value", "generate: the prompt is empty") end
  local limit = model.config.max_position
  if #ids >= limit then q.error("value", ("generate: a prompt of %d tokens leaves no room in the model's %d positions"):format(#ids, limit)) end
  local room = math.min(opt.max_tokens or 256, limit - #ids)
  local cache = generate.cache(model, #ids + room)
  local sampler = q.sampler {
    temperature = opt.temperature, top_k = opt.top_k, top_p = opt.top_p, min_p = opt.min_p,
    repetition_penalty = opt.repetition_penalty, seed = opt.seed,
  }
  sampler:prompt(ids)
  local input, produced, done = ids, 0, false
  return function()
    if done or produced == room then
      cache:free()
      return nil
    end
    local id = q.no_grad(q.scope, function()
      local hidden = model:hidden(input, cache.length, cache)
      local last = hidden:rows(#input - 1, 1)
      return sampler:next(q.linear(last, model.head, { out = "f32" }))
    end)
    cache.length = cache.length + #input
    if opt.stop and opt.stop[id] then
      done = true
      cache:free()
      return nil
    end
    sampler:accept(id)
    input, produced = { id }, produced + 1
    return id
  end
end

-- The ids that end an answer: eos of generation_config.json, of the tokenizer, and the ChatML ones.
function generate.stops(model)
  local stops, tokenizer = {}, model.tokenizer
  local eos = tokenizer:info().eos
  if eos then stops[eos] = true end
  for _, name in ipairs { "<|im_end|>", "<|endoftext|>", "<|eot_id|>" } do
    local id = tokenizer:id(name)
    if id then stops[id] = true end
  end
  local path = model.dir and model.dir .. "/generation_config.json"
  if path and q.fs.kind(path) == "file" then
    local ids = q.json.decode(q.fs.read(path)).eos_token_id
    if type(ids) == "number" then ids = { ids } end
    for _, id in ipairs(type(ids) == "table" and ids or {}) do stops[id] = true end
  end
  return stops
end

-- The bytes at the end of `text` that begin a UTF-8 character and do not finish it.
local function unfinished(text)
  for back = 1, math.min(3, #text) do
    local byte = text:byte(-back)
    if byte >= 0xC0 then
      local need = byte >= 0xF0 and 4 or byte >= 0xE0 and 3 or 2
      return back < need and back or 0
    elseif byte < 0x80 then
      return 0
    end
  end
  return 0
end

-- An iterator over pieces of text (whole UTF-8 characters). opt: prompt (text), or messages (chat), and as above.
function generate.text(model, opt)
  local tokenizer = model.tokenizer
  if not tokenizer then error(model.tokenizer_error, 0) end
  local ids
  if opt.messages then
    ids = chat.template(tokenizer, opt.template, opt.system):prompt(opt.messages)
  else
    ids = tokenizer:encode(opt.prompt, { special = true })
    local info = tokenizer:info()
    if info.add_bos and info.bos then table.insert(ids, 1, info.bos) end
  end
  opt.stop = opt.stop or generate.stops(model)
  local next_id, pending = generate.tokens(model, ids, opt), ""
  return function()
    while true do
      local id = next_id()
      if not id then
        local rest = pending
        pending = ""
        return rest ~= "" and rest or nil
      end
      pending = pending .. (tokenizer:is_special(id) and "" or tokenizer:bytes(id))
      local tail = unfinished(pending)
      if #pending > tail then
        local piece = pending:sub(1, #pending - tail)
        pending = pending:sub(#pending - tail + 1)
        return piece
      end
    end
  end
end

-- The whole answer as one string.
function generate.answer(model, opt)
  local parts = {}
  for piece in generate.text(model, opt) do parts[#parts + 1] = piece end
  return table.concat(parts)
end

return generate
