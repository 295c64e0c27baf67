-- Mamba-2 (Dao & Gu 2024, arXiv 2405.21060): blocks of one mixer, a recurrence in place of attention. Head h has a
-- state S [head_dim, state] that each token decays, adds to and reads:
--   S <- exp(dt A_h) S + dt x B^T,   y = S C + D_h x
-- x, B and C come from a projection and a convolution over the last tokens, dt from the projection. The heads of a
-- group share B and C. Training computes chunks of tokens by products of matrices (section 6 there), inference token by
-- token: so a sequence's bits depend neither on the batch nor on how its prompt was cut.

local conv_pages = require "qeng.model.conv_pages"
local nn = require "qeng.model.nn"
local q = require "qeng.core"
local snapshots = require "qeng.model.snapshots"

local Mamba2 = { hf = "Mamba2ForCausalLM", model_type = "mamba2" }

Mamba2.names = {
  body = "backbone", embed = "embeddings", positions = "positions", layers = "layers", norm = "norm_f",
}

-- The least and the most that dt may be, nil where there is no bound. JSON has {"__float__": "Infinity"} for the
-- latter.
local function limits_of(file)
  local given, limits = file:get("time_step_limit", { 0, math.huge }), {}
  for i, each in ipairs(given) do
    limits[i] = type(each) == "table" and each.__float__ == "Infinity" and math.huge or each
  end
  local low, high = limits[1], limits[2]
  if #limits ~= 2 or type(low) ~= "number" or type(high) ~= "number" or not (low >= 0 and low <= high) then
    q.error("format", file.path .. ": key time_step_limit is not two numbers, the least and the most")
  end
  return low > 0 and low or nil, high < math.huge and high or nil
end

function Mamba2.config(file)
  local c = {
    hidden = file:size("hidden_size", 4096), layers = file:size("num_hidden_layers", 64),
    heads = file:size("num_heads", 128), head_dim = file:size("head_dim", 64), state = file:size("state_size", 128),
    groups = file:size("n_groups", 8), width = file:size("conv_kernel", 4), vocab = file:size("vocab_size", 32768),
    eps = file:positive("layer_norm_epsilon", 1e-5), tied = file:tied(false), bias = file:get("use_bias", false),
    conv_bias = file:get("use_conv_bias", true), f32_residual = file:get("residual_in_fp32", true),
    ffn = 0, max_position = 2 ^ 20,
  }
  c.least, c.most = limits_of(file)
  c.inner = c.heads * c.head_dim
  local expand = file:positive("expand", 2)
  if c.inner ~= expand * c.hidden or c.heads % c.groups ~= 0 or c.width < 2 or c.width > 8 then
    q.error("format", ("%s: %d heads of %d in %d groups, hidden_size %d, expand %s, conv_kernel %d; expected heads "
      .. "that fill expand * hidden_size and the groups, and a kernel of 2 to 8"):format(file.path, c.heads, c.head_dim,
      c.groups, c.hidden, tostring(expand), c.width))
  end
  file:must("hidden_act", "silu")
  file:must("rms_norm", true)
  for key in ("chunk_size time_step_rank time_step_min time_step_max time_step_floor rescale_prenorm_residual "
    .. "norm_before_gate"):gmatch "%S+" do
    file.used[key] = true  -- of other orders of the same sums, of initial weights; the last one nobody has applied
  end
  return c
end

-- A new model's parameters that decide how long heads remember, as transformers has them: A is -1, -2 .. -heads, dt
-- begins between 0.001 and 0.1, evenly in its logarithm, in an order unlike A's.
function Mamba2.initial(name, shape)
  local part, values = name:match "[%w_]+$", {}
  if part ~= "A_log" and part ~= "D" and part ~= "dt_bias" then return nil end
  for head = 1, shape[1] do
    local dt = 0.001 * 100 ^ (head * 0.6180339887 % 1)
    values[head] = part == "A_log" and math.log(head) or part == "D" and 1 or dt + math.log(1 - math.exp(-dt))
  end
  return values
