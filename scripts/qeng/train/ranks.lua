-- The ranks of a job: processes that mpirun or srun started to train one model together.
--
--   mpirun -n 4 qeng recipes/lora_qwen.lua --accumulate 4
--
-- All of them run the recipe. A step's micro-batches are dealt out in turn, and each rank has the gradients of all
-- before the update (engine/ranks/gradient_sum.h), which all make: so parameters, losses and what follows from them are
-- the same everywhere, and the same on any number of ranks. Rank 0 writes files and speaks; the others end when the
-- training has.

local progress = require "qeng.console.progress"
local q = require "qeng.core"

local Team = {}
Team.__index = Team

-- Fields: rank (from 0), size, first (whether it is rank 0), job (Ranks; nil: the process is alone).
local alone = setmetatable({ rank = 0, size = 1, first = true }, Team)

-- Refuses a task of Slurm's that no MPI joins: each would train the whole model, into one folder. (The script of a
-- batch job is no task, and has no SLURM_STEP_NUM_TASKS.)
local function refuse_lone_task()
  local tasks = tonumber(os.getenv "SLURM_STEP_NUM_TASKS") or 1
  if tasks < 2 then return end
  q.error("usage", ("this is one of %d tasks that srun started without MPI, and each would train alone: srun "
    .. "--mpi=pmix; or, for runs of their own with an --out each, unset SLURM_STEP_NUM_TASKS"):format(tasks))
end

-- The job of this process; `alone` where it is none's.
local function join()
  local job = q.ranks.join()
  if not job then refuse_lone_task() return alone end
  if job:rank() > 0 then progress.silent = true end
  return setmetatable({ job = job, rank = job:rank(), size = job:size(), first = job:rank() == 0 }, Team)
end

-- Refuses steps of fewer micro-batches than there are ranks.
function Team:check(accumulate)
  if accumulate >= self.size then return end
  q.error("usage", ("%d ranks share the micro-batches of a step, which are %d: --accumulate %d, or a multiple of it")
    :format(self.size, accumulate, self.size))
end

-- Waits until all ranks are here.
function Team:meet()
  if self.job then self.job:barrier() end
end

-- f() on rank 0, then on the others, which find what it left in files.
function Team:in_turn(f)
  if not self.first then self:meet() end
  local result = f()
  if self.first then self:meet() end
  return result
end

-- The text of rank 0's f(), for all.
function Team:tell(f)
  local text = self.first and f() or ""
  return self.job and self.job:tell(text) or text
end

-- Each rank's text, in their order, for all.
function Team:texts(text) return self.job and self.job:texts(text) or { text } end

-- Sums over ranks, number by number; any(value): whether it is true on one of them.
function Team:sum(numbers) return self.job and self.job:sum(numbers) or numbers end
function Team:any(value)
  if not self.job then return value end
  return self.job:sum({ value and 1 or 0 })[1] > 0
end

-- The rank of each parameter that keeps what is shared out (--zero): the largest first, each to the rank that has
-- least so far.
function Team:owners(parameters)
  local order, load, owners = {}, {}, {}
  for i = 1, #parameters do order[i] = i end
  local function elements(i) return parameters[i].tensor:elements() end
  table.sort(order, function(a, b)
    if elements(a) ~= elements(b) then return elements(a) > elements(b) end
    return a < b
  end)
  for rank = 0, self.size - 1 do load[rank] = 0 end
  for _, i in ipairs(order) do
    local least = 0
    for rank = 1, self.size - 1 do if load[rank] < load[least] then least = rank end end
    owners[i], load[least] = least, load[least] + elements(i)
  end
  return owners
end

-- Gives all ranks each parameter as its owner has it.
function Team:share(parameters, owners)
  local tensors = {}
  for i, parameter in ipairs(parameters) do tensors[i] = parameter.tensor end
  self.job:share(tensors, owners)
end

-- Whether number i, from 1, is this rank's, where they are dealt out in turn.
function Team:has(i) return (i - 1) % self.size == self.rank end

-- The end of a rank's part: only rank 0 returns.
function Team:part()
  if self.first then return end
  self.job:leave()
  os.exit(0, true)
end

-- Rank 0 of so many that do not exist, for a rehearsal of what it computes and holds.
local function imagined(size)
  return setmetatable({ job = q.ranks.imagined(size), rank = 0, size = size, first = true }, Team)
end

return { join = join, alone = alone, imagined = imagined }
