-- How many of a set of coding questions (infer/quality_prompts.lua) a model answers right, by running or reading the
-- answers; and whether two models differ. Rates have Wilson's interval over all answers. The difference has a bootstrap
-- over questions, since the answers to one question go together.

local options = require "qeng.console.options"
local q = require "qeng.core"
local sampling = require "qeng.infer.sampling"
local page = require "qeng.report.page"

local quality = {}
quality.prompts = require "qeng.infer.quality_prompts"

-- The code of an answer: its first fenced block, or all of it.
local function code_of(answer) return answer:match "```%w*\n(.-)```" or answer:match "```%w*\n(.*)$" or answer end

local function equal(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in pairs(a) do if not equal(value, b[key]) then return false end end
  for key in pairs(b) do if a[key] == nil then return false end end
  return true
end

local checks = {}
function checks.lua(prompt, answer, limits)
  local done, text = q.host.sandbox(code_of(answer) .. "\n" .. prompt.tests, limits)
  return done and text == "true"
end
function checks.json(prompt, answer)
  local ok, value = pcall(q.json.decode, code_of(answer))
  return ok and equal(value, prompt.value)
end
function checks.exact(prompt, answer)
  local line = answer:match "^%s*(.-)%s*\n" or answer:match "^%s*(.-)%s*$"
  return line:gsub("^[`\"']+", ""):gsub("[`\"'.]+$", "") == prompt.value
end

-- Whether an answer is right. limits: those of q.host.sandbox.
function quality.check(prompt, answer, limits) return checks[prompt.kind](prompt, answer, limits) end

-- Wilson's 95 % interval of a rate.
function quality.wilson(right, count)
  local z = 1.959964
  local p, spread = right / count, z * z / count
  local middle, half = p + spread / 2, z * math.sqrt(p * (1 - p) / count + spread / (4 * count))
  return (middle - half) / (1 + spread), (middle + half) / (1 + spread)
end

-- Mean difference b - a of lists of rates by question, and its 95 % interval from resampled questions. It is the same
-- each time.
function quality.bootstrap(a, b, rounds)
  local n, state, means, total = #a, 1, {}, 0
  for i = 1, n do total = total + (b[i] - a[i]) / n end
  for r = 1, rounds or 2000 do
    local sum = 0
    for _ = 1, n do
      state = (state * 16807) % 2147483647  -- Lehmer's generator
      local i = state % n + 1
      sum = sum + (b[i] - a[i]) / n
    end
    means[r] = sum
  end
  table.sort(means)
  return total, means[math.ceil(0.025 * #means)], means[math.ceil(0.975 * #means)]
end

-- Asks a model every question opt.samples times. opt: template, template_args, the options of the set "drawing",
-- samples, watch(done, all). Returns {rates, right, count, kinds = {kind = {right, count}}, answers = {the first to
-- each}}.
function quality.ask(model, opt)
  local found = { rates = {}, right = 0, count = 0, kinds = {}, answers = {} }
  for i, prompt in ipairs(quality.prompts) do
    local right = 0
    for sample = 1, opt.samples do
      local asked = sampling.drawn(model, opt)
      asked.messages, asked.max_tokens = { { role = "user", content = prompt.question } }, opt.max_tokens
      asked.template, asked.template_args = opt.template, opt.template_args
      asked.seed = opt.seed * 1000 + sample
      local answer = model:answer(asked)
      found.answers[i] = found.answers[i] or answer
      if quality.check(prompt, answer) then right = right + 1 end
    end
    local kind = found.kinds[prompt.kind] or { right = 0, count = 0 }
    kind.right, kind.count = kind.right + right, kind.count + opt.samples
    found.kinds[prompt.kind], found.rates[i] = kind, right / opt.samples
    found.right, found.count = found.right + right, found.count + opt.samples
    if opt.watch then opt.watch(i, #quality.prompts) end
  end
  return found
end

local function rate_line(name, part)
  local low, high = quality.wilson(part.right, part.count)
  return ("%-8s %5.1f %%  (%.1f to %.1f)  %d of %d"):format(name, 100 * part.right / part.count, 100 * low, 100 * high,
    part.right, part.count)
end

-- The figures as text. runs: {{name, result of quality.ask}...}; of two, the second is compared with the first.
function quality.summary(runs)
  local lines = { "answers that are right, with 95 % confidence" }
  for _, run in ipairs(runs) do
    lines[#lines + 1] = rate_line(run[1], run[2])
    for _, kind in ipairs { "lua", "json", "exact" } do
      lines[#lines + 1] = "  " .. rate_line(kind, run[2].kinds[kind])
    end
  end
  if #runs == 2 then
    local mean, low, high = quality.bootstrap(runs[1][2].rates, runs[2][2].rates)
    lines[#lines + 1] = ("%s - %s  %+.1f points  (%+.1f to %+.1f, bootstrap over questions)"):format(runs[2][1],
      runs[1][1], 100 * mean, 100 * low, 100 * high)
  end
  return table.concat(lines, "\n")
end

local function result_table(runs)
  local rows = {}
  for _, run in ipairs(runs) do
    local function add(name, part)
      local low, high = quality.wilson(part.right, part.count)
      rows[#rows + 1] = {
        run[1], name, ("%.1f %%"):format(100 * part.right / part.count),
        ("%.1f to %.1f"):format(100 * low, 100 * high), ("%d of %d"):format(part.right, part.count),
      }
    end
    add("all", run[2])
    for _, kind in ipairs { "lua", "json", "exact" } do add(kind, run[2].kinds[kind]) end
  end
  local lines = quality.summary(runs)
  local difference = #runs == 2 and page.paragraphs(lines:match "[^\n]*$") or ""
  return page.table({ "model", "questions", "right", "95 % confidence", "answers" }, rows) .. difference
end

-- Writes out/report.html and out/quality.json.
function quality.write(out, runs, settings)
  local answers = {}
  for i, prompt in ipairs(quality.prompts) do
    answers[#answers + 1] = prompt.question
    for _, run in ipairs(runs) do
      answers[#answers + 1] = ("  %s, %d %% right: %s"):format(run[1], 100 * run[2].rates[i], run[2].answers[i])
    end
  end
  page.write(out .. "/report.html", "Coding questions", {
    page.section { "Result", html = result_table(runs) },
    page.section { "First answers", table.concat(answers, "\n") },
    page.section { "Settings", q.json.encode(options.settings(settings), { pretty = true }) },
  })
  local kept = {}
  for i, run in ipairs(runs) do
    local found = run[2]
    kept[i] = { name = run[1], right = found.right, count = found.count, rates = q.json.array(found.rates) }
  end
  q.fs.write(out .. "/quality.json", q.json.encode(q.json.array(kept), { pretty = true }) .. "\n")
end

return quality
