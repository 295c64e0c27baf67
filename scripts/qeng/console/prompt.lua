-- Code that is run at the prompt, each chunk in a coroutine of its own. So a training run that Ctrl-C stops between two
-- steps can give the prompt back in the middle of its loop, and go on from there later (train/run.lua). And the locals
-- of a file that is run there (qeng -i FILE) are globals at the prompt, wherever the file has come to.

local q = require "qeng.core"

local prompt = {}

local files = setmetatable({}, { __mode = "k" })  -- by coroutine: the function of the file that it runs, else false
local paused = {}                                 -- what prompt.pause yields
local reported                                    -- the error whose traceback the host has (bindings/state.cpp)

-- Makes globals of the locals that the coroutine's file has now.
local function keep_locals(thread)
  local level, found = 0, false
  while not found do
    local info = debug.getinfo(thread, level, "f")
    if not info then return end
    found = info.func == files[thread]
    if not found then level = level + 1 end
  end
  for i = 1, math.huge do
    local name, value = debug.getlocal(thread, level, i)
    if not name then return end
    if value ~= nil and name:find "^[%a_]" then _G[name] = value end
  end
end

-- Is called where an error is raised, while the stack is as it was.
local function on_error(failure)
  local thread = coroutine.running()
  if files[thread] then keep_locals(thread) end
  if not rawequal(reported, failure) then
    reported = failure
    debug.getregistry()["qeng.traceback"] = debug.traceback("", 2):match "^\n(.*)\n"  -- but for xpcall, the last
  end
  return failure
end

local function settle(thread, ok, ...)
  if files[thread] then debug.sethook() end
  if coroutine.status(thread) == "dead" then
    if ok then return ... end
    return false, (...)
  end
  if files[thread] then keep_locals(thread) end
  if rawequal(ok and (...), paused) then return true end
  debug.getregistry()["qeng.traceback"] = nil
  return false, "attempt to yield from outside a coroutine"
end

-- Goes on with a coroutine that is paused. Returns true and what its code returned, or false and its error.
function prompt.resume(thread, ...)
  if files[thread] then
    debug.sethook(function()
      if debug.getinfo(2, "f").func == files[thread] then keep_locals(thread) end
    end, "r")
  end
  return settle(thread, coroutine.resume(thread, ...))
end

-- Runs the function of a chunk with these arguments; the host calls it. Returns as prompt.resume. is_file: its locals
-- are kept.
function prompt.run(is_file, chunk, ...)
  reported = nil
  local thread = coroutine.create(function(...) return xpcall(chunk, on_error, ...) end)
  files[thread] = is_file and chunk
  return prompt.resume(thread, ...)
end

-- Whether prompt.pause can give the prompt back: not in a recipe, nor in a function that the engine called.
function prompt.can_pause()
  local thread = coroutine.running()
  return thread ~= nil and files[thread] ~= nil and coroutine.isyieldable()
end

-- Gives the prompt back. Returns when prompt.resume is called with the coroutine that keep(thread) gets.
function prompt.pause(keep)
  keep(coroutine.running())
  coroutine.yield(paused)
end

-- Gives the prompt back in the middle of a run's loop, until prompt.go_on(run). The run is global there as _, and as
-- `run` unless that is another thing. say(text) tells so.
function prompt.hold(run, sentence, say)
  local class = getmetatable(run)
  if _G.run == nil or type(_G.run) == "table" and getmetatable(_G.run) == class then _G.run = run end
  _G._ = run
  local name = rawequal(_G.run, run) and "run" or "_"
  say(("%s; %s:continue() goes on, %s:finish() ends it"):format(sentence, name, name))
  prompt.pause(function(thread) run.paused = thread end)
end

-- Goes on with a run that Ctrl-C interrupted at the prompt.
function prompt.go_on(run)
  local thread = run.paused
  if not thread then
    q.error("state", "run:continue(): it is not interrupted; Ctrl-C does that to a run that was begun at the prompt")
  end
  run.paused = nil
  local ok, err = prompt.resume(thread)
  if not ok then error(err, 0) end
end

return prompt
