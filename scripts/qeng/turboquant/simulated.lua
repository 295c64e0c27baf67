-- A cache for scoring that stores nothing: attention of one whole document by tensor algebra, with what a codec's code
-- stands for in the place of keys and values. So any method of methods.lua meets the model's logits, under the same
-- exact tail and sinks as the engine's types (model/kv_types.lua), also those that the engine has no kernel for.
--
--   simulated.use(model, { method = methods.parse(...), tail = 128, sinks = 4 }, function() ... end)

local q = require "qeng.core"

local simulated = {}
local State = {}
State.__index = State

local rows_at_once = 256  -- of queries: the scores of a head are [rows, the tokens up to the last of them]

-- The attention of one head: query [t, dim], keys and values as they are and as codes {exact, coded}, [t, dim].
local function head(query, keys, values, how, opt)
  local tokens, parts = query:shape()[1], {}
  for first = 0, tokens - 1, rows_at_once do
    parts[#parts + 1] = q.scope(function()
      local count = math.min(rows_at_once, tokens - first)
      local seen_tokens = first + count
      local function of(x) return { exact = x.exact:rows(0, seen_tokens), coded = x.coded:rows(0, seen_tokens) } end
      local k, v = of(keys), of(values)
      local at = q.arange(0, seen_tokens):reshape { 1, seen_tokens }
      local own = q.arange(first, first + count):reshape { count, 1 }
      local exact = (at:lt(opt.sinks) + at:gt(own - opt.tail)):clamp(0, 1):to "f32"
      local rows = (query:rows(first, count) * how.scale):compute()
      local function logits(x) return rows:matmul(x, { transpose_b = true }) end
      local scores = (logits(k.exact) * exact + logits(k.coded) * (1 - exact)):compute()
      if (how.softcap or 0) > 0 then scores = (scores / how.softcap):tanh() * how.softcap end
      local seen = at:le(own)
      if how.window > 0 then seen = seen * at:gt(own - how.window) end
      local weights = q.where(seen:gt(0), scores, -1e30):softmax():compute()
      return q.keep(((weights * exact):compute():matmul(v.exact)
        + (weights * (1 - exact)):compute():matmul(v.coded)):compute())
    end)
  end
  return #parts == 1 and parts[1] or q.concat(parts, 1)
end

-- See Pages:attend of model/kv_pages.lua. The step has one sequence, and all of its tokens.
function State:attend(_, query, key, value, how)
  local shape, kv_heads, opt = query:shape(), key:shape()[2], self.opt
  if how.sinks then q.error("unsupported", "simulated caches have no learned sinks") end
  local scale = { scale = how.scale or 1 / math.sqrt(shape[3]), softcap = how.softcap, window = how.window or 0 }
  local group, outputs, layer = shape[2] / kv_heads, {}, self.layer
  local seen = opt.method.look(layer, query, key)
  opt.bits[layer] = seen.bits
  local function of(x, h) return x:slice(2, h, h + 1):reshape({ shape[1], -1 }):to("f32"):compute() end
  for kv = 0, kv_heads - 1 do
    local keys, values = { exact = of(key, kv) }, { exact = of(value, kv) }
    keys.coded = opt.method.reconstruct(keys.exact, layer, kv, "key", seen)
    values.coded = opt.method.reconstruct(values.exact, layer, kv, "value", seen)
    for h = kv * group, kv * group + group - 1 do
      outputs[h + 1] = head(of(query, h), keys, values, scale, opt)
    end
  end
  return q.stack(outputs, 2):to(query:dtype()):compute()
end

function State:free() end
function State:copy() end
function State:stored() return {} end

-- body(), with scorers that it makes (infer/scoring.lua) on simulated caches. opt: {method =, tail =, sinks =}. Leaves
-- in opt.bits the bits of a coordinate that each layer took.
function simulated.use(model, opt, body)
  local kinds = {}
  opt.bits = {}
  for i, kind in ipairs(model.states) do
    kinds[i] = kind
    if kind.layer then
      model.states[i] = {
        bytes = function() return 0 end,
        rollback = function(_, length) return length end,
        open = function() return setmetatable({ layer = kind.layer, opt = opt }, State) end,
      }
    end
  end
  local result = { pcall(body) }
  for i, kind in ipairs(kinds) do model.states[i] = kind end
  if not result[1] then error(result[2], 0) end
  return unpack(result, 2)
end

return simulated
