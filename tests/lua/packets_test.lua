-- q.ndp: what is written is read, and batches come out as the packing says.
local q = require "qeng"

local root = os.tmpname()
q.fs.remove(root)
local path = root .. ".qubgpu"

local writer = q.ndp.create(path, { meta = { tokenizer = "test", list = { 1, 2 } } })
writer:add { 1, 2, 3, 4 }
writer:add({ 5, 6, 7 }, { false, true, false }, { src = 3 })
writer:add({ 8, 9 }, { 0, 1 })
for i = 1, 20 do writer:add { i, i + 1, i + 2 } end
writer:finish()
assert(not q.try(writer.add, writer, { 1 }))

local file = q.ndp.open(path)
assert(file:records() == 23)
local tokens, mask = file:read(1)
assert(table.concat(tokens, " ") == "5 6 7" and table.concat(mask, " ") == "0 1 0")
tokens, mask = file:read(0)
assert(table.concat(tokens, " ") == "1 2 3 4" and #mask == 4)
local info = file:info(1)
assert(info.tokens == 3 and info.loss_tokens == 1 and info.src == 3 and info.frames >= 1)
assert(file:meta().tokenizer == "test" and file:meta().list[2] == 2)
assert(file:verify().ok and #file:verify().damaged == 0)

-- batches: shapes, restart, one pass over held-out records
local function batches(opt)
  opt.row_tokens, opt.rows = 16, 2
  return file:batches(opt)
end
local train = batches { seed = 5 }
local first = train:next()
info = first:info()
assert(info.tokens == 32 and info.epoch == 0 and info.real_tokens <= 32)
local micro_batch = {
  tokens = q.zeros({ 32 }, "i32"), targets = q.zeros({ 32 }, "i32"), positions = q.zeros({ 32 }, "i32"),
  cu_q = q.zeros({ info.max_documents + 1 }, "i32"), other = "the caller's",
}
first:load(micro_batch)
local cu = micro_batch.cu_q:table()
assert(cu[1] == 0 and cu[#cu] == 32)
local trained = 0
for i, target in ipairs(micro_batch.targets:table()) do
  if target >= 0 then
    trained = trained + 1
    assert(micro_batch.tokens:table()[i + 1] == target)
  end
end
assert(trained == info.trained_tokens)

local state = train:state()
local function all(batch)
  batch:load(micro_batch)
  return q.json.encode { micro_batch.tokens:table(), micro_batch.targets:table(), micro_batch.positions:table(),
    micro_batch.cu_q:table() }
end
local second = all(train:next())
local again = batches { seed = 5 }
again:restore(state)
assert(all(again:next()) == second)

local held = batches { seed = 5, split = "eval", eval_share = 0.2, once = true }
local documents, count = 0, 0
for batch in function() return held:next() end do documents, count = documents + batch:info().documents, count + 1 end
assert(documents == 5 and count == held:plan().batches and held:plan().documents == 5)
assert(batches({ seed = 5 }):plan().trained_tokens > 40)

-- long documents: a conversation is left out, a text is split, and a cut beginning is trained as far as it is a target
do
  writer = q.ndp.create(path)
  local ids, answered = {}, {}
  for i = 1, 20 do ids[i], answered[i] = i, i > 12 and 1 or 0 end
  writer:add(ids)
  writer:add(ids, answered)
  writer:add({ 1, 2, 3 })
  writer:finish()
  local long = q.ndp.open(path)
  for how, expected in pairs { auto = "1 0 1 21 2", split = "2 0 0 29 3", truncate = "0 2 0 17 3",
      drop = "0 0 2 2 1" } do
    local plan = long:batches({ row_tokens = 14, long = how }):plan()
    local got = ("%d %d %d %d %d"):format(plan.split, plan.truncated, plan.dropped, plan.trained_tokens, plan.documents)
    assert(got == expected, how .. ": " .. got)
  end
end

-- refusals
local function refused(pattern, fn, ...)
  local _, err = q.try(fn, ...)
  assert(err and err.message:match(pattern), tostring(err))
end
refused("bad option 'long' .* shorten is none of auto, split, truncate, drop, error", batches, { long = "shorten" })
refused("did you mean 'seed'", batches, { sed = 1 })
refused("row_tokens", file.batches, file, {})
refused("the mask has 1 elements for 2 tokens", function() q.ndp.create(root .. ".x"):add({ 1, 2 }, { true }) end)
refused("element 1: boolean, 0 or 1 expected", function() q.ndp.create(root .. ".x"):add({ 1 }, { "yes" }) end)
refused("field 'tokens'", first.load, first, {})
refused("field 'targets'", first.load, first, { tokens = micro_batch.tokens, targets = q.zeros({ 3 }, "i32") })
refused("no such file", q.ndp.open, root .. ".none")
refused("23", file.read, file, 23)
q.fs.remove(path)
print "packets: ok"
