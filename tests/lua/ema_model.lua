-- A model file as a user writes one (recipes/README.md), for sequences_test.lua. In every other layer a moving average
-- over tokens takes the place of attention. For each page it keeps the average at the last token of the page. It is
-- slow: one token at a time.
local nn = require "qeng.model.nn"
local q = require "qeng"

local Ema = { hf = "EmaForCausalLM", model_type = "ema", lora = { "v_proj", "o_proj" } }

function Ema.config(file)
  local c = file:decoder(1e4)
  c.decay = file:get("decay", 0.8)
  return c
end

-- ---------------------------------------------------------------- the state: a row a page, and one of zeros

local Kind, State = {}, {}
Kind.__index, State.__index = Kind, State

function Kind:bytes(tokens, shape) return math.ceil(tokens / shape.page_tokens) * self.dim * 4 end

function Kind:open(shape)
  local function make(size, dtype)
    return q.scope(function() return q.keep(q.zeros(size, dtype, "kv")) end)
  end
  return setmetatable({
    rows = make({ shape.pages + 1, 1, self.dim }, "f32"), from = make({ shape.rows }, "i32"),
    to = make({ shape.rows }, "i32"), dim = self.dim, zero = shape.pages, page_tokens = shape.page_tokens,
  }, State)
end

-- Where the average of each sequence is read, and after which rows it is kept: after the last token of each page.
function State:prepare(step)
  local bounds, lengths, pages, size = step.cu_q:table(), step.lengths:table(), step.pages:table(), self.page_tokens
  local from, to = {}, {}
  self.begins = {}
  for s, length in ipairs(lengths) do
    local count = bounds[s + 1] - bounds[s]
    local done = length - count
    from[s], self.begins[bounds[s]] = done > 0 and pages[s][math.ceil(done / size)] or self.zero, s
    for i = 1, count do
      local at = done + i
      to[bounds[s] + i] = (i == count or at % size == 0) and pages[s][math.ceil(at / size)] or -1
    end
  end
  self.from:set(from)
  self.to:set(to)
  self.sequences = #lengths
end

-- x: [rows, dim]
function State:advance(x, decay)
  local rows, table_ = x:shape()[1], self.rows:reshape { self.zero + 1, self.dim }
  local function keep(first, average)
    local count = average:shape()[1]
    local as_heads = average:reshape { count, 1, self.dim }
    q.pages.kv_store(as_heads, as_heads, self.to:rows(first, count), self.rows, self.rows)
  end
  local average = q.embedding(table_, self.from:rows(0, self.sequences), "f32")
  if rows == self.sequences then
    average = average * decay + x * (1 - decay)
    keep(0, average)
    return average
  end
  local result, begun = q.empty({ rows, self.dim }, "f32"), average
  for row = 0, rows - 1 do
    local s = self.begins[row]
    average = (s and begun:rows(s - 1, 1) or average) * decay + x:rows(row, 1) * (1 - decay)
    keep(row, average)
    result:rows(row, 1):copy(average)
  end
  return result
end

function State:copy(pairs_) q.pages.copy_pages(self.rows, pairs_, 1) end
function Kind:rollback(length, _, page_tokens) return length - length % page_tokens end

function State:free()
  for _, tensor in ipairs { self.rows, self.from, self.to } do tensor:free() end
end

-- ---------------------------------------------------------------- the mixer

local function average(block, c)
  local p = block:at "ema"
  local v_proj, o_proj = p:linear("v_proj", c.hidden, c.hidden), p:linear("o_proj", c.hidden, c.hidden)
  local state = block:state(setmetatable({ dim = c.hidden }, Kind))

  return function(x, seq)
    local v = nn.project(seq, x, v_proj)
    local y
    if seq.inference then
      y = seq.inference.states[state]:advance(v, c.decay)
    else  -- of one document, and without gradients
      y = q.empty(v:shape(), "f32")
      local last = q.zeros { 1, c.hidden }
      for row = 0, v:shape()[1] - 1 do
        last = last * c.decay + v:rows(row, 1) * (1 - c.decay)
        y:rows(row, 1):copy(last)
      end
    end
    return nn.project(seq, y, o_proj)
  end
end

-- Norms only of what is added, as in OLMo 2: blocks with attention read the residual stream as it is.
local function after(p, c, place)
  return place:find "_branch$" and p:norm(place .. "_norm", c.hidden, c.eps) or nil
end

function Ema.build(model, source, c)
  return nn.decoder(model, source, c, function(p, index)
    if index % 2 == 0 then return nn.block(p, c, { mixer = average }) end
    return nn.block(p, c, { mixer = nn.attention {}, norms = after })
  end)
end

return Ema
