-- The entries of a GGUF file that is written: a model's settings in the words of its architecture, its tokenizer, and
-- where answers end.

local gguf_stops = require "qeng.gguf.stops"
local names = require "qeng.gguf.names"
local q = require "qeng.core"
local request = require "qeng.infer.request"

local function add_rope(add, arch, c)
  local a, scaling = arch.gguf.architecture, c.rope.scaling
  add(a .. ".rope.freq_base", "f32", c.rope.theta)
  if not scaling then return end
  local kind = scaling.rope_type
  if kind == "llama3" and not arch.gguf.rope_freqs then
    q.error("unsupported", ("gguf: rope scaling llama3 has no words in architecture %s"):format(a))
  end
  if kind == "llama3" then return end  -- tensor rope_freqs.weight says it
  if kind == "longrope" and arch.gguf.longrope then  -- and two tensors have its factors
    local original = scaling.original_max_position_embeddings or c.max_position
    local longer = scaling.factor or c.max_position / original
    add(a .. ".rope.scaling.original_context_length", "u32", original)
    add(a .. ".rope.scaling.attn_factor", "f32", scaling.attention_factor
      or longer > 1 and math.sqrt(1 + math.log(longer) / math.log(original)) or 1)
    return
  end
  if kind ~= "linear" and kind ~= "yarn" then
    q.error("unsupported", ("gguf: rope scaling %s has no words in the format"):format(kind))
  end
  add(a .. ".rope.scaling.type", "string", kind)
  add(a .. ".rope.scaling.factor", "f32", scaling.factor)
  if kind == "yarn" then
    add(a .. ".rope.scaling.original_context_length", "u32", scaling.original_max_position_embeddings or c.max_position)
    local own_betas = (scaling.beta_fast or 32) ~= 32 or (scaling.beta_slow or 1) ~= 1
    local other_ends = (scaling.truncate ~= false) == (arch.gguf.untruncated or false)
    if own_betas or other_ends or scaling.mscale then
      q.error("unsupported", "gguf: YaRN with beta_fast, beta_slow, truncate or mscale of its own is not written")
    end
    if scaling.attention_factor then
      add(a .. ".rope.scaling.attn_factor", "f32", scaling.attention_factor / (0.1 * math.log(scaling.factor) + 1))
    end
  end
end

