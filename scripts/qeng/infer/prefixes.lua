-- Beginnings in files: what an engine remembers of a prompt's tokens, for a process that comes later. A file has whole
-- pages of every layer's state (infer/sequences.lua), byte by byte as they lie in the cache. So an answer that goes on
-- from them is the one that would have come without; on another backend but for its rounding. A file of other weights,
-- another adapter or another kind of cache is refused.

local digest = require "qeng.model.digest"
local q = require "qeng.core"
local request = require "qeng.infer.request"

local prefixes = {}

-- What has to be equal for pages to mean the same.
local function identity(engine, adapter)
  local runner = engine.runner
  return {
    format = "qeng prefix 1", weights = digest.of_weights(runner.model), kv = runner.kv,
    page_tokens = tostring(runner.page_tokens),
    adapter = adapter == false and "none" or adapter and digest.of_adapter(adapter) or "the model's",
  }
end

-- fn(id) with a new sequence, which is closed at its end. Ctrl-C waits.
local function with_sequence(engine, adapter, fn)
  return q.host.uninterrupted(function()
    return engine.model.runtime:use(function()
      local pool = engine.runner.pool
      local id = pool:open(request.salt(adapter))
      local result = { pcall(q.scope, fn, id, pool) }
      pool:close(id)
      if not result[1] then error(result[2], 0) end
      return unpack(result, 2)
    end)
  end)
end

-- fn(name, tensor as bytes, rows of a page) for all that a page has.
local function each_stored(pool, fn)
  for i, state in ipairs(pool.states) do
    for k, pair in ipairs(state:stored()) do fn(("%d.%d"):format(i, k), q.pages.bytes(pair[1]), pair[2]) end
  end
end

function prefixes.save(engine, path, ids, adapter)
  return with_sequence(engine, adapter, function(id, pool)
    pool:share(id, ids)
    local pages = pool:pages(id)
    local count = #pages * pool.page_tokens
    if count == 0 then
      q.error("value", ("engine: nothing is remembered of these %d tokens: only whole pages of %d are"):format(#ids,
        pool.page_tokens))
    end
    local held = {}
    for i = 1, count do held[i] = ids[i] end
    local list = { { "tokens", q.tensor(held, "i32") } }
    each_stored(pool, function(name, bytes, rows)
      local copy = q.empty({ #pages * rows, bytes:shape()[2] }, "u8", "workspace")
      for i, page in ipairs(pages) do copy:rows((i - 1) * rows, rows):copy(bytes:rows(page * rows, rows)) end
      list[#list + 1] = { name, copy }
    end)
    q.safetensors.save(path, list, { metadata = identity(engine, adapter) })
    return count
  end)
end

-- Checks that the file is of this engine, and returns its tokens.
local function checked(engine, path, file, adapter)
  for name, value in pairs(identity(engine, adapter)) do
    local there = file:get(name)
    if there ~= value then
      q.error("value", ("%s: %s is %s, here it is %s: what was computed there does not hold here"):format(path, name,
        tostring(there), value))
    end
  end
  local info = file:info "tokens"
  if not info or info.dtype ~= "i32" or #info.shape ~= 1 then q.error("value", path .. " has no list of tokens") end
  return request.ids(engine.model, { ids = file:tensor("tokens"):table() })
end

function prefixes.load(engine, path, adapter)
  local file = q.safetensors.open(path)
  local ok, ids = pcall(with_sequence, engine, adapter, function(id, pool)
    local ids = checked(engine, path, file, adapter)
    local count = #ids / pool.page_tokens
    if count < 1 or count ~= math.floor(count) then
      q.error("value", ("%s has %d tokens, which are no pages of %d"):format(path, #ids, pool.page_tokens))
    end
    each_stored(pool, function(name, bytes, rows)
      local info, width = file:info(name), bytes:shape()[2]
      if not info or info.dtype ~= "u8" or #info.shape ~= 2 or info.shape[1] ~= count * rows
        or info.shape[2] ~= width then
        q.error("value", ("%s: %s is not what %d pages of this model have"):format(path, name, count))
      end
    end)
    if not pool:extend(id, ids) then
      q.error("value", ("%s needs %d pages, the cache has room for %d"):format(path, count, pool:available()))
    end
    local pages = pool:pages(id)
    each_stored(pool, function(name, bytes, rows)
      local stored = file:tensor(name)
      for i, page in ipairs(pages) do bytes:rows(page * rows, rows):copy(stored:rows((i - 1) * rows, rows)) end
    end)
    pool:commit(id)
    if pool:stats().remembered == 0 then q.error("value", "engine: it was made with remember = false") end
    return ids
  end)
  file:close()
  if not ok then error(ids, 0) end
  return ids
end

function prefixes.forget(engine, ids, adapter)
  return with_sequence(engine, adapter, function(id, pool)
    pool:share(id, ids)
    return pool:forget(id) * pool.page_tokens
  end)
end

return prefixes
