-- What a model keeps of sequences between steps: the state of each layer's mixer, and which pages of these belong to
-- which sequence (engine/generate/page_pool.h). All layers advance together. So opening, extending, sharing and closing
-- are done to the sequence, not to each state, and a state knows pages only.
--
-- Page p holds page_tokens tokens of a sequence; its last page may hold fewer. For a page a state keeps either what
-- belongs to its tokens alone (keys and values), or what it became by the last of them (recurrent states, tails of
-- convolutions). The latter is a snapshot at every full page. So sequences share equal beginnings by their pages,
-- whatever the states. A state goes back to any token, or to the nearest full page.
--
-- A mixer registers a kind of state with p:state(kind) (model/nn.lua). A kind has
--   kind:bytes(tokens, shape)   bytes that so many tokens of a sequence take; shape: {kv = as in model/kv_types.lua,
--                               page_tokens =}
--   kind:open(shape)            a state; shape also has pages, exact_pages, rows and sequences, the most of a step
--   kind:rollback(length, from, page_tokens)  the length to which a sequence of `from` has to go back, to have `length`
--                               at most
--   kind:ahead(length)          optional: how many tokens after the next one a sequence of `length` can take back one
--                               by one
--   kind:exact_bytes(shape)     optional: bytes of exact rows, beside what tokens take, in shape.exact_pages
--   kind:count(kinds)           optional: called with all kinds of the model before the others
--   kind:page(context)          of a state that is as large as many tokens' keys and values: by default a page holds so
--                               many tokens of sequences of up to `context`
-- A state has what follows. The mixer finds it at seq.inference.states and advances it in its own way, with the tensors
-- of seq.inference.step (infer/paged.lua). step.before and step.after say between which pages each sequence goes.
-- step.spans says in Lua which rows it has. A captured step has no spans; with kind.by_spans, for a mixer that reads
-- them, only steps of one row of each sequence are captured.
--   state:prepare(step)         optional: before each step, also before a captured one, which runs no Lua of the mixer
--   state:copy(pairs, exact)    copies pages to others, and exact pages: [n, 2] i32, as for q.pages.copy_pages, or nil
--   state:stored()              where the pages are: {{tensor, rows of a page, exact = whether of exact rows}, ...}
--   state:free()
-- A kind of a layer that a peer computes has no state here (kind.elsewhere); sequences.peers opens them there.

local kv_types = require "qeng.model.kv_types"
local q = require "qeng.core"

local sequences = {}
local Sequences = {}
Sequences.__index = Sequences

-- The kinds of a model, which know their places.
local function kinds_of(model)
  for _, kind in ipairs(model.states) do
    if kind.count then kind:count(model.states) end
  end
  return model.states
end

-- Bytes of all states of a model for so many tokens of a sequence. here: without those of layers that peers have.
function sequences.bytes(model, tokens, shape, here)
  local bytes = 0
  for _, kind in ipairs(kinds_of(model)) do
    if not (here and kind.elsewhere) then bytes = bytes + kind:bytes(tokens, shape) end
  end
  return bytes
end

-- Pages of exact rows that a cache of this shape has, and their bytes in all states.
function sequences.exact(model, shape)
  local bytes, pages = 0, 0
  for _, kind in ipairs(kinds_of(model)) do
    if kind.exact_bytes then
      pages = math.min(shape.pages, kv_types.exact_pages(kv_types.parse(shape.kv), shape))
      bytes = bytes + kind:exact_bytes { kv = shape.kv, page_tokens = shape.page_tokens, exact_pages = pages }
    end
  end
  return pages, bytes
end

