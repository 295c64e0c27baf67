-- Continuous batching: many requests in one step. A request can be admitted, cancelled and finished at any step. What
-- it gets does not depend on the others: each has its own sampler, and rows of a step do not change each other's bits
-- (infer/paged.lua).
--
--   local engine = model:engine { kv = "f16", max_batch = 16 }
--   local request = engine:submit { prompt = "Once", max_tokens = 100, seed = 1 }
--   while engine:step() do end
--   print(request.text, request.finish)
--
-- A step runs the tokens that decoding sequences wait for, then pieces of prompts up to `chunk` tokens. Requests are
-- served in the order of their ranks, those of one rank in the order they came. If pages run out, the youngest running
-- sequence gives its pages back. It then waits before all that never ran, and once readmitted its tokens are computed
-- anew. A request that would not fit alone is refused at once, so the oldest always goes on, and all end.
--
-- Lists, requests and pages change together: Ctrl-C is raised only while a model runs and in on_token. The next step
-- goes on from there.

local kv_auto = require "qeng.model.kv_auto"
local mtp_drafts = require "qeng.infer.mtp_drafts"
local paged = require "qeng.infer.paged"
local pays = require "qeng.infer.pays"
local prefixes = require "qeng.infer.prefixes"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local sequences = require "qeng.infer.sequences"
local speculate = require "qeng.infer.speculate"
local steps = require "qeng.infer.steps"
local suffixes = require "qeng.infer.suffixes"

local engine = {}
local Engine = {}
Engine.__index = Engine

local known = {}
for name in ([[
  kv pages memory page_tokens max_batch chunk context remember blank draft draft_vocab draft_always
]]):gmatch "%S+" do known[name] = true end

local function positive(opt, name, default)
  local value = opt[name] or default
  if type(value) ~= "number" or value < 1 or value ~= math.floor(value) then
    q.error("value", ("engine: %s is %s, expected a positive integer"):format(name, tostring(value)))
  end
  return value
end