-- The ids that end an answer beside eos. llama.cpp reads one as eot and one as eom, and knows those with common names.
-- The others go to an entry that only qeng reads. Returns a note about those, or nil. stops: a set of all.
local function add_stops(add, tokenizer, stops)
  local space, eot = "tokenizer.ggml.", nil
  local by_name, others = request.stops { tokenizer = tokenizer, stop_ids = gguf_stops.named(tokenizer) }, {}
  for _, name in ipairs { "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>" } do
    local id = tokenizer:id(name)
    eot = eot or by_name[id or -1] and id
  end
  for id in pairs(stops) do
    if not by_name[id] then others[#others + 1] = id end
  end
  table.sort(others)
  eot = eot or table.remove(others, 1)
  local eom = table.remove(others, 1)
  if eot then add(space .. "eot_token_id", "u32", eot) end
  if eom then add(space .. "eom_token_id", "u32", eom) end
  if #others == 0 then return nil end
  add("qeng.stop_token_ids", "[u32]", others)
  return ("answers also end at token %s, for which llama.cpp has no key: qeng alone stops there"):format(
    table.concat(others, ", "))
end

local function add_tokenizer(add, tokenizer, vocab, stops)
  local space = "tokenizer.ggml."
  if not tokenizer then return add(space .. "model", "string", "none") end
  local lists, info = tokenizer:vocabulary(), tokenizer:info()
  local missing = lists.model == "llama" and "<unused%d>" or "[PAD%d]"
  if #lists.tokens > vocab then
    q.error("value", ("gguf: the tokenizer has %d tokens, the model %d embeddings"):format(#lists.tokens, vocab))
  end
  for id = #lists.tokens, vocab - 1 do
    lists.tokens[id + 1], lists.types[id + 1] = missing:format(id), 5
    if lists.scores then lists.scores[id + 1] = -1e4 end
  end
  add(space .. "model", "string", lists.model)
  add(space .. "pre", "string", lists.pre)
  add(space .. "tokens", "[string]", lists.tokens)
  if lists.scores then add(space .. "scores", "[f32]", lists.scores) end
  add(space .. "token_type", "[i32]", lists.types)
  if lists.merges then add(space .. "merges", "[string]", lists.merges) end
  if info.bos then add(space .. "bos_token_id", "u32", info.bos) end
  if info.eos then add(space .. "eos_token_id", "u32", info.eos) end
  local note = add_stops(add, tokenizer, stops)
  if info.pad then add(space .. "padding_token_id", "u32", info.pad) end
  add(space .. "add_bos_token", "bool", info.add_bos)
  if lists.model == "llama" then add(space .. "add_space_prefix", "bool", lists.add_space_prefix) end
  if info.chat_template then add("tokenizer.chat_template", "string", info.chat_template) end
  return note
end

-- The window of all layers. Returns a note if the window matters and llama.cpp has no key for it.
local function add_window(add, arch, c)
  if (c.window or 0) == 0 then return nil end
  if arch.gguf.window then return add(arch.gguf.architecture .. "." .. arch.gguf.window, "u32", c.window) end
  add("qeng.sliding_window", "u32", c.window)
  if c.window >= c.max_position then return nil end
  return ("attention looks back over %d tokens, for which llama.cpp has no key in this architecture: it looks at all "
    .. "%d, qeng alone keeps the window"):format(c.window, c.max_position)
end

-- The metadata of a model with settings c, the architecture's GGUF word, and a list of notes. from: {tokenizer =,
-- dir =, stop_ids =, suppressed =} of the model, as request.stops and request.suppressed take them; drafts: there is a
-- head that drafts tokens. The model file's gguf.write(add, c) adds further entries of the architecture, with keys that
-- lack its word. It may return a note.
local function metadata(arch, c, name, from)
  local a = names.architecture(arch)
  local list = {}
  local function add(key, type, value) list[#list + 1] = { key, type, value } end
  add("general.architecture", "string", a)
  add("general.type", "string", "model")
  add("general.name", "string", name)
  add(a .. ".block_count", "u32", c.layers + (from.drafts and 1 or 0))
  if from.drafts then add(a .. ".nextn_predict_layers", "u32", 1) end
  add(a .. ".context_length", "u32", c.max_position)
  add(a .. ".embedding_length", "u32", c.hidden)
  add(a .. ".feed_forward_length", "u32", c.ffn)
  if c.experts then
    add(a .. ".expert_count", "u32", c.experts.count)
    add(a .. ".expert_used_count", "u32", c.experts.used)
  end
  add(a .. ".attention.head_count", "u32", arch.gguf.values and 0 or c.heads)
  if not arch.gguf.values then
    add(a .. ".attention.head_count_kv", "u32", c.kv_heads)
    add(a .. ".attention.key_length", "u32", c.head_dim)
    add(a .. ".attention.value_length", "u32", c.head_dim)
  end
  add(a .. "." .. (arch.gguf.eps or "attention.layer_norm_rms_epsilon"), "f32", c.eps)
  if c.rope then add(a .. ".rope.dimension_count", "u32", c.rotary or c.head_dim) end
  add(a .. ".vocab_size", "u32", c.vocab)
  local notes = { add_window(add, arch, c) }
  if arch.gguf.write then
    notes[#notes + 1] = arch.gguf.write(function(key, type, value) add(a .. "." .. key, type, value) end, c)
  end
  if c.rope then add_rope(add, arch, c) end
  notes[#notes + 1] = add_tokenizer(add, from.tokenizer, c.vocab, request.stops(from))
  local suppressed = request.suppressed(from)
  if #suppressed > 0 then add("tokenizer.ggml.suppress_tokens", "[i32]", suppressed) end
  return list, a, notes
end

return metadata
