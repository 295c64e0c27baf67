-- The pipeline experiment (recipes/ab_pipeline.lua): three ways to bring the same rows to the same model.
--   jsonl         records read from JSONL and tokenized when their row is due, on the thread that trains
--   packets       a .qubgpu file of the same records, tokenized once; a thread makes the batches
--   packets+drop  the same, with a share of the records treated as damaged (CRC-Drop)
-- The first two give the same rows to the bit, which is checked. For that, JSONL is told beforehand which records make
-- which row. Finding it out on the fly would cost JSONL more.

local adamw = require "qeng.train.adamw"
local chat = require "qeng.chat"
local data = require "qeng.data"
local held_out = require "qeng.train.held_out"
local models = require "qeng.model"
local pass = require "qeng.train.pass"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local schedule = require "qeng.train.schedule"
local trained_data = require "qeng.train.trained_data"

local ab = {}
ab.ways = { "jsonl", "packets", "packets+drop" }

-- What all runs share. opt: model (folder), jsonl, out, template, template_args, row_tokens, rows, long, eval_share,
-- drop.
function ab.setup(opt)
  local tokenizer = q.tokenizer(opt.model)
  local packed = opt.out .. "/data.qubgpu"
  local offsets, at = {}, 0
  for line in io.lines(opt.jsonl, "*L") do
    if #offsets == 0 and line:find "^%s*%[" then
      q.error("format", opt.jsonl .. ": is a JSON array; the experiment needs JSONL, one record a line")
    end
    if line:find "%S" then offsets[#offsets + 1] = at end
    at = at + #line
  end
  local counts = data.convert(opt.jsonl, packed,
    { tokenizer = tokenizer, template = opt.template, template_args = opt.template_args, max_bad = 0 })
  if #offsets ~= counts.records then
    q.error("format", ("%s: %d lines but %d records; the experiment needs JSONL, one record a line"):format(
      opt.jsonl, #offsets, counts.records))
  end
  local self = setmetatable({
    opt = opt, tokenizer = tokenizer, template = chat.template(tokenizer, opt.template, nil, nil, nil,
      opt.template_args), packed = packed, offsets = offsets,
    pad = tokenizer:id "<|endoftext|>" or 0, counts = counts,
  }, { __index = ab })
  local file = q.ndp.open(packed)
  trained_data.check(self:batches(file, "packets", 1):plan(),
    self:batches(file, "packets", 1, { split = "eval" }):plan(), opt, progress.new())
  return self
end

-- file:batches of one of the ways.
function ab:batches(file, way, seed, more)
  local given = { row_tokens = self.opt.row_tokens, rows = self.opt.rows, seed = seed, split = "train",
    eval_share = self.opt.eval_share, pad = self.pad, long = self.opt.long }
  if way == "packets+drop" then given.drop = self.opt.drop end
  for key, value in pairs(more or {}) do given[key] = value end
  return file:batches(given)
end

-- ---------------------------------------------------------------- loaders: next(micro_batch) fills it: info, or nil

local function packets_loader(self, way, seed, more)
  local batches = self:batches(q.ndp.open(self.packed), way, seed, more)
  return function(micro_batch)
    local batch = batches:next()
    if not batch then return nil end
    batch:load(micro_batch)
    return batch:info()
  end
end

-- The rows of `steps` batches (all of an epoch where nil), from the packets: {info =, documents =}...
function ab:plan(seed, steps)
  local batches = self:batches(q.ndp.open(self.packed), "packets", seed, { once = steps == nil })
  local plan = {}
  while not steps or #plan < steps do
    local batch = batches:next()
    if not batch then break end
    plan[#plan + 1] = { info = batch:info(), documents = batch:documents() }
  end
  return plan
end

local function filled(n, value)
  local list = {}
  for i = 1, n do list[i] = value end
  return list
end

local function jsonl_loader(self, plan)
  local file, template, at = assert(io.open(self.opt.jsonl, "rb")), self.template, 0
  local row_tokens, slots = self.opt.row_tokens, self.opt.row_tokens * self.opt.rows
  return function(micro_batch)
    at = at + 1
    local batch = plan[at]
    if not batch then file:close(); return nil end
    local tokens, targets, positions, ends = filled(slots, self.pad), filled(slots, -1), filled(slots, 0), { 0 }
    for _, piece in ipairs(batch.documents) do
      file:seek("set", self.offsets[piece.record + 1])
      local ids, mask = template:encode(chat.normalize(q.json.decode(file:read "*l")))
      local row_end = (math.floor(piece.slot / row_tokens)) * row_tokens
      if row_end > ends[#ends] then ends[#ends + 1] = row_end end
      for i = 0, piece.tokens - 1 do
        local from, to = piece.begin + i + 1, piece.slot + i + 1
        tokens[to], positions[to] = ids[from], i
        if i > 0 and mask[from] == 1 then targets[to - 1] = ids[from] end
      end
      ends[#ends + 1] = piece.slot + piece.tokens
    end
    for row_end = row_tokens, slots, row_tokens do
      if row_end > ends[#ends] then ends[#ends + 1] = row_end end
    end
    for i = #ends + 1, batch.info.max_documents + 1 do ends[i] = slots end
    micro_batch.tokens:copy(q.tensor(tokens, "i32"))
    micro_batch.targets:copy(q.tensor(targets, "i32"))
    micro_batch.positions:copy(q.tensor(positions, "i32"))
    micro_batch.cu_q:copy(q.tensor(ends, "i32"))
    return batch.info
  end
end

-- plan: of ab:plan, for JSONL.
function ab:loader(way, seed, plan, more)
  if way == "jsonl" then return jsonl_loader(self, plan) end
  return packets_loader(self, way, seed, more)
end

function ab:micro_batch()
  local info = self:batches(q.ndp.open(self.packed), "packets", 0):next():info()
  return models.micro_batch(info.tokens, info.max_documents)
end

-- ---------------------------------------------------------------- what is measured

-- Raises an error where the rows of JSONL are not those of the packets.
function ab:same_rows(seed, steps)
  local one, other = self:micro_batch(), self:micro_batch()
  local jsonl, packets = self:loader("jsonl", seed, self:plan(seed, steps)), self:loader("packets", seed)
  for step = 1, steps do
    jsonl(one)
    packets(other)
    for _, field in ipairs { "tokens", "targets", "positions", "cu_q" } do
      local a, b = one[field]:table(), other[field]:table()
      for i = 1, #a do
        if a[i] ~= b[i] then
          q.error("internal", ("ab: %s[%d] of batch %d is %d from JSONL and %d from packets"):format(
            field, i - 1, step, a[i], b[i]))
        end
      end
    end
  end
end

-- Tokens a second of a loader alone, from the first batch to the last of an epoch. cold: the system is first asked to
-- forget the file. The time to open the file counts; for JSONL the time of the plan does not.
function ab:load_speed(way, seed, cold)
  local plan = way == "jsonl" and self:plan(seed) or nil
  local micro_batch = self:micro_batch()
  collectgarbage()
  collectgarbage()  -- a mapping that is still there keeps its pages in memory
  local dropped = cold and q.fs.drop_cache(way == "jsonl" and self.opt.jsonl or self.packed)
  local began, tokens = q.time(), 0
  local next_batch = self:loader(way, seed, plan, { once = true })
  for info in function() return next_batch(micro_batch) end do tokens = tokens + info.real_tokens end
  return tokens / (q.time() - began), dropped
end

-- One training run. `seed` chooses the records held out, orders the others and draws the adapters. Runs are compared
-- within a seed. The first five steps are not timed. Returns:
--   tok_s, slot_s   real tokens and slots a second
--   wait            share of the time that steps waited for data
--   loss, losses    the held-out loss; the losses of the steps
--   seconds
function ab:run(way, seed, steps)
  local opt = self.opt
  local model = models.load(opt.model, { dtype = opt.dtype }):lora { rank = opt.rank, seed = seed }
  q.seed(seed)
  local optimizer, micro_batch = adamw.new(model:trainable(),
    { lr = schedule.cosine(opt.lr, steps, { warmup = 10 }) }), self:micro_batch()
  local next_batch = self:loader(way, seed, way == "jsonl" and self:plan(seed, steps) or nil)
  local program
  local losses, real, waited, began = {}, 0, 0, nil
  for step = 1, steps do
    if step == 6 then began, real, waited = q.time(), 0, 0 end
    local asked = q.time()
    local info = next_batch(micro_batch)
    waited = waited + q.time() - asked
    micro_batch.scale:fill(1 / math.max(info.trained_tokens, 1))
    q.rng_step(step)
    program = program or pass.capture(model, micro_batch, { row_tokens = opt.row_tokens })
    program:run(info.trained_tokens)
    optimizer:step { clip = 1 }
    losses[step] = program.loss:item()
    real = real + info.real_tokens
  end
  local seconds = q.time() - began
  program:free()
  local loss = held_out.loss(model, q.ndp.open(self.packed),
    { row_tokens = opt.row_tokens, rows = opt.rows, seed = seed,
      eval_share = opt.eval_share, pad = self.pad, long = opt.long }, false, micro_batch)
  return {
    tok_s = real / seconds, slot_s = (steps - 5) * opt.row_tokens * opt.rows / seconds, wait = waited / seconds,
    loss = loss,
    losses = losses, seconds = seconds,
  }
end

return ab