end

-- ---------------------------------------------------------------- the recurrence over packed documents

local chunk = 64    -- tokens: products of matrices of 64 rows, and scores that are as many as a head's inputs
local never = -1e4  -- an exponent whose power is 0

-- y [tokens, inner] of S <- exp(decay) S + x B^T, y = S C, from S = 0 at each document's first token.
-- x: [tokens, inner]   decay: [tokens, heads], logarithms   into, out (B and C): [tokens, groups * state]   all f32
-- first: [tokens] i32, the first token of each one's document: equal where two are in one document
local function scan(c, x, decay, into, out, first)
  local tokens, groups, heads, columns = x:shape()[1], c.groups, c.heads / c.groups, c.inner / c.groups
  local length = math.min(chunk, tokens)
  local count = math.ceil(tokens / length)
  local function chunks(t, width) return t:pad(1, 0, count * length - tokens):reshape { count, length, width } end
  -- [count * groups, length, width] of [count, length, groups * width], and back.
  local function by_group(t, width)
    return t:reshape({ count, length, groups, width }):permute(1, 3, 2, 4):reshape { count * groups, length, width }
  end
  local function by_token(t)
    return t:reshape({ count, groups, length, columns }):permute(1, 3, 2, 4):reshape { count * length, c.inner }
  end
  x, first = chunks(x, c.inner), chunks(first, 1)
  into = by_group(chunks(into, groups * c.state), c.state)
  out = by_group(chunks(out, groups * c.state), c.state)
  -- The decay from the chunk's beginning through each token: [count, heads, length].
  local through = chunks(decay, c.heads):transpose():cumsum()
  local row, column = first:reshape { count, 1, length, 1 }, first:reshape { count, 1, 1, length }

  -- Within a chunk what a token adds reaches the later ones of its document.
  local reached = q.arange(length):unsqueeze(2):ge(q.arange(length)) * row:eq(column)
  local between = q.where(reached, through:unsqueeze(4) - through:unsqueeze(3), never):exp()
  local scores = out:matmul(into, { transpose_b = true }):reshape { count * groups, 1, length, length }
  local of_heads = x:reshape({ count, length, c.heads, c.head_dim }):permute(1, 3, 2, 4)
  local y = (scores * between:reshape { count * groups, heads, length, length })
    :matmul(of_heads:reshape { count * groups, heads, length, c.head_dim })
    :permute(1, 3, 2, 4):reshape { count * groups, length, heads, c.head_dim }
  if count == 1 then return by_token(y):slice(1, 0, tokens) end

  -- What a chunk adds to the state, as it is at the chunk's end: [heads, count, head_dim * state].
  local last, last_first = through:slice(3, -1), first:slice(2, -1)
  local to_end = q.where(first:reshape({ count, 1, length }):eq(last_first), last - through, never):exp()
  local added = by_group((of_heads * to_end:unsqueeze(4)):permute(1, 3, 2, 4), columns)
    :matmul(into, { transpose_a = true }):reshape({ count, c.heads, c.head_dim * c.state }):transpose(1, 2)
  -- Chunk k reaches chunk j's end if one document goes through both ends, decayed by the chunks after k through j.
  -- These are summed for each k, so that near chunks lose no digits to far ones.
  local place, ends = q.arange(count), last_first:reshape { 1, count }
  local decayed = q.where(place:gt(place:unsqueeze(2)), last:transpose(1, 2):reshape { c.heads, 1, count }, 0):cumsum()
  local weights = q.where(place:ge(place:unsqueeze(2)) * ends:eq(ends:transpose()), decayed, never):exp()
  -- The state before a chunk is that at the end of the one before it. It reaches tokens whose document began earlier.
  local state = weights:pad(3, 1, 0):slice(3, 0, count):matmul(added, { transpose_a = true })
    :transpose(1, 2):reshape { count * groups, columns, c.state }
  local began = first:reshape({ count, 1, length }):lt((place * length):reshape { count, 1, 1 })
  local since = q.where(began, through, never):exp():reshape({ count * groups, heads, length }):transpose()
  local read = out:matmul(state, { transpose_b = true }):reshape { count * groups, length, heads, c.head_dim }
  return by_token(y + read * since:unsqueeze(4)):slice(1, 0, tokens)