-- opt:
--   kv            how keys and values are kept (model/kv_types.lua), by default in the model's dtype; recurrent states
--                 are f32
--   page_tokens   tokens in a page (16; of a model that keeps recurrent states, what model/snapshots.lua and
--                 model/delta_pages.lua say)
--   pages, or memory   the cache's size, as pages or as bytes of its sequences' state; by default what max_batch
--                 sequences of up to 4096 tokens need, or if the model keeps recurrent states, up to 16 of them
--   max_batch     the most sequences in a step (64)
--   chunk         tokens of prompts in a step (256)
--   context       the most tokens of a sequence (the model's positions)
--   remember      equal beginnings are computed once (true)
--   blank         all pages are zeros in memory (false): for who times steps over what was not computed
--   draft         a model that guesses ahead, whose cache has as many pages, or if its pages are of another size, holds
--                 about as many tokens; or "mtp", the model's own head (model/mtp.lua)
--   draft_vocab   "mtp": only the first so many tokens are guessed, or those of a list of ids (all)
--   draft_always  guess also where it does not pay (infer/pays.lua)
function engine.new(model, opt)
  opt = opt or {}
  for name in pairs(opt) do
    if not known[name] then q.error("value", "engine: there is no option " .. tostring(name)) end
  end
  local limit = model.config.max_position
  local self = setmetatable({
    model = model, running = {}, waiting = {}, cancelled = {}, flights = {}, submitted = 0, steps = 0, by_position = {},
    said = suffixes.new(),
    max_batch = positive(opt, "max_batch", 64), chunk = positive(opt, "chunk", 256),
    context = math.min(positive(opt, "context", limit), limit),
  }, Engine)
  local kv = kv_auto.resolve(model, opt.kv or model.dtype)
  local page_tokens = positive(opt, "page_tokens", paged.page_tokens(model, self.context))
  local pages = opt.pages
  local shape = {
    kv = kv, page_tokens = page_tokens, pages = math.huge, remember = opt.remember, context = self.context,
    blank = opt.blank,
    sequences = self.max_batch, rows = self.chunk + self.max_batch * (speculate.most + 1),
  }
  if opt.memory then
    local _, exact = sequences.exact(model, shape)
    pages = math.floor((opt.memory - exact) / paged.page_bytes(model, kv, page_tokens))
  end
  pages = pages or paged.usual_pages(model, self.max_batch, self.context, page_tokens)
  if pages < 1 then
    q.error("value", ("engine: %d bytes of memory hold no page of %d tokens"):format(opt.memory or 0, page_tokens))
  end
  shape.pages = pages
  self.runner = paged.new(model, shape)
  if opt.draft == "mtp" then
    if not model.mtp then
      q.error("value", "engine: draft is mtp, and the model has no head that drafts tokens: model:attach_mtp()")
    end
    local ids = type(opt.draft_vocab) == "table" and #opt.draft_vocab > 0 and opt.draft_vocab
    self.drafter = mtp_drafts.new(model, self.runner, shape, {
      vocab = ids or opt.draft_vocab and positive(opt, "draft_vocab"), always = opt.draft_always,
    })
  elseif opt.draft then
    self.drafter = speculate.drafter(model, opt.draft, shape)
  end
  self.pays = self.drafter and not opt.draft_always and pays.new()
  return self
end

-- Queues a request (infer/request.lua has its fields) and returns it. An error of code "value" says why it cannot be
-- served.
function Engine:submit(opt)
  local r = request.new(self, opt)
  local most = math.min(#r.tokens + r.max_tokens, self.context)
  if #r.tokens + math.min(r.max_tokens, 1) > self.context then
    local more = self.context < self.model.config.max_position and ", or a longer --context" or ""
    q.error("value", ("engine: a prompt of %d tokens leaves no room in a context of %d: give a shorter prompt%s")
      :format(#r.tokens, self.context, more))
  end
  local needed, there = steps.pages_of(self, most), self.runner.pool:stats().pages
  if needed > there then
    q.error("value", ("engine: a prompt of %d tokens and max_tokens = %.15g need %d pages of %d tokens, the cache has "
      .. "%d: lower max_tokens (--max-tokens) or give it more pages"):format(#r.tokens, r.max_tokens, needed,
      self.runner.page_tokens, there))
  end
  self.submitted = self.submitted + 1
  r.number, r.engine, r.state = self.submitted, self, "waiting"
  if r.max_tokens == 0 and not r.prompt_logprobs then
    r:finish_with "length"
  else
    steps.queue(self, r)
  end
  return r
end

local function outside_steps(self, name)
  if self.stepping then
    q.error("value", ("engine: %s inside a step: on_token may submit and cancel; %s after the step"):format(name, name))
  end
end

local function step(self)
  self.stepping = true
  local ok, more = pcall(steps.advance, self)
  self.stepping = false
  if not ok then error(more, 0) end
  return more
end

-- Runs one step. Returns false once nothing is running or waiting. An error of a request's logits, grammar or on_token
-- ends that request alone. An error of the model is raised here, and the next call tries that step again. Not to be
-- called from on_token.
function Engine:step()
  outside_steps(self, "step")
  return q.host.uninterrupted(step, self)
end

-- Ends a request now (from on_token: after the step), whatever its state. Its text stays. A request that is done is
-- left alone.
function Engine:cancel(r)
  if r.state == "done" then return end
  if self.stepping then
    table.insert(self.cancelled, r)
  else
    q.host.uninterrupted(steps.retire, self, r, "cancelled")
  end
end

-- Runs until no request is left.
function Engine:finish()
  while self:step() do end
end

-- {running, waiting, steps, kv_bytes (of pages in use), kv_capacity, pages, used, remembered, guesses (of a draft, by
-- how far ahead: {{made, right}...}; a guess is right if those before it are)}
function Engine:stats()
  local stats = self.runner.pool:stats()
  stats.running, stats.waiting, stats.steps = #self.running, #self.waiting, self.steps
  stats.guesses = self.by_position
  local page, exact = self.runner.page_bytes, self.runner.pool.exact_bytes
  stats.kv_bytes = stats.used * page + (exact > 0 and exact * stats.exact_used / stats.exact_pages or 0)
  stats.kv_capacity = stats.pages * page + exact
  return stats
end

-- What the cache holds: {kv (dtype of keys and values), page_tokens, page_bytes, kinds (sequences.kinds), requests =
-- {{number =, tokens =, pages =, reused = tokens that were there already, salt =}...}, beginnings = what is remembered
-- (PagePool:beginnings)}.
function Engine:cache()
  local runner, requests = self.runner, {}
  for i, r in ipairs(self.running) do
    local tokens = runner.pool:length(r.id)
    requests[i] = {
      number = r.number, tokens = tokens, pages = steps.pages_of(self, tokens), reused = r.reused, salt = r.salt,
    }
  end
  return {
    kv = runner.kv, page_tokens = runner.page_tokens, page_bytes = runner.page_bytes, requests = requests,
    kinds = sequences.kinds(self.model, { kv = runner.kv, page_tokens = runner.page_tokens }),
    beginnings = runner.pool:beginnings(),
  }
end

-- To be called after the model's weights changed, when nothing runs: no result of the old ones is used again.
function Engine:forget()
  if #self.running > 0 then q.error("value", "engine: forget: requests are running") end
  for _, runner in ipairs { self.runner, self.drafter and self.drafter.runner or nil } do
    runner:forget()
    runner.pool:forget()
  end
end

-- Writes what is remembered of the beginning of `ids` under an adapter into a file, takes it back in this or a later
-- process, or forgets it (infer/prefixes.lua). How many tokens that are.
function Engine:save_prefix(path, ids, adapter)
  outside_steps(self, "save_prefix")
  return prefixes.save(self, path, ids, adapter)
end
function Engine:load_prefix(path, adapter)
  outside_steps(self, "load_prefix")
  return prefixes.load(self, path, adapter)
end
function Engine:forget_prefix(ids, adapter)
  outside_steps(self, "forget_prefix")
  return prefixes.forget(self, ids, adapter)
end

-- Cancels what is left and frees the cache. Not to be called from on_token.
function Engine:close()
  outside_steps(self, "close")
  for _, list in ipairs { self.running, self.waiting } do
    while #list > 0 do self:cancel(list[#list]) end
  end
  self.runner:free()
  if self.drafter then self.drafter:free() end
end

engine.Engine = Engine
return engine
