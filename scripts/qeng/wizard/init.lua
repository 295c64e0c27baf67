-- From data to a model that is served, in steps (recipes/wizard.lua). A run has a folder:
--
--   steps/01-data.json ...   a step that is done: its answers, and what it found
--   imported/                records of files that are not JSON
--   data/, packets/          records as text, and as the model's tokens; those that are held out apart
--   train/                   as recipes/lora_qwen.lua leaves it
--   answers-before.jsonl, answers-after.jsonl, merged/, model-TYPE.gguf
--
-- A step's file appears when the step is done, whole. The same command passes such steps over; where a step was stopped
-- it begins again (training: from its checkpoint). A flag that says something else than the file does is refused.

local export = require "qeng.wizard.export"
local options = require "qeng.console.options"
local q = require "qeng.core"
local questions = require "qeng.wizard.questions"
local run_folder = require "qeng.train.run_folder"
require "qeng.chat"  -- declares "template"
require "qeng.console.shared"

local wizard = {}

-- In their order. A function of the run each, which returns what it found; answers() says what was answered.
wizard.steps = { "data", "model", "settings", "estimate", "before", "train", "after", "merge", "export", "serve" }

local functions = {
  data = require("qeng.wizard.data").check, model = require("qeng.wizard.model"),
  settings = require("qeng.wizard.settings").choose, estimate = require("qeng.wizard.settings").estimate,
  before = require("qeng.wizard.evaluate").before, after = require("qeng.wizard.evaluate").after,
  train = require("qeng.wizard.train"), merge = export.merge, export = export.gguf, serve = export.serve,
}

-- What is done each time, also when the step was done before.
local again = {
  data = require("qeng.wizard.data").check_source, serve = export.serve,
}

-- What is asked has no default here, or 0.
options.set("wizard", {
  { "out", "wizard", "folder of the run" },
  { "yes", false, "ask nothing: take the recommended answer where no flag says another" },
  { "try", false, "at the end, ask the model one held-out question" },
  { "until", nil, "end after this step", choices = wizard.steps },
  { "redo", nil, "begin again at this step; what was there is moved to earlier-N/", choices = wizard.steps },
  { "data", nil, "records: JSONL, JSON, Parquet, CSV, TSV or text, also packed; a folder or pattern of files, or a "
    .. "dataset on the hub",
    kind = "input" },
  { "duplicates", nil, "what becomes of records that say what one before them says", choices = { "drop", "keep" } },
  { "held_out", 0, "records that are not trained on, for the evaluation", min = 0 },
  { "model", nil, "Hugging Face folder, GGUF file, org/name on the hub, or tiny, the built-in one", kind = "input" },
  "dtype", "template",
  { "mode", nil, "what is trained: adapters, or every weight", choices = { "lora", "full" } },
  { "rank", 0, "LoRA rank", min = 0, max = 4096 },
  { "row_tokens", 0, "tokens of a packed row; longer conversations are left out, longer texts split", min = 0 },
  { "batch", 0, "rows of an optimizer step", min = 0 },
  { "epochs", 0, "passes over the data", min = 0, number = true },
  { "lr", 0, "peak learning rate", min = 0, number = true },
  { "gguf", nil, "type of the GGUF file's matrices, or a mix as recipes/quantize.lua takes it; none: no such file" },
  { "seed", 0, "seed of all that is drawn: what is held out, order, new weights", min = 0 },
})

-- ---------------------------------------------------------------- steps that are done

local Run = {}
Run.__index = Run

function Run:at(name) return self.out .. "/" .. name end

local function number_of(name)
  for i, each in ipairs(wizard.steps) do if each == name then return i end end
end

function Run:file_of(name) return self:at(("steps/%02d-%s.json"):format(number_of(name), name)) end

-- What a step's file says, {answers =, found =, left =}; nil if the step is not done.
function Run:read(name)
  local path = self:file_of(name)
  if q.fs.kind(path) ~= "file" then return nil end
  local fine, done = pcall(function() return q.json.decode(q.fs.read(path)) end)
  if not fine or type(done) ~= "table" or type(done.answers) ~= "table" or type(done.found) ~= "table"
      or type(done.left) ~= "table" then
    q.error("format", ("%s: not the file of a step: --redo %s does that step anew"):format(path, name))
  end
  return done
end

-- Refuses a flag that says something else than what the done step was answered.
local function refuse_changes(self, name, answers)
  for answer, value in pairs(answers) do
    local given = self.opt[answer]
    if self.opt.__given[answer] and given ~= value and not questions.is_open(given) then
      q.error("value", ("--%s %s: this run was answered %s at the step %s; leave the flag out to go on, or give --redo "
        .. "%s to start again from there"):format(answer:gsub("_", "-"), tostring(given),
        value == q.json.null and "nothing" or tostring(value), name, name))
    end
  end
