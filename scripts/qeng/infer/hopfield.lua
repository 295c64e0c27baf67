-- q.hopfield: an associative store of hidden states, a Hopfield network (Ramsauer et al. 2020, arXiv 2008.02217).
-- What is stored are unit vectors; a cue is answered by one step of the network, softmax(beta K cue), which weighs what
-- it holds.

local q = require "qeng.core"

local Hopfield = {}
Hopfield.__index = Hopfield

-- opt: beta: how sharply the nearest counts (16).
local function new(model, opt)
  return setmetatable({ model = model, beta = opt and opt.beta or 16, values = {}, rows = {} }, Hopfield)
end

-- The mean of a text's last hidden states, [hidden].
function Hopfield:state(text)
  return q.keep(q.no_grad(q.scope, function() return self.model:hidden(text):to("f32"):mean(1):compute() end))
end

-- Stores a text, or a state, under a value.
function Hopfield:store(text, value)
  self.rows[#self.rows + 1] = type(text) == "string" and self:state(text) or text
  self.values[#self.values + 1], self.keys = value, nil
end

local function unit(x) return x / (x:norm(-1, true) + 1e-12) end

-- Hidden states share most of what they are: what is left of them without their mean tells them apart.
local function prepared(self)
  if #self.rows == 0 then q.error("value", "hopfield: nothing is stored") end
  if not self.keys then
    q.no_grad(function()
      local all = q.stack(self.rows)
      self.mean = q.keep((#self.rows > 1 and all:mean(1) or all[0] * 0):compute())
      self.keys = q.keep(unit(all - self.mean):compute())
    end)
  end
end

-- The weight [n] of each thing stored for a text or a state; they sum to 1.
function Hopfield:weights(text)
  prepared(self)
  local cue = type(text) == "string" and self:state(text) or text
  return q.no_grad(function() return (self.keys:matmul(unit(cue - self.mean)) * self.beta):softmax():compute() end)
end

-- The value that weighs most, all of its entries together, and its share.
function Hopfield:recall(text)
  local shares, best = {}
  for i, weight in ipairs(self:weights(text):table()) do
    local value = self.values[i]
    shares[value] = (shares[value] or 0) + weight
  end
  for _, value in ipairs(self.values) do
    if not best or shares[value] > shares[best] then best = value end
  end
  return best, shares[best]
end

-- The share of what is stored that its own state is answered with when noise of this size, as a share of its length, is
-- added: recall at the present load.
function Hopfield:recalled(noise, seed)
  prepared(self)
  local right = 0
  for i, row in ipairs(self.rows) do
    local found = q.no_grad(q.scope, function()
      local centred = row - self.mean
      local drawn = unit(q.randn(row:shape(), { seed = seed or 0, subsequence = i })) * centred:norm() * noise
      return self:weights(row + drawn):argmax():item()
    end)
    if found == i - 1 then right = right + 1 end
  end
  return right / #self.rows
end

return { new = new, Hopfield = Hopfield }
