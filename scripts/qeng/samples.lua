-- What the model answers to the same few prompts at each evaluation, so that a run can be read as well as plotted.
--
--   local ask = samples.new(model, "How many legs has a cat?", { out = "out" })     -- or a file: a prompt, or a record, a line
--   ask(step, function(text) print(text) end)

local generate = require "qeng.generate"
local q = require "qeng.core"

local samples = {}

-- The requests that a text or a file of lines asks for: {prompt =} or {messages =} each; nil for "".
function samples.read(text)
  if not text or text == "" then return nil end
  if q.fs.kind(text) ~= "file" then return { { messages = { { role = "user", content = text } }, shown = text } } end
  local list = {}
  for line in (q.fs.read(text) .. "\n"):gmatch "([^\n]*)\r?\n" do
    if line:find "%S" then
      local ok, record = pcall(q.json.decode, line, { ordered = true })
      local messages = ok and type(record) == "table" and (record.messages or type(record.prompt) == "string" and { { role = "user", content = record.prompt } })
      if line:match "^%s*{" and not messages then q.error("format", text .. ": a line of JSON has neither messages nor a prompt: " .. line:sub(1, 60)) end
      messages = messages or { { role = "user", content = line } }
      if messages[#messages].role == "assistant" then table.remove(messages) end  -- what the record would train
      list[#list + 1] = { messages = messages, shown = messages[#messages].content }
    end
  end
  if #list == 0 then q.error("value", text .. ": holds no prompt") end
  return list
end

-- prompts: as read() takes them. opt: out (samples.jsonl is written there), template, max_tokens (64). Returns a function that answers
-- them, greedily, after a step, and tells each; nil without prompts. Nothing of the training changes by it.
function samples.new(model, prompts, opt)
  local list = samples.read(prompts)
  if not list then return nil end
  return function(step, tell)
    for _, sample in ipairs(list) do
      local request = { temperature = 0, max_tokens = opt.max_tokens or 64 }
      if model.tokenizer:info().chat_template or model.tokenizer:id "<|im_start|>" then
        request.messages, request.template = sample.messages, opt.template
      else
        request.prompt = sample.shown
      end
      local answer = q.no_grad(generate.answer, model, request)
      tell(("step %d, %s: %s"):format(step, (sample.shown:gsub("%s+", " "):sub(1, 60)), (answer:gsub("%s+", " "))))
      q.fs.append(opt.out .. "/samples.jsonl", q.json.encode { step = step, prompt = sample.shown, answer = answer } .. "\n")
    end
  end
end

return samples