end

-- Moves what the step `first` and those after it left to earlier-N/.
local function undo(self, first)
  local number, any = 1, false
  while q.fs.kind(self:at("earlier-" .. number)) do number = number + 1 end
  local to = self:at("earlier-" .. number)
  local function move(name)
    if not q.fs.kind(self:at(name)) then return end
    any = true
    q.fs.mkdir(to .. "/" .. (name:match "^(.*)/" or ""))
    local fine, why = os.rename(self:at(name), to .. "/" .. name)
    if not fine then q.error("io", why) end
  end
  for i = #wizard.steps, number_of(first), -1 do  -- the last first: stopped on the way, those before are still done
    local name = wizard.steps[i]
    local fine, done = pcall(self.read, self, name)
    move(self:file_of(name):sub(#self.out + 2))  -- first: stopped here, the step is not done
    for _, path in ipairs(fine and done and done.left or {}) do
      if type(path) == "string" and not path:find("..", 1, true) then move(path) end
    end
    if name == "train" then move "train" end  -- also of a run that was stopped
  end
  self:say(any and ("--redo %s: what the steps from there on left is in %s; if this is stopped, the same command "
    .. "without --redo goes on"):format(first, to) or ("--redo %s: nothing was left there"):format(first))
end

-- ---------------------------------------------------------------- the run

function Run:say(...) self.questions:say(...) end

-- Refuses what is read if it is in the run's folder: steps write there.
function Run:outside(path)
  local own, real = q.fs.real(self.out), q.fs.real(path)
  if real and (real .. "/"):sub(1, #own + 1) == own .. "/" then
    q.error("value", ("%s is in the folder of the run, where steps write: give another --out"):format(path))
  end
end

-- Asks, unless a flag answers (wizard/questions.lua). The answer goes into the step's file.
function Run:ask(question)
  local answer = self.questions:ask(question)
  self.answer[question.name], self.answers[question.name] = answer, answer
  return answer
end

-- Notes what flags say that are not asked for, but decide what the step finds. Without the flag the file says null.
function Run:note(...)
  for _, name in ipairs { ... } do
    self.answer[name] = self.opt[name]
    self.answers[name] = self.opt[name] == nil and q.json.null or self.opt[name]
  end
end

-- Notes files or folders of the run that the step leaves.
function Run:leave(...)
  for _, name in ipairs { ... } do self.left[#self.left + 1] = name end
end

-- Does a step, or passes it over. After the step of --until it does nothing.
function Run:step(name)
  if self.ended then return end
  local done = self:read(name)
  if done then
    refuse_changes(self, name, done.answers)
    for answer, value in pairs(done.answers) do self.answer[answer] = value ~= q.json.null and value or nil end
    self.found[name] = done.found
    if again[name] then again[name](self) end
    self:say(("%s: done (%s)"):format(name, self:file_of(name)))
  else
    self.answers, self.left = {}, {}
    self.questions:head(name)
    self.found[name] = functions[name](self)
    q.fs.mkdir(self:at "steps")
    q.fs.write(self:file_of(name), q.json.encode({ step = name, answers = self.answers, found = self.found[name],
      left = q.json.array(self.left) }, { pretty = true }) .. "\n")
  end
  self.ended = self.opt["until"] == name
  if self.ended and name ~= wizard.steps[#wizard.steps] then
    self:say(("ended after the step %s, as --until says; the same command without it goes on"):format(name))
  end
end

-- opt: the parsed options of the sets "wizard" and "device". Takes the folder for this process.
function wizard.open(opt)
  local self = setmetatable({ opt = opt, out = (opt.out:gsub("(.)/+$", "%1")), questions = questions.new(opt, "wizard"),
    found = {}, answer = {} }, Run)
  if opt.gguf then export.check_type(opt.gguf) end  -- now, not after hours of training
  local holds = q.fs.kind(self:at "steps") == "dir"
  if not holds and q.fs.kind(self.out) == "dir" and #q.fs.list(self.out) > 0 then
    q.error("value", self.out .. ": is there, and is no run of the wizard: give another --out")
  end
  run_folder.hold(self.out)
  q.fs.mkdir(self:at "steps")
  for _, folder in ipairs { self.out, self:at "steps" } do q.fs.sweep(folder) end
  for _, name in ipairs { "data", "model" } do if opt[name] then self:outside(opt[name]) end end
  if opt.redo then undo(self, opt.redo) end
  return self
end

return wizard