end

-- ---------------------------------------------------------------- the recurrence over a step of inference

-- The state [n * groups, heads of a group, head_dim, state] after one more token of n sequences, and their y.
local function advance(state, decay, x, into, out)
  state = state * decay + x * into
  return state:reshape(state:shape()), (state * out):sum(-1)
end

-- The y of a step's rows, as scan has it, from the states of its sequences in `pages`, which it stores anew: at the
-- step's end, and at the end of each full page.
local function recur(c, pages, step, x, decay, into, out)
  local rows, groups, heads = x:shape()[1], c.groups, c.heads / c.groups
  local count = step.before:elements()
  local state = pages:before(step):reshape { count * groups, heads, c.head_dim, c.state }
  x, decay = x:reshape { rows * groups, heads, c.head_dim, 1 }, decay:exp():reshape { rows * groups, heads, 1, 1 }
  into, out = into:reshape { rows * groups, 1, 1, c.state }, out:reshape { rows * groups, 1, 1, c.state }
  if rows == count then
    local y
    state, y = advance(state, decay, x, into, out)
    pages:keep(step.after, state)
    return y:reshape { rows, c.inner }
  end
  local results, most, table_ = {}, step.pages:shape()[2], step.pages:reshape { step.pages:elements() }
  for i, span in ipairs(step.spans) do
    local own = state:rows((i - 1) * groups, groups)
    for k = 0, span.count - 1 do
      local function token(t) return t:rows((span.first + k) * groups, groups) end
      local last = own  -- of many tokens only one state is held
      own, results[#results + 1] = q.scope(advance, last, token(decay), token(x), token(into), token(out))
      if k > 0 then last:free() end
      local length = span.position + k + 1
      if k == span.count - 1 or length % pages.page_tokens == 0 then
        local page = (i - 1) * most + math.ceil(length / pages.page_tokens) - 1
        pages:keep(table_:slice(1, page, page + 1), own)
      end
    end
  end
  return q.concat(results):reshape { rows, c.inner }
end

-- ---------------------------------------------------------------- the mixer

local function mixer(block, c)
  local p = block:at "mixer"
  local narrow = c.groups * c.state
  local wide = c.inner + 2 * narrow
  local in_proj = p:linear("in_proj", c.inner + wide + c.heads, c.hidden, c.bias)
  local taps = p:weight("conv1d.weight", { wide, 1, c.width })
  local taps_bias = c.conv_bias and p:weight("conv1d.bias", { wide }) or nil
  local dt_bias, a_log = p:weight("dt_bias", { c.heads }), p:weight("A_log", { c.heads })
  local skip, norm = p:weight("D", { c.heads }), p:weight("norm.weight", { c.inner })
  local out_proj = p:linear("out_proj", c.hidden, c.inner, c.bias)
  local place, conv_place = block:state(snapshots.kind(c.inner * c.state)), block:state(conv_pages.kind(wide, c.width))
  local passed = block:place "mixer"

  return function(u, seq)
    local tokens, w = u:shape()[1], taps:reshape { wide, c.width }
    local gate, mixed, dt = nn.project(seq, u, in_proj):split({ c.inner, wide, c.heads }, 2)
    local inference = seq.inference
    local pages = inference and inference.states[place]
    if w:dtype() == "f16" then w = w:to "f32" end
    mixed = inference and inference.states[conv_place]:convolve(inference.step, mixed, w, taps_bias)
      or q.causal_conv(mixed, w, taps_bias, seq.cu_q)
    local x, into, out = mixed:silu():to("f32"):split({ c.inner, narrow, narrow }, 2)
    dt = (dt:to "f32" + dt_bias):softplus():clamp(c.least, c.most)
    local of_heads, decay = x:reshape { tokens, c.heads, c.head_dim }, -dt * a_log:to("f32"):exp()
    x = (of_heads * dt:unsqueeze(3)):reshape { tokens, c.inner }
    local y = pages and recur(c, pages, inference.step, x, decay, into, out)
      or scan(c, x, decay, into, out, q.arange(tokens) - seq.positions)
    y = y:reshape { tokens, c.heads, c.head_dim } + of_heads * skip:unsqueeze(2)
    y = y:reshape { tokens, c.groups, c.inner / c.groups }
      * gate:to("f32"):silu():reshape { tokens, c.groups, c.inner / c.groups }
    y = q.rmsnorm(y, norm:to("f32"):reshape { c.groups, c.inner / c.groups }, c.eps)
    return passed((nn.project(seq, y:reshape({ tokens, c.inner }):to(u:dtype()), out_proj)))
  end
end

function Mamba2.build(model, source, c)
  local norm_of = nn.norms_named { mixer = "norm" }
  return nn.decoder(model, source, c, function(p)
    local norm, mix = norm_of(p, c, "mixer"), mixer(p, c)
    return function(x, branch, seq)
      local y
      x, y = norm:of_sum(x, branch)
      return x, mix(y, seq)
    end
  end)
end

-- ---------------------------------------------------------------- GGUF

local function column(shape) return { shape[1], 1 } end

local gguf = {
  architecture = "mamba2",
  names = { ["norm"] = "attn_norm", ["mixer.in_proj"] = "ssm_in", ["mixer.out_proj"] = "ssm_out" },
  tensors = {
    ["mixer.conv1d.weight"] = { "ssm_conv1d.weight", shape = function(shape) return { shape[1], shape[3] } end },
    ["mixer.conv1d.bias"] = { "ssm_conv1d.bias" }, ["mixer.dt_bias"] = { "ssm_dt.bias" },
    ["mixer.D"] = { "ssm_d", shape = column },
    ["mixer.A_log"] = {
      "ssm_a", shape = column, read = function(a) return (-a):log() end, write = function(log) return -log:exp() end,
    },
    ["mixer.norm.weight"] = {
      "ssm_norm.weight", shape = function(shape, c) return { c.groups, shape[1] / c.groups } end,
    },
  },
}

function gguf.values(r)
  local hidden, inner, heads = r:size "embedding_length", r:size "ssm.inner_size", r:size "ssm.time_step_rank"
  for key in ("context_length feed_forward_length attention.head_count attention.head_count_kv"):gmatch "%S+" do
    r.used[key] = true  -- of any number
  end
  return {
    hidden_size = hidden, num_heads = heads, head_dim = inner / heads, expand = inner / hidden,
    state_size = r:size "ssm.state_size", n_groups = r:size "ssm.group_count", conv_kernel = r:size "ssm.conv_kernel",
    layer_norm_epsilon = r:get("attention.layer_norm_rms_epsilon", "number"),
  }
end

function gguf.write(add, c)
  local function must(what, ok) if not ok then q.error("unsupported", "gguf: mamba2 has no words for " .. what) end end
  must("biases of projections", not c.bias)
  must("a convolution without a bias", c.conv_bias)
  must("a time_step_limit", not c.least and not c.most)
  add("ssm.conv_kernel", "u32", c.width)
  add("ssm.inner_size", "u32", c.inner)
  add("ssm.state_size", "u32", c.state)
  add("ssm.time_step_rank", "u32", c.heads)
  add("ssm.group_count", "u32", c.groups)
end

Mamba2.gguf = gguf

return Mamba2