-- The states by what they keep: {{layers =, bytes = of a page in all of these, snapshots = whether they are}...}.
function sequences.kinds(model, shape)
  local list, known = {}, {}
  for _, kind in ipairs(kinds_of(model)) do
    local bytes = kind:bytes(shape.page_tokens, shape)
    local key = bytes .. tostring(kind.page)
    if not known[key] then
      known[key] = { layers = 0, bytes = 0, snapshots = kind.page ~= nil }
      list[#list + 1] = known[key]
    end
    known[key].layers, known[key].bytes = known[key].layers + 1, known[key].bytes + bytes
  end
  return list
end

-- shape: pages, page_tokens, kv, rows, sequences, remember (keep full pages for equal beginnings), blank (all pages are
-- zeros that lie in memory, for who reads what no step wrote).
function sequences.new(model, shape)
  local spec, exact_pages, exact_bytes = kv_types.parse(shape.kv), sequences.exact(model, shape)
  local self = setmetatable({
    kinds = { unpack(model.states) }, states = {}, own = {}, page_tokens = shape.page_tokens,
    page_bytes = sequences.bytes(model, shape.page_tokens, shape),
    exact_pages = exact_pages, exact_bytes = exact_bytes,
    pool = q.pages.pool {
      pages = shape.pages, page_tokens = shape.page_tokens, remember = shape.remember, exact_pages = exact_pages,
      exact_first = exact_pages > 0 and spec.sinks or 0, exact_last = exact_pages > 0 and spec.tail or 0,
    },
  }, Sequences)
  local whole = setmetatable({ exact_pages = exact_pages }, { __index = shape })
  for i, kind in ipairs(self.kinds) do
    if not kind.elsewhere then
      self.states[i] = kind:open(whole)
      table.insert(self.own, self.states[i])
    end
  end
  q.scope(function()
    for _, state in ipairs(shape.blank and self.own or {}) do
      for _, stored in ipairs(state:stored()) do stored[1]:fill(0) end
    end
  end)
  self.peers = model.peers and model.peers:open(shape, self.pool)
  return self
end

-- salt: a number for each adapter, under which beginnings are equal.
function Sequences:open(salt) return self.pool:open(salt) end
function Sequences:close(id) self.pool:close(id) end
function Sequences:length(id) return self.pool:length(id) end
function Sequences:available() return self.pool:available() end
function Sequences:stats() return self.pool:stats() end
function Sequences:beginnings() return self.pool:beginnings() end
function Sequences:forget(id) return self.pool:forget(id) end
function Sequences:pages(id) return self.pool:pages(id) end
function Sequences:exact_of(id) return self.pool:exact_pages(id) end
function Sequences:drop_exact(id, index) self.pool:drop_exact(id, index) end

-- The longest beginning, of at most `length` tokens, from which all states can go on.
local function nearest(self, id, length, from)
  local reached = length
  repeat
    length = reached
    for _, kind in ipairs(self.kinds) do
      reached = math.min(reached, kind:rollback(reached, from, self.page_tokens))
    end
    reached = self.pool:reachable(id, reached)
  until reached == length
  return length
end

-- How many tokens after the next one, guesses, a sequence can take back without losing those before them.
function Sequences:ahead(id)
  local length, count = self.pool:length(id), math.huge
  for _, kind in ipairs(self.kinds) do
    if kind.ahead then count = math.min(count, kind:ahead(length)) end
  end
  return count
end

-- Takes over what is remembered of the beginning of `tokens`, but not the last one. Returns how many tokens that is.
function Sequences:share(id, tokens)
  local held = self.pool:reuse(id, tokens)
  local kept = nearest(self, id, held, held)
  if kept < held then self.pool:truncate(id, kept) end
  return kept
end

-- Reserves room for tokens first .. last of `ids` (by default all). False if pages lack; then nothing changed.
function Sequences:extend(id, ids, first, last)
  if not self.pool:extend(id, ids, first, last) then return false end
  self:copy(self.pool:copies())
  return true
end

-- Copies pages, and pages of exact rows: lists of from, to, from, to ..., or nil.
function Sequences:copy(copied, exact)
  if not copied then return end
  q.scope(function()
    local function pairs_of(list) return list and q.tensor(list, "i32"):reshape { #list / 2, 2 } end
    local pages, exact_pages = pairs_of(copied), pairs_of(exact)
    for _, state in ipairs(self.own) do state:copy(pages, exact_pages) end
  end)
  if self.peers then self.peers:copy(copied, exact) end
end

-- All of the sequence's tokens were run: its full pages may be shared.
function Sequences:commit(id) self.pool:commit(id) end

-- Goes back to the first `length` tokens, or to fewer if a state cannot do that. Returns the length that is left.
function Sequences:rollback(id, length)
  local from = self.pool:length(id)
  if length == from then return length end
  length = nearest(self, id, length, from)
  self.pool:truncate(id, length)
  return length
end

-- The same after a step that was cut short and began with `length` tokens. The page that was to be written next goes
-- too: its copy may not have been made.
function Sequences:rewind(id, length)
  if length == self.pool:length(id) then return length end
  length = self:rollback(id, length - length % self.page_tokens)
  self.pool:copies()  -- those still to be made go to pages that are free now
  return length
end

-- Fills the tensors of a step over the last counts[i] tokens of each sequence.
function Sequences:fill(step, ids, counts)
  self.pool:fill({
    tokens = step.tokens, positions = step.positions, slots = step.slots, cu_q = step.cu_q, lengths = step.lengths,
    pages = step.pages, before = step.before, after = step.after, exact_slots = step.exact_slots, exact = step.exact,
  }, ids, counts)
  self:prepare(step)
end

-- Tells the states of a step that is about to run.
function Sequences:prepare(step)
  for _, state in ipairs(self.own) do
    if state.prepare then state:prepare(step) end
  end
end

-- The rows of each sequence in a step over its last counts[i] tokens: {first =, count =, position = of its first}.
function Sequences:spans(ids, counts)
  local spans, first = {}, 0
  for i, id in ipairs(ids) do
    spans[i] = { first = first, count = counts[i], position = self.pool:length(id) - counts[i] }
    first = first + counts[i]
  end
  return spans
end

function Sequences:free()
  for _, state in ipairs(self.own) do state:free() end
  if self.peers then self.peers:close() end
end

return sequences
