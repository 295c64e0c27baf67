-- Guesses by the model's own head (model/mtp.lua). After a step the head is given each of its rows that stand: the
-- hidden state of token t and token t + 1. What it says behind the last one is the first guess; from its own output
-- comes the next, as long as it is sure enough that all are right. Its keys and values lie in pages of its own, of the
-- rows that stand; those of guesses are taken back.

local kv_types = require "qeng.model.kv_types"
local paged = require "qeng.infer.paged"
local q = require "qeng.core"

local mtp_drafts = {}
local Drafter = {}
Drafter.__index = Drafter

-- The least probability of all guesses together, by the head, that a further one is made at: it costs about that share
-- of a step.
local least_sure = 0.3

-- The head's rows of the tokens that may be guessed: of the first so many and some more, as rows may lie in groups of
-- 32; or of a list. Those of a list are gathered, and those of a head in a stored dtype kept as q8_0.
local function rows_of(model, vocab)
  local all = model.config.vocab
  if type(vocab) ~= "table" then return model.head:rows(0, math.min(32 * math.ceil((vocab or all) / 32), all)) end
  for i, id in ipairs(vocab) do
    if type(id) ~= "number" or id < 0 or id >= all or id ~= math.floor(id) then
      q.error("value", ("engine: draft_vocab[%d] is %s; the model has tokens 0 to %d"):format(i, tostring(id), all - 1))
    end
  end
  return q.no_grad(q.scope, function()
    local stored = model.head:dtype() ~= "f32" and model.head:dtype() ~= "bf16"
    local rows = q.embedding(model.head, q.tensor(vocab, "i32"), stored and "f32" or nil)
    return q.keep(stored and q.quantize(rows, "q8_0") or rows)
  end)
end

-- runner: the model's, whose steps are watched. shape: the engine's, as for paged.new. opt: vocab (only the first so
-- many tokens are guessed, or those of a list of ids, which costs less where the head is large), always (guess also
-- what is unlikely).
function mtp_drafts.new(model, runner, shape, opt)
  local head, c = model.mtp, model.config
  local own = {
    kv = kv_types.unmeasured(shape.kv), rows = shape.rows, sequences = shape.sequences, context = shape.context,
    remember = false,
  }
  own.page_tokens = paged.page_tokens(head, shape.context)
  own.pages = math.ceil(shape.pages * shape.page_tokens / own.page_tokens) + shape.sequences
  local function buffer()
    return q.scope(function() return q.keep(q.zeros({ shape.rows, c.hidden }, model.dtype)) end)
  end
  local self = setmetatable({
    input = buffer(), seen = buffer(), outputs = buffer(), rows = {}, greedy = q.sampler { temperature = 0 },
    head = rows_of(model, opt.vocab), tokens = type(opt.vocab) == "table" and opt.vocab or nil,
    least_sure = opt.always and 0 or least_sure,
  }, Drafter)
  local of_head = setmetatable({
    states = head.states, linears = head.linears, head = self.head,
    forward = function(tokens, seq) return head:forward(self.input:rows(0, tokens:elements()), tokens, seq) end,
  }, { __index = model })
  self.runner = paged.new(of_head, own)
  local function copied(to) return function(hidden) to:rows(0, hidden:shape()[1]):copy(hidden) end end
  self.runner.watch = { input = "post", see = copied(self.outputs) }
  local keep = copied(self.seen)
  runner.watch = { input = head.input, see = function(hidden, parts)
    keep(hidden)
    self:note(runner.pool, parts)
  end }
  return self
end

-- Where the rows of each sequence lie in `seen`, and the position of its first.
function Drafter:note(pool, parts)
  local row = 0
  self.rows = {}
  for _, part in ipairs(parts) do
    self.rows[part.id] = { row = row, position = pool:length(part.id) - part.count, count = part.count }
    row = row + part.count
  end
end

function Drafter:close(r)
  q.host.uninterrupted(function()
    self.runner.pool:close(r.draft_id)
    r.draft_id, r.drafted_to = nil, nil
  end)
end

-- The rows of the last step that stand and whose next token is known: the first in `seen`, its position, their count.
local function standing(self, r)
  local found = r.id and self.rows[r.id]
  if not found then return nil end
  local count = math.min(found.position + found.count, r.length, #r.tokens - 1) - found.position
  if count < 1 then return nil end
  if r.draft_id and r.drafted_to ~= found.position then self:close(r) end  -- it missed some: it begins anew
  return found.row, found.position, count
end

-- Runs the head over entries {request =, tokens =}, whose inputs lie in `input` one after the other. Sets entry.guess,
-- entry.sure, the probability of it and those before, and entry.row, where the last output of each lies.
local function run(self, list)
  local parts, wanted, row = {}, {}, 0
  for i, entry in ipairs(list) do
    parts[i] = { id = entry.request.draft_id, count = #entry.tokens }
    row = row + #entry.tokens
    wanted[i], entry.row = row - 1, row - 1
  end
  self.runner:run(parts, wanted, function(logits, first)
    paged.each_row(logits, function(k, one)
      local entry, id = list[first + k], self.greedy:next(one)
      entry.guess = self.tokens and self.tokens[id + 1] or id
      entry.sure = (entry.sure or 1) * math.exp((q.logits.token_logprobs(one, id, 0)))
    end)
  end)
  for _, part in ipairs(parts) do self.runner.pool:commit(part.id) end
end

-- Puts rows of a tensor into `input`.
local function gather(self, from, rows)
  q.scope(q.no_grad, function() self.input:rows(0, #rows):copy(q.embedding(from, q.tensor(rows, "i32"))) end)
end

-- Gives the head what it has not seen of a request. Returns the entry for `run`, or nil.
local function extend(self, r, inputs)
  local pool, row, position, count = self.runner.pool, standing(self, r)
  if not row or not r.draft then return nil end
  if not r.draft_id then q.host.uninterrupted(function() r.draft_id, r.draft_rows = pool:open(0), 0 end) end
  pool:rollback(r.draft_id, r.draft_rows)
  local tokens = {}
  for k = 1, count do tokens[k] = r.tokens[position + k + 1] end
  if not self.runner:extend(r.draft_id, tokens) then
    self:close(r)
    return nil
  end
  for k = 0, count - 1 do inputs[#inputs + 1] = row + k end
  r.draft_rows, r.drafted_to = r.draft_rows + count, position + count
  return { request = r, tokens = tokens }
end

-- Sets the guesses of requests that decode, r.guesses. room(r): how many one can use.
function Drafter:guess(running, room)
  local list, inputs = {}, {}
  for _, r in ipairs(running) do
    local entry = extend(self, r, inputs)
    if entry then
      entry.wants = #r.tokens - r.length == 1 and room(r) or 0
      list[#list + 1] = entry
    end
  end
  local from = self.seen
  while #list > 0 do
    gather(self, from, inputs)
    run(self, list)
    local nexts = {}
    from, inputs = self.outputs, {}
    for _, entry in ipairs(list) do
      local r = entry.request
      if entry.wants > 0 and entry.sure >= self.least_sure then
        r.guesses = r.guesses or {}
        table.insert(r.guesses, entry.guess)
        if #r.guesses < entry.wants and self.runner:extend(r.draft_id, { entry.guess }) then
          entry.tokens = { entry.guess }
          nexts[#nexts + 1], inputs[#inputs + 1] = entry, entry.row
        end
      end
    end
    list = nexts
  end
end

function Drafter:free()
  self.runner:free()
  for _, tensor in ipairs { self.input, self.seen, self.outputs, self.tokens and self.head } do tensor:free() end
end

return mtp_drafts
