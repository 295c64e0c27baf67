-- What an engine remembers goes into a file and comes back in another engine: the same answers to the bit, with the
-- prompt's pages reused; files of other weights, adapters or caches, and damaged ones, are refused.
local q = require "qeng"

q.device { device = "cpu", threads = 1 }
local model = q.load("recipes/tiny", { dtype = "f32" })
local folder = os.tmpname()
os.remove(folder)
q.fs.mkdir(folder)

local ids, vocab = {}, model.config.vocab
for i = 1, 77 do ids[i] = (i * i) % vocab end

local function ask(engine, prompt)
  local r = engine:submit {
    ids = prompt or ids, max_tokens = 12, temperature = 1, seed = 3, logprobs = 0, stop_ids = {},
  }
  engine:finish()
  local said = {}
  for i, entry in ipairs(r.logprobs) do said[i] = ("%d %.17g"):format(entry.id, entry.logprob) end
  return table.concat(said, "\n"), r.reused
end
local function refused(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and tostring(err.message or err):find(text, 1, true), ("expected '%s', got %s"):format(text,
    tostring(not ok and (err.message or err))))
end

for _, kv in ipairs { "f32", "bf16", "q8_0" } do
  local opt = { kv = kv, pages = 32, page_tokens = 8 }
  local first, path = model:engine(opt), ("%s/%s.safetensors"):format(folder, kv)
  refused("nothing is remembered", first.save_prefix, first, path, ids)
  local expected = ask(first)
  local saved = first:save_prefix(path, ids)
  assert(saved == 72, ("%s: %d tokens saved"):format(kv, saved))
  local second = model:engine(opt)
  local back = second:load_prefix(path)
  assert(#back == 72 and back[1] == ids[1] and back[72] == ids[72])
  local said, reused = ask(second)
  assert(reused == 72, ("%s: %d tokens reused"):format(kv, reused))
  assert(said == expected, kv .. ": another answer")
  assert(second:stats().used == 0, "pages stay in use")
  assert(second:forget_prefix(ids) == 72 and select(2, ask(second)) == 0, "it is not forgotten")
  refused("page_tokens is 8", function()
    local other = model:engine { kv = kv, pages = 32, page_tokens = 16 }
    other:load_prefix(path)
  end)
  refused("room for 4", function()
    local other = model:engine { kv = kv, pages = 4, page_tokens = 8 }
    other:load_prefix(path)
  end)
  refused("adapter is the model's", second.load_prefix, second, path, false)
  for _, engine in ipairs { first, second } do engine:close() end
end

-- Codes, and the rows beside them that are exact: those of the first tokens and the last ones. A beginning that is
-- longer than there are exact pages comes back as well.
for _, kv in ipairs { "tq4,tail=20,sinks=2", "tq3/f16,tail=0,sinks=0", "q8_0/tq2,tail=40" } do
  for _, length in ipairs { 77, 640 } do
    local prompt = {}
    for i = 1, length do prompt[i] = (i * i) % vocab end
    local opt, path = { kv = kv, pages = 64, max_batch = 2, chunk = 32 }, folder .. "/codes.safetensors"
    local first, second, whole = model:engine(opt), model:engine(opt), length - length % 16
    local expected = ask(first, prompt)
    local saved = first:save_prefix(path, prompt)
    assert(saved % 16 == 0 and saved > 0 and saved <= whole and #second:load_prefix(path) == saved, kv .. ": " .. saved)
    local said, reused = ask(second, prompt)
    assert(said == expected and reused > 0 and reused <= saved, ("%s, %d tokens: another answer"):format(kv, length))
    for _, engine in ipairs { first, second } do engine:close() end
    q.fs.remove(path)
  end
end

-- Pages of a recurrent model are snapshots of its state.
do
  local recurrent = q.random_model({
    architectures = q.json.array { "Mamba2ForCausalLM" }, model_type = "mamba2", hidden_size = 64,
    num_hidden_layers = 2, num_heads = 8, head_dim = 16, state_size = 16, n_groups = 2, conv_kernel = 4,
    vocab_size = vocab, tie_word_embeddings = true,
  }, { dtype = "f32" })
  local opt, path = { pages = 32, page_tokens = 8 }, folder .. "/recurrent.safetensors"
  local first, second = recurrent:engine(opt), recurrent:engine(opt)
  local expected = ask(first)
  assert(first:save_prefix(path, ids) == 72 and #second:load_prefix(path) == 72)
  local said, reused = ask(second)
  assert(said == expected and reused == 72, "snapshots come back otherwise")
end

-- Another model's, and a file that is cut off, in each of its parts.
local path = folder .. "/f32.safetensors"
local engine = model:engine { kv = "f32", pages = 32, page_tokens = 8 }
local other = q.load("recipes/tiny", { dtype = "bf16" })
refused("weights is", function() other:engine({ kv = "f32", pages = 32, page_tokens = 8 }):load_prefix(path) end)
refused("remember = false", function()
  model:engine({ kv = "f32", pages = 32, page_tokens = 8, remember = false }):load_prefix(path)
end)
refused("kv is", engine.load_prefix, engine, folder .. "/bf16.safetensors")
local bytes = q.fs.read(path)
for _, length in ipairs { 0, 7, 200, #bytes - 1 } do
  q.fs.write(folder .. "/cut.safetensors", bytes:sub(1, length))
  assert(not pcall(engine.load_prefix, engine, folder .. "/cut.safetensors"), "taken: " .. length)
end
assert(engine:stats().used == 0 and engine:stats().remembered == 0, "a file that is refused leaves nothing")
assert(ask(engine) ~= "", "the engine goes on")
q.fs.remove(folder)
