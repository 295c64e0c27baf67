-- Jobs of a server: recipes that run as processes of their own, one after the other, so that one that fails harms
-- nobody. A job has a folder under the server's root, jobs/NAME, as the recipe's --out has it from the command line,
-- with job.json (what was asked) and log.txt (what it says) beside. Its inputs are files of the root too.

local problem = require "qeng.server.problem"
local q = require "qeng.core"

local Jobs = {}
Jobs.__index = Jobs

local function number(name, min, max) return { name, "number", min = min, max = max } end
local function count(name) return { name, "integer", min = 0 } end

-- What a request may say of each kind: the recipe's options, none of which runs code or leaves the root. path: a file
-- of the root, or for "model" the name of a served one. out: what the recipe writes within the job's folder ("": the
-- folder itself).
Jobs.kinds = {
  train = { recipe = "lora_qwen", out = "", resumes = true, fields = {
    { "model", "string", path = true }, { "data", "string", path = true }, { "eval_data", "string", path = true },
    { "mode", "string", choices = { "lora", "full" } }, count "steps", number("epochs", 0), number("lr", 0),
    count "rank", number("alpha", 0), { "rslora", "boolean" }, { "dora", "boolean" }, number("dropout", 0, 0.9),
    count "row_tokens", count "rows", count "accumulate", count "warmup", count "seed", count "save_every",
    count "eval_every", number("eval_share", 0, 0.9), number("clip", 0), number("decay", 0),
    { "optim", "string", choices = { "adamw", "lion", "muon", "sgd", "adafactor" } },
    { "schedule", "string", choices = { "constant", "linear", "cosine", "wsd" } },
    { "dtype", "string", choices = { "f32", "bf16" } }, count "threads", { "gguf", "boolean" },
  } },
  quantize = { recipe = "quantize", out = "model.gguf", fields = {
    { "model", "string", path = true, required = true }, { "type", "string", required = true },
    { "calibration", "string", path = true }, count "chunks",
  } },
  convert = { recipe = "convert", output = "data.qubgpu", resumes = true, fields = {
    { "input", "string", path = true, required = true }, { "tokenizer", "string", path = true, required = true },
    { "format", "string", choices = { "auto", "csv", "json", "jsonl", "text", "tsv" } }, count "max_tokens",
    { "turns", "string", choices = { "all", "last" } }, { "dedupe", "boolean" }, count "threads",
  } },
  evaluate = { recipe = "perplexity", out = "scores.json", fields = {
    { "model", "string", path = true, required = true }, { "data", "string", path = true, required = true },
    { "adapter", "string", path = true }, count "context", count "windows", count "threads",
  } },
}

