-- A model over sequence states in pages (infer/sequences.lua): what one step over many sequences computes. Rows of
-- different sequences do not change each other's bits: linear layers are q.row_linear, attention is
-- q.pages.paged_attention, and the rest works row by row. A step reads its tokens, positions, slots, pages and lengths
-- from tensors that are made once and filled for each step. So a step of a shape that comes again is captured as a
-- program, and replayed without Lua.
--
--   local runner = paged.new(model, { pages = 64 })
--   local id = runner.pool:open(0)
--   runner:extend(id, ids)                                     -- false if pages lack
--   runner:run({ { id = id, count = #ids } }, { #ids - 1 }, function(logits, first) ... end)
--   runner.pool:commit(id)

local kv_auto = require "qeng.model.kv_auto"
local lora = require "qeng.model.lora"
local nn = require "qeng.model.nn"
local q = require "qeng.core"
local sequences = require "qeng.infer.sequences"

local paged = {}

-- ---------------------------------------------------------------- seq.inference: what the layers of a model see

local Inference = {}
Inference.__index = Inference

-- The adapter of a layer for a range of rows: range.adapter is one made by peft.read, false for none, nil for the
-- model's own.
local function lora_of(layer, range)
  if range.adapter == nil then return layer.lora end
  return range.adapter and range.adapter.layers[layer.name] or nil
end

local function same_rotation(a, b)
  return a == b or a and b and a.block == b.block and a.signs == b.signs
end

-- The outputs of up to three layers that read x, or of the parts of a fused one.
function Inference:project(x, layers)
  local fused = layers[1].parts and layers[1]
  if fused then layers = fused:fused(nil, x.rows) end
  local weights, biases, scales, rotation = {}, {}, {}, layers[1].rotation
  for i, layer in ipairs(layers) do
    weights[i], biases[i], scales[i] = layer.weight, layer.bias or false, layer.row_scale or false
    if not same_rotation(layer.rotation, rotation) then
      local results = {}  -- each has its own input
      for k, one in ipairs(layers) do results[k] = self:project(x, { one }) end
      return unpack(results)
    end
  end
  -- Adapters read x itself.
  local y = q.row_linear(rotation and q.hadamard(x, rotation) or x, weights, { bias = biases, scale = scales })
  for _, range in ipairs(self.ranges) do
    local whole = #self.ranges == 1
    local input = whole and x or x:rows(range.first, range.count)
    local of_parts = fused and lora_of(fused, range)
    of_parts = of_parts and fused:fused(of_parts, x.rows)
    for i, layer in ipairs(layers) do
      local adapter
      if fused then adapter = of_parts and of_parts[i].lora else adapter = lora_of(layer, range) end
      if adapter then
        local inner = q.row_linear(input, { adapter.a })
        local output = whole and y[i] or y[i]:rows(range.first, range.count)
        q.row_linear(inner[1], { adapter.b }, { alpha = adapter.scale, into = { output } })
        if adapter.magnitude then
          adapter.columns = adapter.columns or { lora.columns(layer, adapter) }
          output:copy(q.scale_columns(output, unpack(adapter.columns, 1, 2)))
        end
      end
    end
  end
  return unpack(y, 1, #layers)
end

-- fn(rows, adapter_of) of the rows of each adapter in every one of `list`, and the results end to end.
-- adapter_of(layer) is the layer's adapter there, or nil.
function Inference:by_adapter(list, fn)
  local results = {}
  for i, range in ipairs(self.ranges) do
    local rows = {}
    for k, tensor in ipairs(list) do
      rows[k] = #self.ranges == 1 and tensor or tensor:rows(range.first, range.count)
    end
    results[i] = fn(rows, function(layer) return lora_of(layer, range) end)
  end
  return #results == 1 and results[1] or q.concat(results, 1)
end

-- ---------------------------------------------------------------- the runner

local Runner = {}
Runner.__index = Runner

local head_rows = 64    -- logits held at once, if a step wants those of a whole prompt
-- A step of so many rows is captured even where a sequence has several, as with guesses: Lua's part of it is large.
local few_rows = 32
local captured_rows = 512  -- of all captured programs, whose memory grows with their rows
local top_logits = 256  -- of a row, that a device says are the largest: most samplers need no others

-- Tokens of a page if nothing else is asked for, of sequences of up to `context` tokens.
function paged.page_tokens(model, context)
  local tokens
  for _, kind in ipairs(model.states) do
    if kind.page then tokens = math.max(tokens or 0, kind:page(context)) end
  end
  return tokens or 16
end

-- Whether a page is as large as a sequence's keys and values, or larger.
function paged.keeps_states(model)
  for _, kind in ipairs(model.states) do
    if kind.page then return true end
  end
  return false
end

-- Pages of a sequence of so many tokens, if nothing else is asked for.
function paged.pages(model, tokens) return math.ceil(tokens / paged.page_tokens(model, tokens)) end

-- Pages of a cache, if nothing else is asked for: what so many sequences of up to 4096 tokens need, or if the model
-- keeps recurrent states, up to 16 of them.
function paged.usual_pages(model, most, context, page_tokens)
  if paged.keeps_states(model) then most = math.min(most, 16) end
  return most * math.ceil(math.min(context, 4096) / page_tokens)
end

-- Bytes that a page of tokens takes in the sequence states of all layers.
function paged.page_bytes(model, kv, page_tokens)
  return sequences.bytes(model, page_tokens, { kv = kv, page_tokens = page_tokens })
end

-- The tensor that make() returns, in no scope, so that free() frees it.
local function kept(make) return q.scope(function() return q.keep(make()) end) end

-- opt: pages; kv (a type of model/kv_types.lua, by default the model's dtype), page_tokens (see above), remember (reuse
-- full pages of equal beginnings, true), rows and sequences (the most of a step: 512, 64), context (the most tokens of
-- a sequence, the model's positions; longrope chooses its factors by it). Of kv = auto runner.kv is what it comes to.
-- blank (as for sequences.new), headless (all rows are wanted, and what use gets of them is what model.forward gives).
-- What asks for the hidden states of each step's rows sets runner.watch = {input = "post" or "pre", for what the last
-- norm gives or reads; see(hidden, parts)}, and copies them.
function paged.new(model, opt)
  local c, kv = model.config, kv_auto.resolve(model, opt.kv or model.dtype)
  local rows, most = opt.rows or 512, opt.sequences or 64
  local page_tokens = opt.page_tokens or paged.page_tokens(model, opt.context or c.max_position)
  local pool = sequences.new(model, {
    pages = opt.pages, page_tokens = page_tokens, kv = kv, rows = rows, sequences = most, remember = opt.remember,
    context = opt.context or c.max_position, blank = opt.blank,
  })
  local self = setmetatable({
    model = model, kv = kv, page_tokens = page_tokens, rows = rows, sequences = most, programs = {}, seen = {},
    page_bytes = pool.page_bytes, pool = pool, headless = opt.headless, hook_turn = model.hook_turn, captured = 0,
  }, Runner)
  for _, kind in ipairs(model.states) do self.by_spans = self.by_spans or kind.by_spans end
  for _, layer in ipairs(model.linears) do
    if layer.lora then layer.lora.columns = nil end  -- it may have been trained since
  end
  local context = math.min(c.max_position, opt.context or c.max_position, opt.pages * page_tokens)
  self.rope, self.rope_local = model:rope(context)
  local function make(shape, dtype) return kept(function() return q.empty(shape, dtype, "kv") end) end
  local probe = q.logits.on_host(q.zeros { 1 })
  self.far = probe ~= nil  -- whether the host does not read the device's memory
  if probe then probe:free() end
  self.most = math.min(opt.pages, math.ceil(c.max_position / page_tokens))
  self.step = {
    tokens = make({ rows }, "i32"), positions = make({ rows }, "i32"), slots = make({ rows }, "i32"),
    wanted = make({ rows }, "i32"),
    cu_q = make({ most + 1 }, "i32"), lengths = make({ most }, "i32"),
    before = make({ most }, "i32"), after = make({ most }, "i32"),
    pages = make({ most * self:bucket(self.most) }, "i32"),
  }
  if pool.exact_pages > 0 then
    self.step.exact_slots = make({ rows }, "i32")
    self.step.exact = make({ most * self:bucket(self.most) }, "i32")
  end
  return self
end

-- The width of the page table for sequences of up to `pages` pages: a power of two, so that shapes come again.
function Runner:bucket(pages)
  local width = 4
  while width < pages do width = 2 * width end
  return width
end

function Runner:extend(id, ids, first, last) return self.pool:extend(id, ids, first, last) end

-- The step's tensors for so many rows, sequences and pages; shape.wanted: how many of the rows get logits, nil: all.
function Runner:views(shape)
  local s, rows, count, most = self.step, shape.rows, shape.count, shape.most
  return {
    tokens = s.tokens:rows(0, rows), positions = s.positions:rows(0, rows), slots = s.slots:rows(0, rows),
    cu_q = s.cu_q:rows(0, count + 1), lengths = s.lengths:rows(0, count),
    before = s.before:rows(0, count), after = s.after:rows(0, count),
    pages = s.pages:rows(0, count * most):reshape { count, most },
    wanted = shape.wanted and s.wanted:rows(0, shape.wanted),
    exact_slots = s.exact and s.exact_slots:rows(0, rows),
    exact = s.exact and s.exact:rows(0, count * most):reshape { count, most },
  }
end

-- What layers see of a step (model/nn.lua: seq).
function Runner:sequence(step, ranges)
  return {
    positions = step.positions, rope = self.rope, rope_local = self.rope_local,
    inference = setmetatable({ states = self.pool.states, step = step, ranges = ranges }, Inference),
  }
end

-- Hidden states of the step's rows, and those that self.watch asks for.
function Runner:hidden(step, ranges)
  local hidden, residual = self.model.forward(step.tokens, self:sequence(step, ranges))
  return hidden, self.watch and (self.watch.input == "pre" and residual or hidden) or nil
end

-- And where the host does not read the device's memory: the largest of each row, and their ids.
function Runner:logits(hidden)
  if self.headless then return hidden end
  local model = self.model
  local logits = nn.softcap(q.block("head", q.row_linear, hidden, { model.head }, { out = "f32" })[1], model.config)
  if not self.far then return logits end
  return logits, q.topk(logits, math.min(top_logits, logits:shape()[2]))
end

-- A step is a table: shape (what Runner:views takes), ranges, wanted, fill(step) and spans(), which write and tell what
-- it is over, and seen(hidden) for those who watch.

-- A step of few rows, of one adapter. The second of a shape is captured, the others replay it. An adapter is told by
-- its salt: its memory may later hold another one.
function Runner:replay(what, use)
  if self.model.hooks then return false end  -- they may read values
  local shape, range, wanted = what.shape, what.ranges[1], what.wanted
  local key = ("%d/%d/%d/%d/%d"):format(shape.rows, shape.count, shape.most, shape.wanted or 0, range.salt)
  local found = self.programs[key]
  if not found then
    self.seen[key] = (self.seen[key] or 0) + 1
    if self.seen[key] < 2 then return false end
    if self.captured + shape.rows > captured_rows then self:forget() end
    local step = q.scope(function()
      local views = self:views(shape)
      for name, tensor in pairs(views) do views[name] = q.keep(tensor) end
      return views
    end)
    found = { step = step }
    what.fill(step)
    if step.wanted then step.wanted:set(wanted) end
    found.logits = kept(function()
      local logits
      found.program, found.hidden, logits, found.top, found.top_ids = q.capture(q.no_grad, function()
        local hidden, seen = self:hidden(step, { range })
        return seen, self:logits(step.wanted and q.embedding(hidden, step.wanted) or hidden)
      end)
      for _, name in ipairs { "hidden", "top", "top_ids" } do found[name] = found[name] and q.keep(found[name]) end
      return logits
    end)
    self.programs[key], self.captured = found, self.captured + shape.rows
  else
    what.fill(found.step)
    if found.step.wanted then found.step.wanted:set(wanted) end
  end
  found.program:run()
  if self.watch then what.seen(found.hidden) end
  use(found.logits, 1, found.top, found.top_ids)
  return true
end

-- Calls use for the logits of the wanted rows of hidden states, as Runner.run says.
function Runner:read(hidden, step, what, use)
  local wanted, most = what.wanted, self.headless and what.shape.rows or head_rows
  if step.wanted then
    step.wanted:set(#wanted > 0 and wanted or { 0 })
    hidden = q.embedding(hidden, step.wanted)
  end
  for first = 0, #wanted - 1, most do
    q.scope(function()
      local logits, top, top_ids = self:logits(hidden:rows(first, math.min(most, #wanted - first)))
      use(logits, first + 1, top, top_ids)
    end)
  end
end

-- Runs a step.
function Runner:compute(what, use)
  local shape = what.shape
  local comes_again = shape.rows == shape.count and shape.rows == #what.wanted
    or shape.rows <= few_rows and #what.wanted > 0 and not self.by_spans
  if comes_again and #what.ranges == 1 and self:replay(what, use) then return end
  q.no_grad(q.scope, function()
    local step = self:views(shape)
    what.fill(step)
    step.spans = what.spans()
    local hidden, seen = self:hidden(step, what.ranges)
    if self.watch then what.seen(seen) end
    self:read(hidden, step, what, use)
  end)
end

-- Where peers have layers: computes up to them, and sends the step on its way.
local function launch_over_peers(self, what)
  q.no_grad(q.scope, function()
    local step = self:views(what.shape)
    what.fill(step)
    step.spans = what.spans()
    local pieces, seq = self.model.pieces, self:sequence(step, what.ranges)
    local x, branch = pieces.advance(pieces.enter(step.tokens, seq), seq)
    what.flight = self.pool.peers:launch(branch and x + branch or x, what)
  end)
end

-- And computes on from what they gave.
local function land_over_peers(self, what, use)
  q.no_grad(q.scope, function()
    local hidden, residual = self.model.pieces.leave(self.pool.peers:land(what.flight))
    if self.watch then what.seen(self.watch.input == "pre" and residual or hidden) end
    self:read(hidden, self:views(what.shape), what, use)
  end)
end

-- Begins a step: the model over the last part.count tokens of each sequence part.id, whose slots are reserved. Parts of
-- one adapter follow each other (part.adapter, and part.salt, a number for each adapter). Of rows `wanted`, which
-- ascend and count from 0 over all parts, Runner.land gives the logits. Where peers have layers, several steps may be
-- under way, and land in the order they began (Runner.depth says how many are worth it); else one.
function Runner:launch(parts, wanted)
  self:keep_up()
  local ids, counts, ranges, rows, longest = {}, {}, {}, 0, 1
  for i, part in ipairs(parts) do
    ids[i], counts[i] = part.id, part.count
    local last = ranges[#ranges]
    if not last or last.adapter ~= part.adapter then
      last = { adapter = part.adapter, salt = part.salt or 0, first = rows, count = 0 }
      ranges[#ranges + 1] = last
    end
    last.count, rows = last.count + part.count, rows + part.count
    longest = math.max(longest, math.ceil(self.pool:length(part.id) / self.page_tokens))
  end
  local shape = { rows = rows, count = #parts, most = self:bucket(longest) }
  if #wanted < rows then shape.wanted = math.max(#wanted, 1) end
  local what = {
    shape = shape, ranges = ranges, wanted = wanted, ids = ids, counts = counts,
    fill = function(step) self.pool:fill(step, ids, counts) end,
    spans = function() return self.pool:spans(ids, counts) end,
    seen = function(hidden) self.watch.see(hidden, parts) end,
  }
  if self.pool.peers then launch_over_peers(self, what) end
  return what
end

-- Ends a step. use(logits, first, top, top_ids) gets the logits [n, vocab] of rows wanted[first] .., in pieces, and may
-- not keep them; top, top_ids: the largest of each row, where the logits are not in the host's memory.
function Runner:land(what, use)
  if self.pool.peers then land_over_peers(self, what, use) else self:compute(what, use) end
end

function Runner:run(parts, wanted, use) self:land(self:launch(parts, wanted), use) end

function Runner:depth() return self.pool.peers and self.pool.peers:depth() or 1 end

-- Under other hooks or edited weights the same tokens have other values: what was captured and remembered goes. To be
-- called before pages are shared, too.
function Runner:keep_up()
  if self.hook_turn == self.model.hook_turn then return end
  self:forget()
  self.pool:forget()
  self.hook_turn = self.model.hook_turn
end

-- The most kernels and copies of a captured step; 0 where none was recorded, as by a CPU.
function Runner:nodes()
  local nodes = 0
  for _, found in pairs(self.programs) do nodes = math.max(nodes, found.program:stats().nodes) end
  return nodes
end

-- Drops the captured programs, for example after the model's weights were replaced.
function Runner:forget()
  for _, found in pairs(self.programs) do
    found.program:free()
    found.logits:free()
    for _, name in ipairs { "hidden", "top", "top_ids" } do if found[name] then found[name]:free() end end
    for _, tensor in pairs(found.step) do tensor:free() end
  end
  self.programs, self.seen, self.captured = {}, {}, 0
end

function Runner:free()
  self:forget()
  self.pool:free()
  for _, tensor in pairs(self.step) do tensor:free() end
end

-- Calls visit(k, row, top) for the rows of logits, k from 0. top: options for the sampler, which then reads no logits
-- where the largest decide (top and ids, as Runner.run gives them). Otherwise, or if `whole`, a device is read once for
-- the logits of all rows.
function paged.each_row(logits, visit, top, ids, whole)
  local copies
  if top and not whole then
    copies = { q.logits.on_host(top), q.logits.on_host(ids) }
  else
    top, copies = nil, { q.logits.on_host(logits) }
  end
  local rows = not top and copies[1] or logits
  for k = 0, rows:shape()[1] - 1 do
    visit(k, rows:rows(k, 1), top and { top = copies[1]:rows(k, 1), top_ids = copies[2]:rows(k, 1) } or {})
  end
  for _, copy in ipairs(copies) do copy:free() end
end

-- A runner's tensors lie on its model's runtime, and its steps run there.
local make, launch, land, extend = paged.new, Runner.launch, Runner.land, Runner.extend
function paged.new(model, opt) return model.runtime:use(make, model, opt) end
function Runner:launch(...) return self.model.runtime:use(launch, self, ...) end
function Runner:land(...) return self.model.runtime:use(land, self, ...) end
function Runner:extend(...) return self.model.runtime:use(extend, self, ...) end

return paged
