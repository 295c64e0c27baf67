-- Jobs (server/jobs.lua) and runs: POST and GET /api/jobs, GET /api/jobs/{id}, POST /api/jobs/{id}/cancel and /resume,
-- GET /api/jobs/{id}/log; GET /api/runs, /api/runs/{name}/metrics, and /api/runs/{name}/live as server-sent events. A
-- run is a folder of the root with a metrics.jsonl.

local fields = require "qeng.server.fields"
local files = require "qeng.server.files"
local Jobs = require "qeng.server.jobs"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local most_last = 16 * 1024    -- of a file that are read for its last record
local most_runs = 500          -- in a list
local most_read = 1024 * 1024  -- bytes of a file in an answer: the next comes by its offset

-- The bytes of a file from an offset on, to the end of a line, and where they end.
local function tail(path, from)
  local file = io.open(path, "rb")
  if not file then return "", 0 end
  local size = file:seek "end"
  if from > size then from = 0 end  -- the file was written anew
  file:seek("set", from)
  local text = file:read(most_read) or ""
  file:close()
  text = text:match "^.*\n" or ""
  return text, from + #text
end

local from_byte = { { "from", "integer", min = 0 } }
local function offset(call)
  local from = tonumber(call.event.query.from or 0)
  if not from or from < 0 or from ~= math.floor(from) then
    problem.raise(400, "Invalid value for 'from': expected a number of bytes.", "from")
  end
  return from
end

-- Records of a run's metrics from an offset on; a line that is no JSON is left out.
local function records(path, from)
  local text, to = tail(path, from)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = q.try(q.json.decode, line) end
  return list, to
end

-- The last record of a run's metrics that has a loss, as far as the end of the file has one.
local function last_step(path, size)
  local list, last = records(path, math.max(0, size - most_last)), {}
  for _, record in ipairs(list) do
    if type(record) == "table" and type(record.loss) == "number" then last = record end
  end
  return last
end

return function(server)
  local jobs = Jobs.new(server)
  server.jobs = jobs

  local names = {}
  for name in pairs(Jobs.kinds) do names[#names + 1] = name end
  table.sort(names)

  server:route("POST", "/api/jobs", function(call, given)
    local options = fields.read(given.options, Jobs.kinds[given.kind].fields, "options")
    call:reply(201, jobs:told(jobs:submit(given.kind, options)))
  end, { says = "starts a job", fields = {
    { "kind", "string", required = true, choices = names }, { "options", "object", default = {} } } })

  server:route("GET", "/api/jobs", function(call)
    local list = {}
    for i, job in ipairs(jobs.list) do list[i] = jobs:told(job) end
    call:reply(200, { object = "list", data = q.json.array(list) })
  end, { says = "jobs" })

  server:route("GET", "/api/jobs/{id}", function(call) call:reply(200, jobs:told(jobs:find(call.params.id))) end,
    { says = "a job" })

  for name, method in pairs { cancel = jobs.cancel, resume = jobs.resume } do
    server:route("POST", "/api/jobs/{id}/" .. name, function(call)
      local job = jobs:find(call.params.id)
      method(jobs, job)
      call:reply(200, jobs:told(job))
    end, { says = name .. "s a job" })
  end

  server:route("GET", "/api/jobs/{id}/log", function(call)
    local job = jobs:find(call.params.id)
    local text, to = tail(("%s/jobs/%s/log.txt"):format(server.root, job.id), offset(call))
    call:text(200, "text/plain; charset=utf-8", text, { ["x-next-offset"] = tostring(to) })
  end, { says = "what a job says, from a byte on", query = from_byte })

  -- The size of a file, looked at a few times a second however many ask.
  local sizes = {}
  local function size_of(path)
    local known, now = sizes[path], q.time()
    if not known or now > known.at + 0.25 then
      known = { at = now, size = files.size(path) or 0 }
      sizes[path] = known
    end
    return known.size
  end

  -- A run as a list shows it; its file is read again once it has grown.
  local known = {}
  local function run_of(name)
    local path = q.try(server.inside, server, name .. "/metrics.jsonl", "name")
    local size = path and size_of(path)
    if not path then return end
    if not known[path] or known[path].size ~= size then
      local last = last_step(path, size)
      known[path] = { size = size, step = last.step, loss = last.loss, tok_s = last.tok_s }
    end
    local run = known[path]
    local live = q.try(q.fs.holder, path:match "^(.*)/") ~= nil
    return { name = name, step = run.step, loss = run.loss, tok_s = run.tok_s, live = live }
  end

  server:route("GET", "/api/runs", function(call)
    local list, more = {}, false
    for _, pattern in ipairs(server.root and { "/*/metrics.jsonl", "/*/*/metrics.jsonl" } or {}) do
      for _, path in ipairs(q.fs.glob(server.root .. pattern)) do
        more = more or #list == most_runs
        if not more then list[#list + 1] = run_of(path:sub(#server.root + 2, -#"/metrics.jsonl" - 1)) end
      end
    end
    call:reply(200, { runs = q.json.array(list), more = more })
  end, { says = "runs: folders with metrics, their last steps, and whether a process trains there" })

  local function metrics_of(call) return server:inside(call.params.name .. "/metrics.jsonl", "name") end

  server:route("GET", "/api/runs/{name*}/metrics", function(call)
    local list, to = records(metrics_of(call), offset(call))
    call:reply(200, { next = to, records = q.json.array(list) })
  end, { says = "a run's metrics, from a byte on", query = from_byte })

  server:route("GET", "/api/runs/{name*}/live", function(call)
    local path, from = metrics_of(call), offset(call)
    call:stream()
    while not server.draining do
      if size_of(path) ~= from then
        local list, to = records(path, from)
        for _, record in ipairs(list) do call:send(record, "record") end
        from = to
      end
      call:sleep(0.5)
    end
    call:close()
  end, { says = "a run's metrics as they come", query = from_byte })
end