-- server: for its root and models.
function Jobs.new(server)
  local self = setmetatable({ server = server, list = {}, started = 0 }, Jobs)
  local folder = server.root and server.root .. "/jobs"
  if folder and q.fs.kind(folder) == "dir" then
    for _, name in ipairs(q.fs.list(folder)) do
      local path = folder .. "/" .. name .. "/job.json"
      local said = q.fs.kind(path) == "file" and q.try(q.json.decode, q.fs.read(path))
      if type(said) == "table" and said.id == name and Jobs.kinds[said.kind] and type(said.options) == "table" then
        said.state = (said.state == "running" or said.state == "queued") and "stopped" or said.state
        self.list[#self.list + 1] = said
      end
    end
  end
  return self
end

local function folder_of(self, job) return self.server.root .. "/jobs/" .. job.id end
local function keep(self, job)
  local said = {}
  for name, value in pairs(job) do
    if name ~= "process" then said[name] = value end
  end
  q.fs.write(folder_of(self, job) .. "/job.json", q.json.encode(said, { pretty = true }))
end

-- The same where nobody waits for it: a full disk is said, and the server goes on with what it knows.
local function note(self, job)
  local ok, err = pcall(keep, self, job)
  if not ok then io.stderr:write(("server: job %s: %s\n"):format(job.id, tostring(err))) end
end

function Jobs:find(id)
  for _, job in ipairs(self.list) do
    if job.id == id then return job end
  end
  problem.raise(404, ("There is no job '%s'."):format(id), "id")
end

-- What a client is told of a job.
function Jobs:told(job)
  local said = { object = "job" }
  for name, value in pairs(job) do
    if name ~= "process" then said[name] = value end
  end
  said.folder = "jobs/" .. job.id
  if job.state == "done" and job.kind == "train" and job.options.mode ~= "full" then
    said.adapter = said.folder .. "/adapter"
  end
  return said
end

-- The path that an option names, as a recipe gets it. where: the option's full name, for errors.
function Jobs:path(name, value, where)
  if name == "model" or name == "tokenizer" then
    for _, each in ipairs(self.server.models) do
      if each.name == value and each.path then return each.path end
    end
  end
  return self.server:inside(value, where)
end

-- The command line of a recipe with options, of which `fields` says what they are.
function Jobs:words(recipe, fields, options)
  local list = {}
  list[1] = q.fs.find("recipes/" .. recipe .. ".lua")
    or problem.raise(500, ("the recipe %s is not beside the executable"):format(recipe))
  for _, entry in ipairs(fields) do
    local name, value = entry[1], options[entry[1]]
    if value ~= nil and value ~= false then
      if entry.path then value = self:path(name, value, "options." .. name) end
      if type(value) == "number" then value = ("%.17g"):format(value) end
      -- One word, so that no value is taken for another option.
      list[#list + 1] = "--" .. name:gsub("_", "-") .. (value ~= true and "=" .. value or "")
    end
  end
  return list
end

-- The command line of a job. resumed: it goes on where it stopped.
local function arguments(self, job, resumed)
  local kind = Jobs.kinds[job.kind]
  local list = self:words(kind.recipe, kind.fields, job.options)
  list[#list + 1] = kind.out and "--out" or "--output"
  list[#list + 1] = (folder_of(self, job) .. "/" .. (kind.out or kind.output)):gsub("/$", "")
  if resumed then list[#list + 1] = "--resume" end
  return list
end

local function start(self, job)
  local ok, process = q.try(function()
    return true, q.host.process(arguments(self, job, job.resumed), { output = folder_of(self, job) .. "/log.txt" })
  end)
  job.process, job.state = ok and process or nil, ok and "running" or "failed"
  job.problem = not ok and process.message or nil
  note(self, job)
end

-- Queues a job of checked options.
function Jobs:submit(kind, options)
  if not self.server.root then
    problem.raise(403, "this server runs no jobs: start it with --root, the folder for their files")
  end
  self.started = self.started + 1
  local job = { id = ("%s-%s-%d"):format(kind, os.date "!%Y%m%d-%H%M%S", self.started), kind = kind, options = options,
    state = "queued", created = os.time() }
  arguments(self, job)  -- its paths are refused now
  q.fs.mkdir(folder_of(self, job))
  keep(self, job)
  self.list[#self.list + 1] = job
  return job
end

-- Ends a job: one that runs writes its checkpoint first.
function Jobs:cancel(job)
  job.cancelled = true
  if job.process then return job.process:stop() end
  if job.state == "queued" then
    job.state = "cancelled"
    note(self, job)
  end
end

-- Puts a job that stopped back into the queue, to go on where it was.
function Jobs:resume(job)
  if not Jobs.kinds[job.kind].resumes then
    problem.raise(400, ("a job of kind %s cannot be resumed: start it anew"):format(job.kind), "id")
  end
  if job.state == "running" or job.state == "queued" or job.state == "done" then
    problem.raise(400, ("the job is %s"):format(job.state), "id")
  end
  job.state, job.resumed, job.cancelled, job.status = "queued", true, nil, nil
  note(self, job)
end

-- To be called now and then: notes what has ended, and starts what comes next.
function Jobs:tick()
  local running = false
  for _, job in ipairs(self.list) do
    local status = job.process and job.process:status()
    if status then
      job.process, job.status, job.ended = nil, status, os.time()
      job.state = job.cancelled and "cancelled" or status == 0 and "done" or "failed"
      note(self, job)
    end
    running = running or job.process ~= nil
  end
  for _, job in ipairs(running and {} or self.list) do
    if job.state == "queued" then return start(self, job) end
  end
end

-- Ends all that run, and waits for their checkpoints at most so many seconds.
function Jobs:close(seconds)
  for _, job in ipairs(self.list) do
    if job.process then job.process:stop() end
  end
  local deadline, left = q.time() + seconds, true
  while left and q.time() < deadline do
    left = false
    for _, job in ipairs(self.list) do
      if job.process and job.process:status() then
        job.process, job.state = nil, "stopped"
        note(self, job)
      end
      left = left or job.process ~= nil
    end
    if left then self.server.http:wait(0.1) end
  end
  for _, job in ipairs(self.list) do
    if job.process then job.process:stop(true) end
  end
end

return Jobs
