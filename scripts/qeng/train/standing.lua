-- Where a run stands (run.state): which checkpoint it goes on from, and what its checkpoints keep beside tensors.

local checkpoint = require "qeng.train.checkpoint"
local digest = require "qeng.model.digest"
local held_out = require "qeng.train.held_out"
local q = require "qeng.core"
local resume = require "qeng.train.resume"

local standing = {}

-- Refuses a checkpoint of another run, before anything of it is used.
local function check(run, found)
  local out = run.out
  if type(found.fixed) ~= "table" or type(found.course) ~= "table" then
    q.error("value", ("resume: the checkpoint in %s does not say all that decides the result, as those of earlier "
      .. "versions: finish the run with that version, or start anew with another --out"):format(out))
  end
  checkpoint.compare(out, found.fixed, run.fixed)
  if found.step > run.total then
    q.error("value", ("resume: the run in %s stands at step %d, beyond the %d steps asked for: give %d or more, or "
      .. "another --out"):format(out, found.step, run.total, found.step))
  end
end

-- What ranks write and read parts of (checkpoint.save); nil: rank 0 has all of it.
local function shared(run)
  local shards = run.model and run.model.shards
  return run.owners and { team = run.ranks, weights = shards and shards.gathers or false,
    own = function(i) return run.owners[i] == run.ranks.rank end }
end

-- Restores the newest checkpoint of run.out into run.parameters, run.optimizer and run.bits. Returns its state, or nil
-- if there is none. run also has fixed, course (train/resume.lua), total and speak. own(found): what else is refused.
function standing.restore(run, own)
  local parts = shared(run)
  local found = checkpoint.load(run.out, run.parameters, run.optimizer, run.bits, function(state)
    if own then own(state) end
    check(run, state)
  end, parts and parts.weights and parts.own or nil)
  if found and parts and parts.weights then run.model.shards.units:share() end
  if not found then
    run.speak:say("resume: no checkpoint in " .. run.out .. ", starting at step 0")
    return nil
  end
  resume.tell_changes(run.speak, found.course, run.course)
  run.speak:say(("resuming at step %d of %d"):format(found.step, run.total))
  return found
end

-- Refuses ranks that were not started alike, or read other weights or data. Weights that ranks share out are not
-- compared: none has all of them.
local function check_ranks(run)
  local others, model = { resume = run.opt.resume }, run.model
  for name, value in pairs(run.fixed) do others[name] = value end
  if run.ranks.size > 1 and model.mode == "full" and not (model.shards and model.shards.gathers) then
    others["base weights"] = digest.of_weights(model, nil, true)
  end
  resume.agree(run.ranks, run.course, others)
end

-- Sets run.state, from the newest checkpoint if the run is resumed.
function standing.load(run)
  local opt, out = run.opt, run.out
  run.state = { step = 0, tokens = 0 }
  if opt.resume or opt.checkpoints ~= false then
    run.fixed, run.course = resume.settings(run.given, run.defaults, run.total)
    check_ranks(run)
  end
  if not opt.resume then return end
  local found = standing.restore(run, function(state)
    if type(state.tokens) ~= "number" or type(state.batches) ~= "table" then
      q.error("format", out .. ": its checkpoint was not saved by such a run")
    end
  end)
  if not found then return end
  run.state = found
  held_out.judge(found, nil, opt.patience)  -- which may be another now
  run.feed.batches:restore(found.batches)
end

-- Writes a checkpoint. again: the step is saved already, with the same tensors.
function standing.save(run, again)
  local opt, state = run.opt, run.state
  if opt.checkpoints == false then return end
  state.batches, state.fixed, state.course = run.feed:state(), run.fixed, run.course
  state.finished = (state.step == run.total or state.stopped or false) and not state.row
  if not (run.owners or run.ranks.first) then return end
  if again then return run.ranks.first and checkpoint.note(run.out, state) end
  checkpoint.save(run.out, run.parameters, run.optimizer, state, opt.keep, run.bits, shared(run))
end

return standing
