-- The folder that a training run writes to. One run at a time has it. The folder of a stopped run is written to only
-- with --resume. Before a new run begins, what an ended run left is moved to earlier-1/, earlier-2/ ...: files that lie
-- side by side belong to one run.

local checkpoint = require "qeng.train.checkpoint"
local data = require "qeng.data"
local q = require "qeng.core"
local ranks = require "qeng.train.ranks"

local run_folder = {}

-- What runs leave: everything; what q.train itself writes; what was trained.
local everything = { "adapter", "adapter.gguf", "best", "checkpoints", "data.qubgpu", "examples.jsonl", "merged",
  "metrics.jsonl", "model",
  "options.json", "report.html", "samples.jsonl", "tensorboard", "tokenizer", "eval.qubgpu" }
local of_train = { "checkpoints", "metrics.jsonl", "report.html", "tensorboard" }
local trained = { "adapter", "adapter.gguf", "best", "merged", "model" }

local function present(out, names)
  local list = {}
  for _, name in ipairs(names) do if name ~= "" and q.fs.kind(out .. "/" .. name) then list[#list + 1] = name end end
  return list
end

local function joined(a, b)
  local list = { unpack(a) }
  for _, name in ipairs(b or {}) do list[#list + 1] = name end
  return list
end

-- What of an earlier run would lie beside the results of this one. A resumed run writes most of it anew at its end.
local function stale_of(out, opt)
  if opt.resume and #checkpoint.list(out) > 0 then
    return present(out, opt.own and {} or { not opt.merge and "merged" or "", not opt.gguf and "adapter.gguf" or "" })
  end
  if opt.resume and #present(out, trained) == 0 then return {} end  -- killed before its first checkpoint
  return present(out, opt.own and joined(of_train, opt.leaves) or everything)
end

local function inside(path, folder)
  while path and path ~= "" do
    if q.fs.same(path, folder) then return true end
    path = path:match "^(.*)/[^/]*$"
  end
  return false
end

-- Takes the folder for this process alone. The run outlives a reader of its output that goes away.
function run_folder.hold(out)
  q.host.outlive_output()
  local holder = q.fs.holder(out)
  if holder then
    q.error("busy", ("%s is in use by %s: wait until that run has ended, or give another --out"):format(out, holder))
  end
  q.fs.mkdir(out)
  if not q.fs.hold(out) then
    io.stderr:write(("note: the file system of %s has no locks: see that no other run writes to it\n"):format(out))
  end
end

local Place = {}
Place.__index = Place

-- Checks, before anything is written, that a run may have `out`, and holds it. opt: resume, overwrite (what is there is
-- deleted), reads (paths), merge and gguf (whether the run will write these), own (only what q.train writes is looked
-- at, and leaves: names of what its caller writes into the folder).
function run_folder.open(out, opt)
  local team = ranks.join()
  if not team.first then  -- rank 0 has the folder
    team:meet()
    return setmetatable({ out = out, stale = {}, resume = opt.resume, team = team }, Place)
  end
  local stale = stale_of(out, opt)
  for _, path in ipairs(opt.reads or {}) do
    if q.fs.same(path, out) then q.error("value", ("%s is what is read: give another --out"):format(path)) end
    for _, name in ipairs(joined(stale, opt.leaves)) do
      if inside(path, out .. "/" .. name) then
        q.error("value",
          ("%s is read, and is of an earlier run in %s, which this one replaces: give another --out"):format(path, out))
      end
    end
  end
  local holder = q.fs.holder(out)  -- whose checkpoints are no reason to say --resume
  if not opt.resume and not opt.overwrite and not holder then checkpoint.refuse_unfinished(out) end
  run_folder.hold(out)
  for _, name in ipairs(q.fs.sweep(out)) do
    io.stderr:write(("%s/%s: left by a killed run, deleted\n"):format(out, name))
  end
  if not opt.own then q.fs.remove(out .. "/data.resumed.qubgpu") end  -- of a run that was refused
  team:meet()
  return setmetatable({ out = out, stale = stale, resume = opt.resume, overwrite = opt.overwrite, team = team }, Place)
end

-- Moves away what does not belong to this run. Call it when nothing can be refused any more.
function Place:clear()
  if #self.stale == 0 then return end
  local number = 1
  while q.fs.kind(("%s/earlier-%d"):format(self.out, number)) do number = number + 1 end
  local to = ("%s/earlier-%d"):format(self.out, number)
  if not self.overwrite then q.fs.mkdir(to) end
  for _, name in ipairs(self.stale) do
    local from = self.out .. "/" .. name
    if self.overwrite then
      q.fs.remove(from)
    else
      local moved, why = os.rename(from, to .. "/" .. name)
      if not moved then q.error("io", why) end
    end
  end
  io.stderr:write(("%s: %s of an earlier run: %s\n"):format(self.out, table.concat(self.stale, ", "),
    self.overwrite and "deleted" or "moved to " .. to))
  self.stale = {}
end

-- data.open, whose conversion is rank 0's: the others open what it has made.
function Place:open(path, opt)
  local file
  local found = self.team:tell(function()
    file, path = data.open(path, opt)
    return path
  end)
  return file or data.open(found, opt)
end

-- The run's own data. A resumed run may still be refused for its data. So what is converted replaces the earlier
-- file only in begin().
function Place:data(path, opt)
  opt.cache = self.out .. (self.resume and "/data.resumed.qubgpu" or "/data.qubgpu")
  return self:open(path, opt)
end

-- For q.train's on_begin: writes the settings of the run, which is accepted now.
function Place:begin(settings)
  if not self.team.first then return end
  q.fs.write(self.out .. "/options.json", q.json.encode(settings, { pretty = true }) .. "\n")
  local resumed = self.out .. "/data.resumed.qubgpu"
  if self.resume and q.fs.kind(resumed) then os.rename(resumed, self.out .. "/data.qubgpu") end
end

return run_folder
