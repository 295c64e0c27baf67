-- help(x) of names, functions, parts of q and objects; and what objects say when they are printed.
local q = require "qeng"
local scratch = require "scratch"
local repl = require "qeng.console.repl"

-- What fn(...) prints.
local function said_by(fn, ...)
  local said
  local print_ = print
  print = function(text) said = text end
  fn(...)
  print = print_
  return said
end
local function helped(...) return said_by(q.help, ...) end
local function begins(text, wanted)
  assert(text:sub(1, #wanted) == wanted, ("expected %s at the start of:\n%s"):format(wanted, text))
end

-- ---- every documented name, and every documented function as a value, has its own reference
local functions, classes = 0, {}
for line in (require "qeng.library_file"("bindings/api.lua") .. "\n"):gmatch "(.-)\n" do
  local name, arguments = line:match "^function ([%w_.:]+)(%b())"
  local class = line:match "^%-%-%-@class ([%w_]+)"
  if class then classes[#classes + 1] = class end
  if name then
    begins(helped(name), name .. arguments)
    local value = name:match "^q%." and q
    for part in name:gsub("^q%.", ""):gmatch "[%w_]+" do value = value and value[part] end
    if value then
      functions = functions + 1
      begins(helped(value), name .. arguments)
    end
  end
end
assert(functions > 100, functions .. " functions found")
for _, class in ipairs(classes) do begins(helped(class), "class " .. class) end

-- ---- q and its parts
assert(helped(q) == helped() and helped(q):find "q.adamw_state")
begins(helped(q.fs), "q.fs\n  q.fs.read(path)")
assert(helped(q.fs) == helped "q.fs" and helped "fs" == helped(q.fs))

-- ---- objects, of C++ and of the library
local lines = {}
for i = 1, 20 do lines[i] = q.json.encode { prompt = "how many? " .. i, completion = ("%d geese"):format(i) } end
q.fs.write(scratch.at "data.jsonl", table.concat(lines, "\n") .. "\n")
local model = q.load "recipes/tiny"
local file = q.packets(scratch.at "data.jsonl", { tokenizer = model.tokenizer, cache_dir = scratch.folder })
local batches = file:batches { row_tokens = 64 }
local engine = model:engine { max_batch = 2 }
local request = engine:submit { ids = { 1, 2, 3 }, max_tokens = 2 }
local untouched = tostring(model)
model:lora { rank = 4 }
model:save_adapter(scratch.at "adapter")
local objects = {
  { model, "class Model", "Model qwen2 (Qwen2ForCausalLM), of recipes/tiny\n  parameters  772 k: bf16, 1.5 MB" },
  { model.tokenizer, "class Tokenizer", "Tokenizer tiny, 1024 tokens" },
  { file, "class PacketFile", "PacketFile: 20 records, tokenizer tiny, template model" },
  { batches, "class Batches", "Batches" },
  { batches:next(), "class Batch", "Batch of 64 slots: " },
  { engine, "class Engine", "Engine: 0 requests running, 1 waiting; 0 of " },
  { request, "class Request", "Request waiting: 3 tokens of prompt, 0 of output" },
  { q.conversation(model, {}), "class Conversation", "Conversation of 0 messages, in a context of 1024" },
  { q.chat_template(model.tokenizer), "class Template", "Template model, of Tokenizer tiny" },
  { q.load("recipes/tiny"):read_adapter(scratch.at "adapter"), "class Adapter", "Adapter of 21 layers, of " },
  { q.safetensors.open "recipes/tiny", "class Weights", "Weights: 38 tensors" },
  { q.tensor { 1, 2 }, "class Tensor" }, { q.memory(), "q.memory()" }, { q.sampler(), "class Sampler" },
  { model.tokenizer:encode_batch { "a", "b" }, "class TokenBatch", "TokenBatch: 2 documents, 2 tokens" },
}
for _, one in ipairs(objects) do
  begins(helped(one[1]), one[2])
  if one[3] then begins(tostring(one[1]), one[3]) end
end
assert(helped(model):find("\n    .recompute: boolean", 1, true) and
  helped(model.generate):find "^Model:generate%(opt%)")
assert(untouched:find "trains +nothing" and
  tostring(model):find "trains +LoRA of rank 4, alpha 8, on all linear layers: 30.7 k %(3.83 %% of 803 k%)")
assert(helped "Tensor.view" == helped "Tensor:view" and helped "model" == helped "Model")
assert(helped(q.train):find "row_tokens =" , "the fields of q.train are not told")
assert(helped(model.generate):find("\n      .top_k?: integer\n", 1, true), "fields that GenerateOptions inherits")

-- ---- what has no reference says so
begins(helped(string.format), "string.format is Lua's own")
begins(helped(model.forward), "a function of qeng/model/nn.lua, line ")
begins(helped(5), "no reference for this number")
begins(helped {}, "no reference for this table")

-- ---- at the prompt a large value takes a few lines; an object within a table takes one
local function lines_of(text) return select(2, text:gsub("\n", "")) + 1 end
assert(lines_of(repl.text(model)) <= 10 and lines_of(repl.text(q)) == 1)
assert(repl.text { model } == "{Model qwen2 (Qwen2ForCausalLM), of recipes/tiny}")
local shown = said_by(repl.show, model.parameters)
assert(lines_of(shown) == 61 and shown:find "\n%.%.%. %d+ more lines$", lines_of(shown) .. " lines of parameters")

engine:close()
print "help: ok"
