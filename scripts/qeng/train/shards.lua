-- What a rank keeps of a model that several train in full: with --zero 2 the gradients of the parameters that it owns,
-- with --zero 3 their weights too (engine/ranks/shards.h). The rest is there while its unit is used: the units, and the
-- marks between them, are those of streamed weights (model/stream.lua), and model.stream is what brings them.
--
-- model.shards has:
--   units    Shards of q.ranks: learn, begin, finish, follow, rest, share
--   owners   of each parameter of the model, the rank that has it
--   gathers  whether ranks have their own weights alone

local q = require "qeng.core"
local stream = require "qeng.model.stream"

local Shards = {}
Shards.__index = Shards

local shards = {}

-- Whether opt (mode, zero) asks team for shards.
function shards.wanted(mode, zero, team) return mode == "full" and zero >= 2 and team.job ~= nil end

-- Refuses options of q.finetune that shards are not for.
function shards.check(opt)
  if opt.mtp > 0 then
    q.error("unsupported", ("--zero %d: a model with a head that drafts tokens (MTP) is trained with --zero 1 or 0")
      :format(opt.zero))
  end
  if opt.zero == 3 and opt.samples ~= "" then
    q.error("unsupported", "--samples are answered by one rank, which with --zero 3 has a part of the weights: --zero "
      .. "2, or leave --samples out")
  end
end

-- Gives each rank of team its part of the model's parameters. Before Model:full, no gradient is made that it does not
-- keep.
function shards.attach(model, team, zero)
  stream.refuse(model, ("--zero %d: every weight is trained"):format(zero))
  local owner_of, owners = {}, team:owners(model.parameters)
  for i, parameter in ipairs(model.parameters) do owner_of[parameter.tensor] = owners[i] end
  local names, weights = stream.units(model)
  local of_units = {}
  for u, tensors in ipairs(weights) do
    of_units[u] = {}
    for i, tensor in ipairs(tensors) do of_units[u][i] = owner_of[tensor] end
  end
  collectgarbage()  -- what loading left
  local units = team.job:shards(names, weights, of_units, zero >= 3)
  for _, parameter in ipairs(model.parameters) do
    if parameter.tensor:requires_grad() then units:learn(parameter.tensor) end
  end
  model.shards = setmetatable({ model = model, units = units, owners = owners, gathers = zero >= 3,
    first = team.first }, Shards)
  model.stream = units:stream()
end

-- For q.train: attaches what its option `zero` asks for, and says where it asks for nothing.
function shards.prepare(run)
  local model, zero, team = run.model, run.opt.zero, run.ranks
  if zero == 0 then return end
  if not team.job then
    run.speak:say(("note: --zero %d shares among ranks, and this is one process without any (mpirun)"):format(zero))
  elseif zero >= 2 and model.mode ~= "full" then
    run.speak:say(("note: --zero %d is of --mode full: without it gradients are few and weights frozen, and each rank "
      .. "has them all, as with --zero 1"):format(zero))
  elseif zero >= 2 and model.mtp then
    q.error("unsupported", ("--zero %d: a model with a head that drafts tokens (MTP) is trained with --zero 1 or 0")
      :format(zero))
  elseif zero >= 2 and not model.shards then
    shards.attach(model, team, zero)
  end
end

-- f() on rank 0, where all weights are meanwhile. All ranks call it.
function Shards:whole(f)
  self.units:gather()
  if self.first then f() end
  self.units:release()
end

-- Ends sharing: no parameter is trained any more, and all weights are on rank 0, the others' are gone.
function Shards:finish()
  local model = self.model
  for _, parameter in ipairs(model.parameters) do parameter.tensor:requires_grad(false) end
  collectgarbage()
  self.units:gather()
  model.stream, model.shards = nil, nil
end

return shards
