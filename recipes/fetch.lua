-- Downloads a model, a split of a dataset, or chosen files from a hub like Hugging Face's, and prints where they lie.
--   qeng recipes/fetch.lua Qwen/Qwen2.5-0.5B-Instruct
--   qeng recipes/fetch.lua org/chats:train --kind dataset
-- In the other recipes --model org/name and --data org/name do the same. Run it again to go on with a download that
-- was interrupted.

local q = require "qeng"

local opt = q.options {
  "Downloads from the hub that HF_ENDPOINT names (huggingface.co) into the folder that Hugging Face's tools share.",
  positional = { "name" },
  { "name", nil, "org/name[@revision], of a dataset also :config, :split or :config:split; also as the first word",
    required = true },
  { "kind", "model", "what it is", choices = { "model", "dataset" } },
  { "files", {}, "only files like these instead of what qeng needs: '*.json,data/*'" },
}

local folder, commit
if #opt.files > 0 then
  folder, commit = q.hub.files(opt.name, opt.kind, opt.files)
elseif opt.kind == "model" then
  folder, commit = q.hub.model(opt.name)
else
  folder, commit = q.hub.data(opt.name)
end
io.stderr:write(("commit %s; name it to get the same again: --model or --data %s@%s%s\n"):format(
  commit, opt.name:match "^[^@:]+", commit, opt.name:match ":.*" or ""))
print(folder)
