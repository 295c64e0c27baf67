-- What a dataset holds: lengths, trained shares, answers, duplicates, sources, and how rows of several lengths would be
-- packed. train/advise.lua recommends from it; plan/analysis_report.lua writes it down.

local q = require "qeng.core"

local analyze = {}

local source_names = {
  [0x01] = "text", [0x02] = "code", [0x03] = "chat", [0x04] = "instruction", [0x05] = "gradient", [0x06] = "activation",
  [0x07] = "kv_cache", [0x08] = "synthetic",
}
function analyze.source_name(src) return ("0x%02x %s"):format(src, source_names[src] or "the user's") end

function analyze.is_packets(path)
  local file = io.open(path, "rb")
  local found = file and file:read(6) == "QUBGPU"
  if file then file:close() end
  return found
end

-- The tokens by which an answer ends.
function analyze.ends(tokenizer)
  local ends, seen = {}, {}
  for _, id in ipairs { tokenizer:id "<|im_end|>" or -1, tokenizer:id "<|endoftext|>" or -1,
      tokenizer:id "<|eot_id|>" or -1, tokenizer:info().eos or -1 } do
    if id >= 0 and not seen[id] then ends[#ends + 1], seen[id] = id, true end
  end
  return ends
end

-- Of {{length, records}...}: total(), and the length that a share of the records does not exceed.
function analyze.percentile(lengths, share)
  local total, passed = 0, 0
  for _, pair in ipairs(lengths) do total = total + pair[2] end
  for _, pair in ipairs(lengths) do
    passed = passed + pair[2]
    if passed >= share * total then return pair[1] end
  end
  return 0
end

-- Bins of equal width, {{from =, to =, records =}...}. They reach up to the longest of all but one in 200 documents;
-- the last bin holds the rest.
function analyze.histogram(lengths, count)
  local top = analyze.percentile(lengths, 0.995)
  local width = math.max(1, math.ceil((top + 1) / count))
  local bins = {}
  for i = 1, math.ceil((top + 1) / width) do bins[i] = { from = (i - 1) * width, to = i * width - 1, records = 0 } end
  for _, pair in ipairs(lengths) do
    local i = math.min(math.floor(pair[1] / width) + 1, #bins)
    bins[i].records = bins[i].records + pair[2]
    bins[i].to = math.max(bins[i].to, pair[1])
  end
  return bins
end

-- How full rows of `row_tokens` would be: {row_tokens, efficiency (real tokens per slot), split (share of documents
-- that are longer)}. long: what becomes of longer documents, by default split.
function analyze.packing(file, row_tokens, long)
  local plan = file:batches({ row_tokens = row_tokens, rows = 1, seed = 0, long = long or "split" }):plan()
  return {
    row_tokens = row_tokens, rows = plan.batches, split = plan.split / math.max(plan.documents, 1),
    efficiency = plan.real_tokens / math.max(plan.batches * row_tokens, 1),
  }
end

local function up128(n) return math.max(128, math.ceil(n / 128) * 128) end

-- Packs at lengths around those of the data. limit: the longest row that the model takes. Marks two rows:
--   mean_rule  the mean rounded up to 128, a rule that is often given
--   chosen     the shortest row that at most one document in a hundred exceeds and that fills within two points of the
--              fullest such row; the longest row where there is no such row. Documents that are longer than any row
--              can be do not count.
function analyze.rows(file, found, limit)
  local mean_row = math.min(limit, up128(found.tokens / math.max(found.records, 1)))
  local wanted, list = { [mean_row] = true }, {}
  for _, share in ipairs { 0.5, 0.9, 0.99, 0.999, 1 } do
    wanted[math.min(limit, up128(analyze.percentile(found.lengths, share)))] = true
  end
  for row = 256, limit do
    if row > 16384 or row > 8 * up128(found.longest) then break end
    if row == 2 ^ math.floor(math.log(row) / math.log(2) + 0.5) then wanted[row] = true end
  end
  for row in pairs(wanted) do list[#list + 1] = row end
  table.sort(list)
  local best, chosen, beyond = 0, nil, 0
  for _, pair in ipairs(found.lengths) do if pair[1] > limit then beyond = beyond + pair[2] end end
  local enough = 0.01 + beyond / math.max(found.records - found.damaged, 1)
  for i, row in ipairs(list) do
    list[i] = analyze.packing(file, row)
    list[i].mean_rule = row == mean_row
    if list[i].split <= enough then best = math.max(best, list[i].efficiency) end
  end
  for _, one in ipairs(list) do
    if not chosen and one.split <= enough and one.efficiency >= best - 0.02 then chosen = one end
  end
  chosen = chosen or list[#list]
  chosen.chosen = true
  return list, chosen
end

-- file: a PacketFile. opt: tokenizer (to judge answers), max_row (the model's longest sequence). Returns
-- PacketFile:statistics with mean, percentiles, bins, rows and row.
function analyze.dataset(file, opt)
  local started = q.time()
  local found = file:statistics { ends = opt.tokenizer and analyze.ends(opt.tokenizer) or {} }
  found.seconds = q.time() - started
  found.judged = opt.tokenizer ~= nil
  if found.records == 0 or found.records == found.damaged then
    q.error("value", "analyze: there is no readable record in it")
  end
  found.mean = found.tokens / (found.records - found.damaged)
  found.percentiles = {}
  for i, share in ipairs { 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1 } do
    found.percentiles[i] = { share = share, tokens = analyze.percentile(found.lengths, share) }
  end
  found.bins = analyze.histogram(found.lengths, 20)
  found.rows, found.row = analyze.rows(file, found, opt.max_row or 32768)
  return found
end

return analyze
