-- POST /v1/embeddings, as OpenAI's, and POST /v1/rerank, as Jina's: documents by the cosine of their embeddings to the
-- query's. An embedding is of the last hidden states: as the folder's 1_Pooling/config.json says, else their mean; of
-- length 1.

local ffi = require "ffi"

local look = require "qeng.model.look"
local lora = require "qeng.model.lora"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

-- "mean", "last" or "first": which of a text's hidden states stand for it.
local function pooling(model)
  local path = model.dir and model.dir .. "/1_Pooling/config.json"
  if not path or q.fs.kind(path) ~= "file" then return "mean" end
  local says = q.json.decode(q.fs.read(path))
  return says.pooling_mode_lasttoken and "last" or says.pooling_mode_cls_token and "first" or "mean"
end

-- model:hidden under an adapter that a request names, or nil: under the model's own.
local function hidden(model, adapter, ids)
  if not adapter then return model:hidden(ids) end
  local layers = {}
  for i, layer in ipairs(model.linears) do layers[i] = adapter.layers[layer.name] or false end
  return lora.with(model, layers, model.hidden, model, ids)
end

-- The embedding of token ids, an array of `size` numbers.
local function embed(model, adapter, how, ids, size)
  return q.no_grad(q.scope, function()
    local states = hidden(model, adapter, ids):to("f32")
    local pooled = how == "mean" and states:mean(1) or states[how == "last" and -1 or 0]
    if size then pooled = pooled:slice(-1, 0, size) end
    return (pooled / (pooled:norm() + 1e-12)):compute():table()
  end)
end

local digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function base64(bytes)
  local out = {}
  for i = 1, #bytes, 3 do
    local a, b, c = bytes:byte(i, i + 2)
    local n = a * 65536 + (b or 0) * 256 + (c or 0)
    for k = 0, 3 do
      local digit = math.floor(n / 64 ^ (3 - k)) % 64 + 1
      out[#out + 1] = (k == 2 and not b or k == 3 and not c) and "=" or digits:sub(digit, digit)
    end
  end
  return table.concat(out)
end

local function encoded(values)
  return base64(ffi.string(ffi.new("float[?]", #values, values), 4 * #values))
end

-- Texts or ids as lists of ids, none longer than the context.
local function inputs(found, value, param)
  if type(value) == "string" or type(value[1]) == "number" then value = { value } end
  if #value == 0 or #value > 2048 then
    problem.raise(400, ("Invalid value for '%s': %d inputs, expected 1 to 2048."):format(param, #value), param)
  end
  local all = {}
  for i, one in ipairs(value) do
    local ok, ids = pcall(look.ids, found.model, one)
    if not ok then
      problem.raise(400, ("Invalid value for '%s[%d]': %s."):format(param, i - 1, ids.message or tostring(ids)), param)
    end
    if #ids > found.engine.context then
      problem.raise(400, ("'%s[%d]' has %d tokens, the model takes %d"):format(param, i - 1, #ids,
        found.engine.context), param, "context_length_exceeded")
    end
    all[i] = ids
  end
  return all
end

-- Embeddings one after the other: between them the loop goes on with others.
local function embed_all(call, found, adapter, list, size)
  local model, all, tokens = found.model, {}, 0
  local how = pooling(model)
  for i, ids in ipairs(list) do
    if i > 1 then call:pause() end
    all[i], tokens = embed(model, adapter, how, ids, size), tokens + #ids
  end
  return all, tokens
end

return function(server)
  server:route("POST", "/v1/embeddings", function(call, given)
    local found, adapter = server:find(given.model)
    local size = found.model.config.hidden
    if given.dimensions and given.dimensions > size then
      problem.raise(400, ("Invalid value for 'dimensions': the model has %d."):format(size), "dimensions")
    end
    local all, tokens = embed_all(call, found, adapter, inputs(found, given.input, "input"), given.dimensions)
    local data = {}
    for i, values in ipairs(all) do
      data[i] = { object = "embedding", index = i - 1,
        embedding = given.encoding_format == "base64" and encoded(values) or q.json.array(values) }
    end
    call:reply(200, {
      object = "list", data = q.json.array(data), model = given.model or found.name,
      usage = { prompt_tokens = tokens, total_tokens = tokens },
    })
  end, { says = "embeds texts, as OpenAI's", fields = {
    { "input", "string|array", required = true }, { "model", "string" },
    { "encoding_format", "string", choices = { "float", "base64" }, default = "float" },
    { "dimensions", "integer", min = 1 }, { "user", "string", unused = true } } })

  server:route("POST", "/v1/rerank", function(call, given)
    local found, adapter = server:find(given.model)
    local list = inputs(found, given.documents, "documents")
    table.insert(list, 1, inputs(found, given.query, "query")[1])
    local all, tokens = embed_all(call, found, adapter, list)
    local results = {}
    for i = 2, #all do
      local score = 0
      for k, value in ipairs(all[i]) do score = score + value * all[1][k] end
      results[i - 1] = { index = i - 2, relevance_score = score,
        document = given.return_documents and { text = given.documents[i - 1] } or nil }
    end
    table.sort(results, function(a, b)
      if a.relevance_score ~= b.relevance_score then return a.relevance_score > b.relevance_score end
      return a.index < b.index
    end)
    for i = #results, (given.top_n or #results) + 1, -1 do results[i] = nil end
    call:reply(200, {
      model = given.model or found.name, results = q.json.array(results), usage = { total_tokens = tokens },
    })
  end, { says = "orders documents by how near they are to a query", fields = {
    { "query", "string", required = true }, { "documents", "array", required = true }, { "model", "string" },
    { "top_n", "integer", min = 1 }, { "return_documents", "boolean", default = false } } })
end
