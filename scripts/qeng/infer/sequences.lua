-- What a model keeps of sequences between steps: the state of each layer's mixer, and which pages of these belong to
-- whom (engine/generate/page_pool.h). All layers advance together, so opening, extending, sharing and closing are of
-- the sequence, not of each state, and a state knows pages only. Page p holds page_tokens tokens of a sequence, or
-- fewer where it is its last. A state keeps for it what is of its tokens alone (keys and values), or what it became by
-- the last of them (recurrent states, tails of convolutions), which is a snapshot wherever a page is full. So equal
-- beginnings are shared by their pages, whatever the states, and a state goes back to any token, or to the nearest page
-- that is full.
--
-- A mixer registers a kind of state with p:state(kind) (model/nn.lua), which has
--   kind:bytes(tokens, shape)   bytes that so many tokens of a sequence take; shape: {kv = dtype, page_tokens =}
--   kind:open(shape)            a state; shape also has pages, rows and sequences, the most of a step
-- and the state, which the mixer finds at seq.inference.states and advances in its own way, with the tensors of
-- seq.inference.step (infer/paged.lua):
--   state:prepare(step)         optional: before each step, also before a captured one, which runs no Lua of the mixer
--   state:copy(pairs)           pages to others: [n, 2] i32, as q.copy_pages has them
--   state:rollback(length)      the length that a sequence has to go back to so that it has `length` tokens at most
--   state:free()

local q = require "qeng.core"

local sequences = {}
local Sequences = {}
Sequences.__index = Sequences

-- Bytes of all states of a model for so many tokens of a sequence.
function sequences.bytes(model, tokens, shape)
  local bytes = 0
  for _, kind in ipairs(model.states) do bytes = bytes + kind:bytes(tokens, shape) end
  return bytes
end

-- shape: pages, page_tokens, kv, rows, sequences, remember (keep full pages for equal beginnings).
function sequences.new(model, shape)
  local self = setmetatable({
    states = {}, page_tokens = shape.page_tokens, page_bytes = sequences.bytes(model, shape.page_tokens, shape),
    pool = q.page_pool { pages = shape.pages, page_tokens = shape.page_tokens, remember = shape.remember },
  }, Sequences)
  for i, kind in ipairs(model.states) do self.states[i] = kind:open(shape) end
  return self
end

-- salt: a number for each adapter, under which beginnings are equal.
function Sequences:open(salt) return self.pool:open(salt) end
function Sequences:close(id) self.pool:close(id) end
function Sequences:length(id) return self.pool:length(id) end
function Sequences:available() return self.pool:available() end
function Sequences:stats() return self.pool:stats() end
function Sequences:forget() self.pool:forget() end

local function nearest(self, length)
  for _, state in ipairs(self.states) do length = math.min(length, state:rollback(length)) end
  return length
end

-- Takes what is remembered for the beginning of `tokens`, all but one of them at most; how many tokens that is.
function Sequences:share(id, tokens)
  local held = self.pool:reuse(id, tokens)
  local kept = nearest(self, held)
  if kept < held then self.pool:truncate(id, kept) end
  return kept
end

-- Reserves room for tokens first .. last of `ids` (all of them); false, and nothing changed, where pages lack.
function Sequences:extend(id, ids, first, last)
  if not self.pool:extend(id, ids, first, last) then return false end
  local copied = self.pool:copies()
  if copied then
    q.scope(function()
      local pairs_ = q.tensor(copied, "i32"):reshape { #copied / 2, 2 }
      for _, state in ipairs(self.states) do state:copy(pairs_) end
    end)
  end
  return true
end

-- All of the sequence's tokens were run: its full pages may be shared.
function Sequences:commit(id) self.pool:commit(id) end

-- Goes back to the first `length` tokens, or to fewer where a state cannot: the length that is left.
function Sequences:rollback(id, length)
  if length == self.pool:length(id) then return length end
  length = nearest(self, length)
  self.pool:truncate(id, length)
  return length
end

-- The same after a step that was cut short: `length` tokens were run before it. The page that was to be written next
-- goes too, whose copy may not have been made.
function Sequences:rewind(id, length)
  if length == self.pool:length(id) then return length end
  length = self:rollback(id, length - length % self.page_tokens)
  self.pool:copies()  -- those still to be made are into pages that are free now
  return length
end

-- Fills the tensors of a step over the last counts[i] tokens of each sequence.
function Sequences:fill(step, ids, counts)
  self.pool:fill({
    tokens = step.tokens, positions = step.positions, slots = step.slots, cu_q = step.cu_q, lengths = step.lengths,
    pages = step.pages,
  }, ids, counts)
  for _, state in ipairs(self.states) do
    if state.prepare then state:prepare(step) end
  end
end

function Sequences:free()
  for _, state in ipairs(self.states) do state:free() end
end

return sequences
