-- Hooks: functions of the user's that read or change what passes a place of a model. The parts in model/nn.lua name the
-- places (model.places), in the order that tokens pass them:
--   embed            the embedded tokens
--   layers.N.attn.query, .key, .value   what block N's attention computes with: [tokens, heads, head_dim], after RoPE
--   layers.N.attn    the output of block N's attention, before it is added to the residual stream
--   layers.N.mlp     that of its MLP
--   layers.N.mlp.router   of an MLP of experts, before it: the router's logits
--   layers.N.mlp.shared_expert   of such an MLP: the output of the expert that all tokens meet, without its gate
--   layers.N.mixer   the output of a block's recurrent mixer, as attn
--   layers.N         the residual stream after the block
--   norm             what the head reads
-- Without hooks a place costs a look at model.hooks, which is nil then. With them, generation captures nothing. When
-- they change, what was captured or remembered before is forgotten: model.hook_turn counts the changes. It also counts
-- those of weights that are put in the place of others (edit/init.lua).

local q = require "qeng.core"

local hooks = {}

-- x, or what the hook of this place makes of it.
function hooks.pass(model, place, x)
  local fn = model.hooks[place]
  local changed = fn and fn(x, place)
  if changed == nil then return x end
  local meta = getmetatable(changed)
  if type(changed) ~= "userdata" or type(meta) ~= "table" or meta.__name ~= "Tensor" then
    q.error("value", ("hook of %s: it returned a %s; expected a tensor, or nothing"):format(place, type(changed)))
  end
  local function text(tensor) return ("%s [%s]"):format(tensor:dtype(), table.concat(tensor:shape(), ", ")) end
  if text(changed) ~= text(x) then
    q.error("shape", ("hook of %s: it returned %s, expected %s as it was given"):format(place, text(changed), text(x)))
  end
  return changed
end

-- Says that the model computes something else from now on.
function hooks.changed(model) model.hook_turn = (model.hook_turn or 0) + 1 end

local function replace(model, set)
  model.hooks = next(set) and set or nil
  hooks.changed(model)
end

local function check(model, place)
  for _, known in ipairs(model.places) do
    if known == place then return end
  end
  q.error("value", ("hook: there is no place %s; model.places lists them: %s, ..."):format(tostring(place),
    table.concat(model.places, ", ", 1, math.min(4, #model.places))))
end

-- Sets the hook of a place, or with nil removes it.
function hooks.set(model, place, fn)
  check(model, place)
  if fn ~= nil and type(fn) ~= "function" then
    q.error("value", ("hook: a function expected for %s, or nil to remove it, got a %s"):format(place, type(fn)))
  end
  local set = {}
  for name, other in pairs(model.hooks or {}) do set[name] = other end
  set[place] = fn
  replace(model, set)
end

-- Calls fn() while see(x, place) gets what leaves these places, as the hooks that are set have changed it.
function hooks.watching(model, places, see, fn)
  local before, set = model.hooks or {}, {}
  for name, other in pairs(before) do set[name] = other end
  for _, place in ipairs(places) do
    check(model, place)
    set[place] = function(x)
      if before[place] then x = hooks.pass({ hooks = before }, place, x) end
      see(x, place)
      return x
    end
  end
  replace(model, set)
  local ok, err = pcall(fn)
  replace(model, before)
  if not ok then error(err, 0) end
end

local enough = {}

-- Calls fn() until something leaves this place, which see(x) gets: what comes after is not computed.
function hooks.up_to(model, place, see, fn)
  local ok, err = pcall(hooks.watching, model, { place }, function(x)
    see(x)
    error(enough, 0)
  end, fn)
  if not ok and err ~= enough then error(err, 0) end
end

return hooks
