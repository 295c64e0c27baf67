-- What a run writes and says: metrics.jsonl, the progress line, report.html, event files, and its last words.

local banner = require "qeng.train.banner"
local experts = require "qeng.model.experts"
local held_out = require "qeng.train.held_out"
local metrics = require "qeng.report.metrics"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local report = require "qeng.report"
local stream = require "qeng.model.stream"
local tensorboard = require "qeng.train.tensorboard"

local journal = {}

local Journal = {}
Journal.__index = Journal

-- Floating-point work of a token: 6 per weight that is trained, 4 per frozen weight that the gradient passes through.
-- Of experts those count that a token meets.
-- Where bits learn, those weights and the head cost 2 more.
local function flops_per_token(run)
  local model, head = run.model, run.model.head:elements()
  local weights = head + experts.met(model.linears)
  return (model.mode == "full" and 6 or 4) * weights + 2 * (run.bits and banner.learning(run.bits) + head or 0)
end

local Mute = {}  -- of a rank that writes nothing and says nothing
Mute.__index = function(_, name) return Mute[name] or Journal[name] end
for _, name in ipairs { "back_to", "tell", "add", "close" } do Mute[name] = function() end end

-- Says what the run is. Begins its files anew, or after the step that it goes on from.
function journal.open(run)
  local opt, out, state = run.opt, run.out, run.state
  local slots = opt.accumulate * opt.rows * opt.row_tokens
  local devices = run.ranks:texts(banner.device "short")
  if not run.ranks.first then return setmetatable({ run = run, about = { slots = slots } }, Mute) end
  local about = { opt = opt, plan = run.plan, steps = run.total, state = state, slots = slots, devices = devices }
  local show = { title = opt.title or "qeng training", settings = opt.settings or {}, curves = opt.curves }
  if opt.checkpoints ~= false and not progress.silent then
    show.facts = banner.facts(run.model, opt.data, about)
    show.used = banner.used(run.model, opt.data, about, run.defaults)
    banner.start(run.speak, show.facts)
    banner.warn(run.speak, opt, run.total, run.optimizer.schedule)
  end
  local self = setmetatable({ run = run, about = about, show = show, live = report.live(out, show) }, Journal)
  self:back_to(state.row and state.step - 1 or state.step)
  self.board = opt.tensorboard and tensorboard.open(out .. "/tensorboard", metrics.read(out .. "/metrics.jsonl"))
  local name = run.model.dtype == "bf16" and "flops_bf16" or "flops_f32"
  local limits = q.limits { if_room = true, only = name }  -- nil: measuring would break the budget; no share then
  self.peak = limits and limits[name] and run.ranks.size * limits[name]  -- as if all ranks had this one's device
  return self
end

-- Metrics go on after this step.
function Journal:back_to(step)
  if self.log then self.log:close() end
  self.log = metrics.open(self.run.out .. "/metrics.jsonl", step)
end

-- Says in the report how the run stands while nothing is computed.
function Journal:tell(sentence) self.live:finish(sentence) end

-- Begins a step.
function Journal:begin()
  local weights = not self.run.model.shards and self.run.model.stream
  self.began, self.streamed = q.time(), weights and weights:figures()
end

-- The row of metrics of a step. figures: what the page says of it (loss, lr, grad_norm ...).
function Journal:row(figures)
  local run, slots, seconds = self.run, self.about.slots, q.time() - self.began
  local sums, infos = run.feed.sums, run.feed.infos
  local row = {
    step = run.state.step, epoch = infos[#infos].epoch, tokens = slots, real_tokens = sums.real,
    trained_tokens = sums.trained, tok_s = slots / seconds, step_ms = seconds * 1000, data_ms = sums.wait,
    mem_bytes = q.host.peak_rss(),
    limit_share = self.peak and slots * flops_per_token(run) / seconds / self.peak or nil,
    damaged = sums.damaged > 0 and sums.damaged or nil, crc_dropped = run.opt.drop > 0 and sums.dropped or nil,
  }
  local streamed = self.streamed and stream.since(run.model.stream:figures(), self.streamed) or {}
  for _, more in ipairs { streamed, figures } do
    for name, value in pairs(more) do row[name] = value end
  end
  return row
end

function Journal:add(row)
  local run, state = self.run, self.run.state
  self.log:add(row)
  if self.board then self.board(row) end
  local rest = (q.time() - run.started) / math.max(1, state.step - run.first) * (run.total - state.step)
  run.speak:line(banner.line(row, run.total, state.last_eval, rest))
  self.about.loss, self.show.eval_before = held_out.finite(row.loss), state.eval_before
  if run.opt.checkpoints ~= false then self.live:step(state.step, run.total, rest, run.speak) end
end

-- The last words: a sentence for the report, and what came of the run if it reached its end.
function Journal:close(sentence, ended)
  local run, about = self.run, self.about
  self.log:close()
  about.done, about.skipped, about.seconds = run.state.step - run.first, run.skipped, q.time() - run.started
  self.show.eval_before = run.state.eval_before
  self.live:finish(sentence)
  if ended and run.opt.checkpoints ~= false then run.speak:say(banner.outcome(about)) end
end

return journal
