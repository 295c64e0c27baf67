-- A memory that routes prompts: hidden states of examples are stored under a route (the name of an adapter, of an edit,
-- of anything), and a new prompt goes where it is likest. Recall is measured against load.
--   qeng recipes/memory.lua --model ~/Qwen2.5-0.5B-Instruct --data routes.jsonl --ask "How do I sort a list?"

local q = require "qeng"

local opt = q.options {
  "Stores {\"prompt\", \"route\"} by their hidden states, and says where prompts go.",
  "model",
  { "data", nil, "JSONL of prompts and their routes", kind = "input", required = true },
  { "ask", "", "a prompt to route" },
  { "beta", 16, "how sharply the nearest counts", min = 0 },
  { "held_out", 0.25, "share of the prompts that are not stored, and asked", min = 0, max = 0.9 },
  { "noise", 0.5, "of the cues that recall is measured with, as a share of a state's length", min = 0, number = true },
  "device",
}
q.use_device(opt)

local model = q.load(opt.model, { dtype = opt.dtype, model_file = opt.model_file })
local memory, asked = q.hopfield(model, { beta = opt.beta }), {}
for count, record in ipairs(q.records(opt.data, { "prompt", "route" })) do
  -- Every n-th is held out.
  if math.floor(count * opt.held_out) > math.floor((count - 1) * opt.held_out) then
    asked[#asked + 1] = record
  else
    memory:store(record.prompt, record.route)
    if #memory.rows == 2 ^ math.floor(math.log(#memory.rows) / math.log(2) + 0.5) then
      print(("%5d stored: %3.0f %% recalled"):format(#memory.rows, 100 * memory:recalled(opt.noise)))
    end
  end
end
print(("%5d stored: %3.0f %% recalled"):format(#memory.rows, 100 * memory:recalled(opt.noise)))

local right = 0
for _, record in ipairs(asked) do
  if memory:recall(record.prompt) == record.route then right = right + 1 end
end
if #asked > 0 then print(("%d of %d held-out prompts go where they should"):format(right, #asked)) end
if opt.ask ~= "" then
  local route, share = memory:recall(opt.ask)
  print(("%s (%.0f %%)"):format(route, 100 * share))
end
