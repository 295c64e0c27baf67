-- Downloads a model, a split of a dataset, or chosen files from a Hugging Face-compatible hub, and prints where they lie:
--   qeng recipes/fetch.lua Qwen/Qwen2.5-0.5B-Instruct
--   qeng recipes/fetch.lua org/chats:train --kind dataset
-- --model org/name and --data org/name do the same inside the other recipes. An interrupted download goes on when run again.

local q = require "qeng"

local opt = q.options {
  "Downloads from the hub that HF_ENDPOINT names (huggingface.co) into the folder that Hugging Face's tools share.",
  positional = { "name" },
  name = { nil, "org/name[@revision], of a dataset also :config, :split or :config:split; also as the first word", required = true, order = 1 },
  kind = { "model", "what it is", choices = { "model", "dataset" }, order = 2 },
  files = { "", "only files like these, by commas, instead of what qeng needs: '*.json,data/*'", order = 3 },
}

local folder, commit
if opt.files ~= "" then
  local patterns = {}
  for pattern in opt.files:gmatch "[^,]+" do patterns[#patterns + 1] = pattern end
  folder, commit = q.hub.files(opt.name, opt.kind, patterns)
elseif opt.kind == "model" then
  folder, commit = q.hub.model(opt.name)
else
  folder, commit = q.hub.data(opt.name)
end
io.stderr:write(("commit %s; name it to get the same again: --model or --data %s@%s%s\n"):format(commit, opt.name:match "^[^@:]+", commit, opt.name:match ":.*" or ""))
print(folder)
