-- Beginnings in files: what an engine remembers of a prompt's tokens, for a process that comes later. A file has whole
-- pages of every layer's state (infer/sequences.lua), byte by byte as they lie in the cache; of exact rows those pages
-- that are there, and a list of which. So an answer that goes on
-- from them is the one that would have come without; on another backend but for its rounding. A file of other weights,
-- another adapter or another kind of cache is refused.

local digest = require "qeng.model.digest"
local kv_bases = require "qeng.model.kv_bases"
local kv_types = require "qeng.model.kv_types"
local q = require "qeng.core"
local request = require "qeng.infer.request"

local prefixes = {}

-- What has to be equal for pages to mean the same.
local function identity(engine, adapter)
  local runner, layers = engine.runner, {}
  for _, kind in ipairs(runner.model.states) do layers[#layers + 1] = kind.layer end
  local bases = kv_types.parse(runner.kv).bases
  return {
    format = "qeng prefix 2", bases = bases and kv_bases.identity(bases, layers) or nil,
    weights = digest.of_weights(runner.model), kv = runner.kv,
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

-- fn(name, tensor as bytes, rows of a page, which) for all that pages have. which: pages, or the exact pages of those
-- that have any.
local function each_stored(pool, pages, exact, fn)
  for i, state in ipairs(pool.states) do
    for k, pair in ipairs(state:stored()) do
      fn(("%d.%d"):format(i, k), q.pages.bytes(pair[1]), pair[2], pair.exact and exact or pages)
    end
  end
end

-- Of a list of exact pages those that are there.
local function present(list)
  local found = {}
  for _, page in ipairs(list) do
    if page >= 0 then found[#found + 1] = page end
  end
  return found
end

local function refuse_peers(engine)
  if engine.runner.pool.peers then
    q.error("unsupported", "engine: peers have layers of this model, and what they keep of a beginning is in no file")
  end
end

function prefixes.save(engine, path, ids, adapter)
  refuse_peers(engine)
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
    local exact = pool:exact_of(id)
    local list = { { "tokens", q.tensor(held, "i32") }, { "exact", q.tensor(exact, "i32") } }
    each_stored(pool, pages, present(exact), function(name, bytes, rows, which)
      local copy = q.empty({ #which * rows, bytes:shape()[2] }, "u8", "workspace")
      for i, page in ipairs(which) do copy:rows((i - 1) * rows, rows):copy(bytes:rows(page * rows, rows)) end
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
  refuse_peers(engine)
  local file = q.safetensors.open(path)
  local ok, ids = pcall(with_sequence, engine, adapter, function(id, pool)
    local ids = checked(engine, path, file, adapter)
    local count = #ids / pool.page_tokens
    if count < 1 or count ~= math.floor(count) then
      q.error("value", ("%s has %d tokens, which are no pages of %d"):format(path, #ids, pool.page_tokens))
    end
    local list = file:info "exact"
    if not list or list.dtype ~= "i32" or #list.shape ~= 1 or list.shape[1] ~= count then
      q.error("value", path .. " does not say which pages have exact rows")
    end
    local exact = file:tensor("exact"):table()
    local kept, all = present(exact), {}
    for i = 1, count do all[i] = i end
    each_stored(pool, all, kept, function(name, bytes, rows, which)
      local info, width = file:info(name), bytes:shape()[2]
      if not info or info.dtype ~= "u8" or #info.shape ~= 2 or info.shape[1] ~= #which * rows
        or info.shape[2] ~= width then
        q.error("value", ("%s: %s is not what %d pages of this model have"):format(path, name, count))
      end
    end)
    if pool:available() < count then
      q.error("value", ("%s needs %d pages, the cache has room for %d"):format(path, count, pool:available()))
    end
    -- Page after page, as a long beginning has more pages than there are exact ones.
    local stored, exact_before = {}, 0
    each_stored(pool, all, kept, function(name) stored[name] = file:tensor(name) end)
    for i = 1, count do
      if not pool:extend(id, ids, (i - 1) * pool.page_tokens + 1, i * pool.page_tokens) then
        q.error("value", ("%s has exact rows of %d pages, the cache has room for fewer"):format(path, #kept))
      end
      local page, own = pool:pages(id)[i], pool:exact_of(id)[i]
      local has = exact[i] >= 0
      each_stored(pool, all, kept, function(name, bytes, rows, which)
        local at, to = i - 1, page
        if which == kept then at, to = exact_before, has and own or -1 end
        if to >= 0 then bytes:rows(to * rows, rows):copy(stored[name]:rows(at * rows, rows)) end
      end)
      if has then exact_before = exact_before + 1 elseif own >= 0 then pool:drop_exact(id, i) end
      pool:commit(id)
    end
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
