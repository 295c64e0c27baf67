-- Slots of a server: what one keeps is saved, comes back in another process's server under the same numbers of tokens,
-- gives the same answers, and is erased; requests choose their slots; files outside the folder slots are refused.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local fake = require "server_fake"
local scratch = require "scratch"

q.device { device = "cpu", threads = 1 }
local root = scratch.at "root"
q.fs.mkdir(root)
local listener = fake.new()
local model = q.load("recipes/tiny", { dtype = "f32" })
local function new(folder)
  return require("qeng.server").new {
    models = { { "tiny", model } }, http = listener, root = folder, engine = { max_batch = 4, page_tokens = 8 },
  }
end
local server = new(root)
local function ask(method, path, body, expected) return listener:ask(server, method, path, body, expected) end
local function equal(a, b, what)
  if a ~= b then error(("%s: %s, expected %s"):format(what, tostring(a), tostring(b)), 2) end
end

local text = ("The hat is on the ladder, and the dog is in the jar. "):rep(3)
local function say(slot)
  local answer = ask("POST", "/v1/completions", { prompt = text, max_tokens = 8, temperature = 0, id_slot = slot })
  return answer.choices[1].text, answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens
end
equal(#ask("GET", "/slots"), 0, "slots that have something")
local expected, cached, prompt = say(2)
equal(cached, 0, "cached at first")
local list = ask("GET", "/slots")
equal(#list, 1, "slots")
equal(list[1].id, 2, "the slot that was asked for")
equal(list[1].is_processing, false, "is_processing")
equal(list[1].n_tokens >= prompt, true, "tokens of the prompt and the answer")
say()
equal(#ask("GET", "/slots"), 2, "another takes another slot")
say(-1)
equal(#ask("GET", "/slots"), 3, "and so does the next")

local saved = ask("POST", "/slots/2?action=save", { filename = "hat.bin" })
equal(saved.n_saved >= prompt - prompt % 8, true, "whole pages of the prompt")
equal(saved.n_written, #q.fs.read(root .. "/slots/hat.bin.safetensors"), "bytes")

-- A full disk: the client is told, the file that was there stays, and so does what the slot keeps.
local save, stderr, whole = q.safetensors.save, io.stderr, q.fs.read(root .. "/slots/hat.bin.safetensors")
q.safetensors.save = function() q.error("io", "no space left on device") end
io.stderr = { write = function() end }
ask("POST", "/slots/2?action=save", { filename = "hat.bin" }, 500)
q.safetensors.save, io.stderr = save, stderr
equal(q.fs.read(root .. "/slots/hat.bin.safetensors") == whole, true, "the file that was there")
equal(ask("POST", "/slots/2?action=save", { filename = "again" }).n_saved, saved.n_saved, "the slot after that")

server = new(root)
ask("POST", "/slots/1?action=save", { filename = "empty" }, 400)
local restored = ask("POST", "/slots/1?action=restore", { filename = "hat.bin" })
equal(restored.n_restored, saved.n_saved, "restored")
equal(ask("GET", "/slots")[1].id, 1, "the slot that it was restored to")
local again, reused = say(1)
equal(again, expected, "the answer")
equal(reused >= prompt - 8 and reused > 0, true, "of the prompt is computed no more than a page")
equal(ask("POST", "/slots/1?action=erase").n_erased > 0, true, "erased")
equal(#ask("GET", "/slots"), 0, "slots after that")
equal(select(2, say()), 0, "nothing is cached any more")

for _, name in ipairs { "../hat.bin", "/etc/passwd", "a/b", "", ".hidden", "hat\0.bin" } do
  ask("POST", "/slots/0?action=save", { filename = name }, 400)
end
ask("POST", "/slots/0?action=restore", { filename = "none" }, 404)
ask("POST", "/slots/0?action=burn", { filename = "hat.bin" }, 400)
ask("POST", "/slots/0", { filename = "hat.bin" }, 400)
ask("POST", "/slots/4?action=erase", nil, 404)
ask("POST", "/slots/3?action=erase", nil, 400)
ask("POST", "/slots/x?action=erase", nil, 404)
ask("POST", "/v1/completions", { prompt = "a", id_slot = 4 }, 400)
q.fs.write(root .. "/slots/bad.safetensors", "no tensors")
ask("POST", "/slots/3?action=restore", { filename = "bad" }, 400)
server = new(nil)
say(0)
ask("POST", "/slots/0?action=save", { filename = "hat.bin" }, 403)
