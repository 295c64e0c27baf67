-- What the model answers to the same few prompts at each evaluation: a run can be read as well as plotted.
--
--   local ask = samples.new(model, "How many legs has a cat?", { out = "out" })  -- or a file: a prompt or record a
--   line
--   ask(step, function(text) print(text) end)

local chat = require "qeng.chat"
local generate = require "qeng.infer.generate"
local q = require "qeng.core"

local samples = {}

-- The prompt of a line of a file: plain text, or a record, whose last answer is left out because training would use it.
function samples.of_line(line, path)
  if not line:find "^%s*{" then return { messages = { { role = "user", content = line } }, shown = line } end
  local ok, result = pcall(function()
    local record = q.json.decode(line, { ordered = true, exact = true })
    if record.prompt ~= nil and record.completion == nil then record.completion = "" end
    return chat.normalize(record)
  end)
  if not ok then
    q.error("format",
      ("%s: %s: %s"):format(path, line:sub(1, 60), type(result) == "table" and result.message or tostring(result)))
  end
  local messages = result.messages or { { role = "user", content = result.text } }
  local last = messages[#messages].role == "assistant" and table.remove(messages) or {}
  if #messages == 0 then q.error("format", ("%s: %s: asks nothing"):format(path, line:sub(1, 60))) end
  return { messages = messages, tools = result.tools, template_options = result.template_options,
    shown = messages[#messages].content, wanted = last.content }
end

-- The prompts of a text or a file of lines: {messages =, tools =, template_options =, shown =, wanted = the answer that
-- was left out} each; nil for "".
function samples.read(text)
  if not text or text == "" then return nil end
  if q.fs.kind(text) ~= "file" then return { { messages = { { role = "user", content = text } }, shown = text } } end
  local list = {}
  for line in (q.fs.read(text) .. "\n"):gmatch "([^\n]*)\r?\n" do
    if line:find "%S" then list[#list + 1] = samples.of_line(line, text) end
  end
  if #list == 0 then q.error("value", text .. ": holds no prompt") end
  return list
end

-- The request that asks for one of them. opt: template, template_args, max_tokens (64).
function samples.request(model, sample, opt)
  local request = { temperature = 0, max_tokens = opt.max_tokens or 64 }
  if model.tokenizer:info().chat_template or model.tokenizer:id "<|im_start|>" then
    local template = chat.template(model.tokenizer, opt.template, nil, nil, nil, opt.template_args)
    request.ids = template:prompt(sample)
  else
    request.prompt = sample.shown
  end
  return request
end

-- prompts: as read() takes them. opt: out (where samples.jsonl is written), template, template_args, max_tokens (64).
-- Returns a function that answers them greedily after a step and tells each answer; nil without prompts. It changes
-- nothing of the training.
function samples.new(model, prompts, opt)
  local list = samples.read(prompts)
  if not list then return nil end
  return function(step, tell)
    for _, sample in ipairs(list) do
      local answer = q.no_grad(generate.answer, model, samples.request(model, sample, opt))
      tell(("step %d, %s: %s"):format(step, (sample.shown:gsub("%s+", " "):sub(1, 60)), (answer:gsub("%s+", " "))))
      q.fs.append(opt.out .. "/samples.jsonl",
        q.json.encode({ step = step, prompt = sample.shown, answer = answer }, { replace = true }) .. "\n")
    end
  end
end

return samples
