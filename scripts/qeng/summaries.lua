-- What an object says when it is printed or typed at the prompt: its class, and what matters of it in a few lines.
-- The name given here is the one under which help(x) finds the reference of the class (console/help.lua).

local adamw = require "qeng.train.adamw"
local banner = require "qeng.train.banner"
local chat = require "qeng.chat"
local conversation = require "qeng.infer.conversation"
local engine = require "qeng.infer.engine"
local experts = require "qeng.model.experts"
local inertia = require "qeng.onebit.inertia"
local models = require "qeng.model"
local phases = require "qeng.onebit.phases"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local runs = require "qeng.train.run"

local summaries = {
  -- Classes of the Lua library. Their metatables are in no registry.
  classes = {
    Model = models.Model, Adapter = models.Adapter, Template = chat.Template, Engine = engine.Engine,
    Request = request.Request, Conversation = conversation.Conversation, Inertia = inertia.Inertia,
    Phases = phases.Phases,
    Run = runs.Run, Optimizer = adamw.Optimizer,
  },
}

local count, bytes = banner.count, progress.bytes

-- "f32 12 k, q4_k 0.4 B": the elements of each dtype, the most first. Also the bytes of all.
local function stored(parameters)
  local by, names, total = {}, {}, 0
  for _, parameter in ipairs(parameters) do
    local dtype = parameter.tensor:dtype()
    if not by[dtype] then by[dtype], names[#names + 1] = 0, dtype end
    by[dtype], total = by[dtype] + parameter.tensor:elements(), total + parameter.tensor:bytes()
  end
  table.sort(names, function(a, b) return by[a] > by[b] or by[a] == by[b] and a < b end)
  local parts = {}
  for i, name in ipairs(names) do parts[i] = #names > 1 and name .. " " .. count(by[name]) or name end
  return table.concat(parts, ", "), total
end

local function trains(model)
  if model.mode == "frozen" then return "nothing (model:lora { } or model:full() changes that)" end
  return banner.trained(model, nil)
end

local texts = {}

function texts.Model(m)
  local c = m.config
  local dtypes, size = stored(m.parameters)
  local all = 0
  for _, parameter in ipairs(m.parameters) do all = all + parameter.tensor:elements() end
  local origin = m.dir and ", of " .. m.dir or m.gguf and ", of a GGUF file" or ""
  local lines = { ("Model %s (%s)%s"):format(m.arch.model_type, m.arch.hf, origin) }
  local function add(name, ...) lines[#lines + 1] = ("  %-11s "):format(name) .. (...):format(select(2, ...)) end
  local active = experts.active(m)
  add("parameters", "%s%s: %s, %s%s%s", count(all), active and (", a token meets %s"):format(count(active)) or "",
    dtypes, bytes(size),
    c.tied and ", head and embedding are one" or "", m.stream and ", streamed" or "")
  add("computes in", "%s, on %s", m.dtype, banner.device())
  add("layers", "%d, hidden %d, MLP %d", c.layers, c.hidden, c.ffn)
  if c.experts then add("experts", "%d of %d, each of %d", c.experts.used, c.experts.count, c.experts.ffn) end
  add("heads", "%d of %d, %s%s", c.heads, c.head_dim,
    c.kv_heads and ("%d of keys and values"):format(c.kv_heads) or ("states of %d"):format(c.state),
    (c.window or 0) > 0 and (", a window of %d"):format(c.window) or "")
  add("vocabulary", "%d, up to %d positions", c.vocab, c.max_position)
  add("tokenizer", "%s", m.tokenizer and tostring(m.tokenizer) or "none")
  add("trains", "%s", trains(m))
  return table.concat(lines, "\n")
end

function texts.Adapter(a)
  local layers = 0
  for _ in pairs(a.layers) do layers = layers + 1 end
  return ("Adapter of %d layers%s"):format(layers, a.dir and ", of " .. a.dir or "")
end

function texts.Template(t) return ("Template %s, of %s"):format(t.name, tostring(t.tokenizer)) end

function texts.Engine(e)
  local s = e:stats()
  return ("Engine: %d requests running, %d waiting; %d of %d pages used, %s of %s"):format(s.running, s.waiting,
    s.used, s.pages, bytes(s.kv_bytes), bytes(s.kv_capacity))
end

function texts.Request(r)
  return ("Request %s: %d tokens of prompt, %d of output%s"):format(r.state or "new", r.prompt_tokens, #r.output,
    r.finish and ", ended by " .. tostring(r.finish) or "")
end

function texts.Conversation(c)
  return ("Conversation of %d messages%s, in a context of %d"):format(#c.messages,
    c.system and " and a system message" or "", c.engine.context)
end

function texts.Inertia(i)
  return ("Inertia: %s one-bit weights learn in %d parts, %s levels"):format(count(i.weights), #i.parts,
    tostring(i.knobs.levels))
end
function texts.Phases(p)
  return ("Phases: %s of %s one-bit weights learn at a time, in turns of %d steps"):format(count(p.active),
    count(p.total), p.steps)
end

function texts.Optimizer(o)
  local lr = o.lr or o:rate()
  return ("Optimizer: AdamW, %d steps%s"):format(o.at, lr and (", learning rate %.3g"):format(lr) or "")
end
function texts.Run(r)
  local done = r.state and ("step %d"):format(r.state.step) or "not begun"
  return ("Run in %s: %s of %d steps"):format(r.out, done, r.total)
end

function texts.PacketFile(f)
  local meta = f:meta()
  local tokenizer = meta.tokenizer and (", tokenizer %s"):format(tostring(meta.tokenizer)) or ""
  local template = meta.template and (", template %s"):format(tostring(meta.template)) or ""
  return ("PacketFile: %d records%s%s"):format(f:records(), tokenizer, template)
end

function texts.Batch(b)
  local i = b:info()
  return ("Batch of %d slots: %d tokens, %d of them trained, %d documents"):format(i.tokens, i.real_tokens,
    i.trained_tokens, i.documents)
end

function texts.TokenBatch(b) return ("TokenBatch: %d documents, %d tokens"):format(#b, b:tokens()) end
function texts.Weights(w)
  local architecture = w:get "general.architecture"
  return ("Weights: %s%d tensors"):format(architecture and tostring(architecture) .. ", " or "", #w:names())
end
function texts.TokenMask(m) return ("TokenMask: %d of %d tokens may come"):format(m:count(), #m) end
function texts.Hub(h) return ("Hub %s, cache %s"):format(h:settings().endpoint, h:settings().cache) end

function texts.PagePool(p)
  local s = p:stats()
  return ("PagePool: %d of %d pages of %d tokens used, %d sequences"):format(s.used, s.pages, s.page_tokens,
    s.sequences)
end

function texts.WeightStream(w)
  local f = w:figures()
  return ("WeightStream: %s of %s of weights in memory"):format(bytes(f.resident), bytes(f.total))
end

for class, text in pairs(texts) do
  local meta = summaries.classes[class] or debug.getregistry()["qeng." .. class]
  meta.__name = class
  function meta.__tostring(object)
    local ok, said = pcall(text, object)  -- a closed object can only say its class
    return ok and said or class
  end
end

setmetatable(q, { __tostring = function() return ("qeng %s: help(q) lists its names"):format(q.version) end })

return summaries
