-- LoRA on a base that is larger than the memory it may have. Files of real shapes get random weights; a few steps are
-- trained with the weights streamed and resident; the losses are the same. stream_big.sh runs all of it.
--   qeng tests/campaigns/stream_big.lua write 7b q4_k FILE
--   qeng tests/campaigns/stream_big.lua train FILE stream|map [LIMIT in bytes] [tokens 64] [steps 3]
-- Shapes: 7b (Qwen2.5's), 13b (Llama 2's), small (for a try).

local q = require "qeng"

local shapes = {
  ["7b"] = { architecture = "qwen2", layers = 28, hidden = 3584, ffn = 18944, heads = 28, kv_heads = 4, vocab = 152064,
    theta = 1e6 },
  ["13b"] = { architecture = "llama", layers = 40, hidden = 5120, ffn = 13824, heads = 40, kv_heads = 40, vocab = 32000,
    theta = 1e4 },
  small = { architecture = "llama", layers = 8, hidden = 1024, ffn = 2816, heads = 8, kv_heads = 8, vocab = 4096,
    theta = 1e4 },
}

-- Pieces of 128 rows of random weights. Each is used in many places, because quantizing 13 billion weights takes an
-- hour.
local piece_rows, pieces_drawn = 128, 5
local pieces = {}
local function piece(columns, type, index)
  local key = columns .. " " .. index % pieces_drawn
  if not pieces[key] then
    local dense = q.randn({ piece_rows, columns },
      { std = columns ^ -0.5, seed = columns, subsequence = index % pieces_drawn })
    pieces[key] = q.quantize(dense, type)
  end
  return pieces[key]
end

local function write(name, type, path)
  local s = assert(shapes[name], "shape: 7b, 13b or small")
  local a, kv, specs = s.architecture, s.kv_heads * s.hidden / s.heads, {}
  local function add(tensor, ...)
    specs[#specs + 1] = { name = tensor, dtype = select("#", ...) > 1 and type or "f32", shape = { ... } }
  end
  add("token_embd.weight", s.vocab, s.hidden)
  for i = 0, s.layers - 1 do
    local function block(part, ...) add(("blk.%d.%s"):format(i, part), ...) end
    block("attn_norm.weight", s.hidden)
    block("attn_q.weight", s.hidden, s.hidden)
    block("attn_k.weight", kv, s.hidden)
    block("attn_v.weight", kv, s.hidden)
    block("attn_output.weight", s.hidden, s.hidden)
    if a == "qwen2" then block("attn_q.bias", s.hidden) block("attn_k.bias", kv) block("attn_v.bias", kv) end
    block("ffn_norm.weight", s.hidden)
    block("ffn_gate.weight", s.ffn, s.hidden)
    block("ffn_up.weight", s.ffn, s.hidden)
    block("ffn_down.weight", s.hidden, s.ffn)
  end
  add("output_norm.weight", s.hidden)
  add("output.weight", s.vocab, s.hidden)
  local writer = q.gguf.writer(path, specs, {
    { "general.architecture", "string", a }, { a .. ".block_count", "u32", s.layers },
    { a .. ".context_length", "u32", 4096 },
    { a .. ".embedding_length", "u32", s.hidden }, { a .. ".feed_forward_length", "u32", s.ffn },
    { a .. ".attention.head_count", "u32", s.heads }, { a .. ".attention.head_count_kv", "u32", s.kv_heads },
    { a .. ".attention.layer_norm_rms_epsilon", "f32", 1e-5 }, { a .. ".rope.freq_base", "f32", s.theta },
  })
  local weights, drawn = 0, 0
  for _, spec in ipairs(specs) do
    local rows, columns = spec.shape[1], spec.shape[2]
    if not columns then
      writer:write(spec.name, q.zeros(spec.shape, "f32"):fill(spec.name:find "norm" and 1 or 0))
    else
      for first = 0, rows - 1, piece_rows do
        drawn = drawn + 1
        writer:write(spec.name,
          piece(columns, type, drawn * 7 + first / piece_rows % 3):rows(0, math.min(piece_rows, rows - first)))
      end
      weights = weights + rows * columns
    end
  end
  writer:commit()
  print(("%s: %s, %.2f billion weights in %s"):format(path, name, weights / 1e9, type))
end

-- The peak memory of the process, of all kinds, in bytes.
local function high_water()
  return tonumber(q.fs.read("/proc/self/status"):match "VmHWM:%s*(%d+) kB") * 1024
end

local function train(path, weights, limit, tokens, steps)
  local begun = q.time()
  local model = q.load(path, { weights = weights, host_budget = limit })
  local vocab = model.config.vocab
  model:lora { rank = 8, seed = 1 }
  local loaded = q.time() - begun
  local ids, targets, positions = {}, {}, {}
  for i = 1, tokens do
    ids[i], positions[i] = (i * 7919 + i * i * 31) % vocab, i - 1
    targets[i] = ((i + 1) * 7919 + (i + 1) * (i + 1) * 31) % vocab
  end
  local micro_batch = {
    tokens = q.tensor(ids, "i32"), targets = q.tensor(targets, "i32"), positions = q.tensor(positions, "i32"),
    cu_q = q.tensor({ 0, tokens }, "i32"), scale = q.tensor { 1 / tokens },
  }
  local parameters = {}
  for i, parameter in ipairs(model:trainable()) do parameters[i] = parameter.tensor end
  local adamw = q.adamw_state(parameters, {})
  local program, loss = q.capture(function()
    local value = model:loss(micro_batch)
    value:backward()
    return value
  end)
  print(("loaded in %.1f s"):format(loaded))
  for step = 1, steps do
    local before, start = model.stream and model.stream:figures(), q.time()
    program:run()
    adamw:step { lr = 1e-3, clip = 1 }
    local seconds = q.time() - start
    local text = ("step %d  loss %.9g  %.1f s"):format(step, loss:item(), seconds)
    if before then
      local now = model.stream:figures()
      local fetch, stall = now.fetch_ms - before.fetch_ms, now.stall_ms - before.stall_ms
      text = ("%s  streamed %.2f GB in %.2f s, stalled %.3f s (%.2f %% of the step), %.1f %% hidden, %d ahead, " ..
          "%.2f of %.2f GB resident"):format(
        text, (now.bytes - before.bytes) / 1e9, fetch / 1e3, stall / 1e3, stall / 10 / seconds,
        100 * (1 - stall / math.max(fetch, 1e-9)), now.depth,
        now.resident / 1e9, now.total / 1e9)
    end
    print(text)
  end
  print(("VmHWM %.3f GB (%s)"):format(high_water() / 1e9, weights))
end

if arg[1] == "write" then
  write(arg[2], arg[3], arg[4])
elseif arg[1] == "train" then
  train(arg[2], arg[3], tonumber(arg[4]), tonumber(arg[5] or 64), tonumber(arg[6] or 3))
else
  error("write SHAPE TYPE FILE, or train FILE stream|map [LIMIT] [tokens] [steps]", 0)
end
