-- What a worker computes: layers of a model, over sequence states in pages. The coordinator has the pool that says
-- which page is whose (infer/sequences.lua); here are the pages of these layers alone, and each step tells what it is
-- over (q.pages.unpack). A step has the bits that the layers would give in one process.
--
--   local stage = stages.new(q.load(path, { range = { first = 8, count = 8 } }))
--   stage:open(1, { kv = "f16", pages = 64, page_tokens = 16, rows = 320, sequences = 64, context = 4096 })
--   y = stage:step(1, text, x)

local paged = require "qeng.infer.paged"
local q = require "qeng.core"
local sequences = require "qeng.infer.sequences"

local stages = {}
local Stage = {}
Stage.__index = Stage

-- model: of a range of layers, without ends.
function stages.new(model) return setmetatable({ model = model, caches = {}, adapters = {} }, Stage) end

-- The dtype of what goes from layer to layer.
function stages.dtype(model) return model.config.f32_residual and "f32" or model.dtype end

-- Opens sequence states under a number that the coordinator gives: shape as for paged.new. Returns the bytes of their
-- pages.
function Stage:open(number, shape)
  local model = self.model
  if self.caches[number] then q.error("value", ("cache %d is open already"):format(number)) end
  local cache = { steps = 0 }
  cache.input = q.scope(function() return q.keep(q.zeros({ shape.rows, model.config.hidden }, stages.dtype(model))) end)
  local layers = setmetatable({
    peers = false,
    forward = function(tokens, seq)
      local x, branch = model.pieces.advance(cache.input:rows(0, tokens:elements()), seq)
      return branch and x + branch or x
    end,
  }, { __index = model })
  cache.runner = paged.new(layers, {
    kv = shape.kv, pages = shape.pages, page_tokens = shape.page_tokens, rows = shape.rows,
    sequences = shape.sequences, context = shape.context, remember = false, headless = true,
    blank = shape.blank,
  })
  cache.limits = {
    pages = shape.pages, exact_pages = cache.runner.pool.exact_pages, page_tokens = shape.page_tokens,
    rows = shape.rows, sequences = shape.sequences, positions = model.config.max_position,
  }
  self.caches[number] = cache
  return shape.pages * sequences.bytes(model, shape.page_tokens, shape, true)
end

local function cache_of(self, number)
  return self.caches[number] or q.error("value", ("no cache %d is open"):format(number))
end

-- The adapters of the rows of a step, by the numbers that the coordinator gives them (infer/request.lua: 0 is the
-- model's own, 1 none).
local function ranges_of(self, told)
  local ranges = {}
  for i, range in ipairs(told) do
    local adapter = nil
    if range.salt == 1 then
      adapter = false
    elseif range.salt > 1 then
      adapter = self.adapters[range.salt] or q.error("value", ("no adapter %d was sent"):format(range.salt))
    end
    ranges[i] = { adapter = adapter, salt = range.salt, first = range.first, count = range.count }
  end
  return ranges
end

-- Runs a step over a cache: its text (PagePool:pack), and put(x), which writes the rows that come in into a tensor of
-- their shape. use(y) gets the rows that go out, and must not keep them.
function Stage:step(number, text, put, use)
  local cache = cache_of(self, number)
  local runner = cache.runner
  local step, shape = q.pages.unpack(text, cache.limits)
  if shape.most ~= runner:bucket(shape.most) or shape.most > runner:bucket(runner.most) then
    q.error("format", ("step: a page table of %d columns"):format(shape.most))
  end
  runner.pool:copy(shape.copies, shape.exact_copies)
  put(cache.input:rows(0, shape.rows))
  local wanted = {}
  for i = 1, shape.rows do wanted[i] = i - 1 end
  runner:compute({
    shape = { rows = shape.rows, count = shape.count, most = shape.most }, wanted = wanted,
    ranges = ranges_of(self, shape.ranges),
    fill = function(tensors)
      step:fill(tensors)
      runner.pool:prepare(tensors)
    end,
    spans = function() return shape.spans end,
  }, use)
end

-- Takes an adapter (model:read_adapter) under a number. scale: a factor of its own.
function Stage:add_adapter(number, adapter, scale)
  for _, layer in pairs(adapter.layers) do layer.scale = layer.scale * scale end
  self.adapters[number] = adapter
end

function Stage:close(number)
  local cache = cache_of(self, number)
  cache.runner:free()
  cache.input:free()
  self.caches[number] = nil
end

function Stage:free()
  for number in pairs(self.caches) do self:close(number) end
  self.model, self.adapters = nil, {}
  collectgarbage()
  collectgarbage()
end

return stages
