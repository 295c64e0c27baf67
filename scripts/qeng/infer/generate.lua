-- Generation for one caller: requests of an engine (infer/engine.lua) as iterators over tokens or text.

local engine = require "qeng.infer.engine"
local paged = require "qeng.infer.paged"
local request = require "qeng.infer.request"
local speculate = require "qeng.infer.speculate"

local generate = {}

-- The options of opt for an engine of its own, and those for the request.
local function split(opt)
  local own, rest = {}, {}
  for name, value in pairs(opt) do
    if name == "kv" or name == "chunk" then own[name] = value
    elseif name == "draft" and (type(value) == "table" or value == "mtp") then own.draft = value
    elseif name ~= "engine" then rest[name] = value end
  end
  return own, rest
end

-- Submits opt to opt.engine, or to an engine of its own with just the memory that it needs. Returns the request, and a
-- function that ends it and frees that memory.
local function start(model, opt)
  local own, rest = split(opt)
  if opt.engine then
    local r = opt.engine:submit(rest)
    return r, function() opt.engine:cancel(r) end
  end
  rest.ids = request.ids(model, opt)
  rest.prompt, rest.messages, rest.system, rest.tools, rest.template, rest.template_args = nil, nil, nil, nil, nil, nil
  local limit = model.config.max_position
  own.max_batch, own.remember = 1, false
  local most = #rest.ids + (request.count(opt, "max_tokens") or 256) + speculate.most
  own.pages = paged.pages(model, math.min(most, limit))
  local made = engine.new(model, own)
  local ok, r = pcall(made.submit, made, rest)
  if not ok then
    made:close()
    error(r, 0)
  end
  return r, function() made:close() end
end

-- An iterator over what take(request) gives, while the engine runs. At the end an error of the request or the engine is
-- raised. The second result is the request itself. The memory is freed at the end and after an error. A caller that
-- breaks off before may close the request's engine, or leave it to the collector.
local function drive(model, opt, take)
  local r, close = start(model, opt)
  local ready, at, closed, failure = {}, 0, false, nil
  return function()
    while at == #ready do
      if closed then
        local err = failure
        failure = nil
        if err then error(err, 0) end
        return nil
      end
      local ok, err = true, nil
      if r.state ~= "done" then ok, err = pcall(r.engine.step, r.engine) end
      if r.state == "done" or not ok then
        close()
        closed = true
        if ok then failure = r.error else failure = err end
      end
      ready, at = take(r), 0
    end
    at = at + 1
    return unpack(ready[at])
  end, r
end

-- An iterator over token ids that continue `ids` (an array). opt: as in infer/request.lua and infer/engine.lua.
function generate.tokens(model, ids, opt)
  local given, told = { ids = ids }, 0
  for name, value in pairs(opt or {}) do given[name] = value end
  return drive(model, given, function(r)
    local list = {}
    for i = told + 1, #r.output do list[#list + 1] = { r.output[i] } end
    told = #r.output
    return list
  end)
end

-- An iterator over pieces of text (whole UTF-8 characters) and their kind: "reasoning" with opt.reasoning, else nil.
-- Also returns the request, which has the figures. opt: as in infer/request.lua; engine, or for one of its own kv,
-- chunk and draft (a model).
function generate.text(model, opt)
  request.tokenizer(model)
  return drive(model, opt, request.take)
end

-- The whole answer as one string.
function generate.answer(model, opt)
  local parts = {}
  for piece in generate.text(model, opt) do parts[#parts + 1] = piece end
  return table.concat(parts)
end

generate.stops = request.stops

return generate
