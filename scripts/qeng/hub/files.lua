-- Which files of a hub's repository make a model that qeng loads, or a split of a dataset. Only names are looked at.

local q = require "qeng.core"

local choose = {}

-- Forms of data, the preferred ones first. array: several files of it laid end to end are not one file.
local forms = { { ending = "qubgpu", array = true } }
do
  local lines, seen = { jsonl = true, ndjson = true, txt = true }, { md = true, text = true }  -- md: a README, say
  local function add(ending)
    if not seen[ending] then forms[#forms + 1] = { ending = ending, array = not lines[ending] } end
    seen[ending] = true
  end
  for _, ending in ipairs { "jsonl", "ndjson", "json", "parquet" } do add(ending) end
  for _, ending in ipairs(select(2, q.ndp.formats())) do
    if ending ~= "txt" then add(ending) end
  end
  add "txt"
end
local data_forms = {}
for _, form in ipairs(forms) do
  for _, packing in ipairs { "", ".gz", ".zst", ".bz2", ".xz" } do
    data_forms[#data_forms + 1] = { ending = form.ending .. packing, array = form.array, packed = packing ~= "" }
  end
end

local expected = "expected .jsonl, .json, .parquet, .csv, .tsv or .txt (also packed: .gz, .zst, .bz2, .xz), or .qubgpu"

local function ends(path, ending) return path:sub(-#ending - 1):lower() == "." .. ending end

local function form_of(path)
  for _, form in ipairs(data_forms) do
    if ends(path, form.ending) then return form end
  end
end

-- Whether a name ends as a data file does that users give by its path.
function choose.is_file_name(name)
  if form_of(name) then return true end
  for _, ending in ipairs { "safetensors", "gguf", "tiktoken", "model", "lua", "ndp" } do
    if ends(name, ending) then return true end
  end
  return false
end

-- ---------------------------------------------------------------- models

local texts = {
  "config.json", "generation_config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json",
  "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
  "chat_template.jinja", "chat_template.json",
  "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json",  -- saved with the model
  "model.safetensors.index.json",
}
local is_text = {}
for _, name in ipairs(texts) do is_text[name] = true end

-- Configuration and tokenizer: small files of the repository's first folder.
function choose.model_texts(listing)
  local files = {}
  for _, file in ipairs(listing.files) do
    if is_text[file.path] or file.path:match "^[^/]+%.tiktoken$" then files[#files + 1] = file end
  end
  return files
end

-- The safetensors: those that the index names, or model.safetensors, or the only ones there are. read(path): the text
-- of a file of model_texts, which are here by now.
function choose.model_weights(listing, repo, read)
  local by_path, alone, others = {}, {}, {}
  for _, file in ipairs(listing.files) do
    by_path[file.path] = file
    if file.path:match "^[^/]+%.safetensors$" then alone[#alone + 1] = file end
    for _, ending in ipairs { "gguf", "bin", "pth?", "onnx" } do
      if file.path:match("%." .. ending .. "$") then others[#others + 1] = file.path end
    end
  end
  if by_path["model.safetensors.index.json"] then
    local ok, index = pcall(q.json.decode, read "model.safetensors.index.json")
    local map = ok and type(index) == "table" and index.weight_map
    if type(map) ~= "table" then q.error("format", repo .. ": model.safetensors.index.json is no index of weights") end
    local files, seen = {}, {}
    for _, path in pairs(map) do
      if type(path) ~= "string" or not by_path[path] then
        q.error("format", ("%s: model.safetensors.index.json names %s, which the repository%s has not"):format(repo,
          tostring(path), listing.folder and " here" or ""))
      end
      if not seen[path] then files[#files + 1], seen[path] = by_path[path], true end
    end
    table.sort(files, function(a, b) return a.path < b.path end)
    return files
  end
  if by_path["model.safetensors"] then return { by_path["model.safetensors"] } end
  if #alone > 0 then return alone end
  local has = #others > 0 and " (it has " .. table.concat(others, ", "):sub(1, 200) .. ")" or ""
  q.error("unsupported", ("%s has no safetensors%s: qeng loads models of config.json, tokenizer and safetensors")
    :format(repo, has))
end

-- ---------------------------------------------------------------- datasets

local words = {
  train = { "train", "training" }, validation = { "validation", "valid", "val", "dev" },
  test = { "test", "testing", "eval", "evaluation" },
}

-- Whether `word` stands by itself in the path, as in data/train-00000-of-00002.jsonl.
local function names(path, word)
  local function spaced(text) return (text:lower():gsub("[^%w]", " ")) end
  return spaced("/" .. path .. "/"):find(" " .. spaced(word) .. " ", 1, true) ~= nil
end

local function split_of(path)
  for split, list in pairs(words) do
    for _, word in ipairs(list) do
      if names(path, word) then return split end
    end
  end
end

local not_data = {
  ["dataset_infos.json"] = true, ["dataset_dict.json"] = true, ["dataset_info.json"] = true, ["state.json"] = true,
  ["requirements.txt"] = true, ["license.txt"] = true, ["readme.txt"] = true,
}

-- The files of a split, their form, and the ending of another form that the split has too. The split's name stands in
-- the path of its files. If no file names a split, all are "train".
function choose.data_files(listing, repo, split)
  local by_form, splits = {}, {}
  local sorted = false
  for _, file in ipairs(listing.files) do sorted = sorted or split_of(file.path) ~= nil end
  for _, file in ipairs(listing.files) do
    local base = file.path:match "[^/]+$":lower()
    local of = split_of(file.path) or (not sorted and "train") or nil
    local wanted = of == split or names(file.path, split) or (words[of or ""] and words[of][2] == split)
    for i, form in ipairs(data_forms) do
      if ends(file.path, form.ending) and not not_data[base] and not file.path:match "^%." then
        if of then splits[of] = true end
        if wanted then
          by_form[i] = by_form[i] or {}
          table.insert(by_form[i], file)
        end
      end
    end
  end
  local chosen, left
  for i in ipairs(data_forms) do
    if by_form[i] and chosen then left = left or data_forms[i].ending end
    chosen = chosen or by_form[i] and i
  end
  if chosen then return by_form[chosen], data_forms[chosen], left end
  local known = {}
  for name in pairs(splits) do known[#known + 1] = name end
  table.sort(known)
  if #known > 0 then
    q.error("value", ("%s has no data of split %s; it has %s"):format(repo, split, table.concat(known, ", ")))
  end
  q.error("unsupported", ("%s has no data that qeng reads: %s"):format(repo, expected))
end

-- Those of `files` that are data by their names, and their form if they have one form. whose: names the files in errors
-- and notes. note(text) gets remarks.
function choose.readable(files, whose, note)
  local kept, left, one = {}, {}, nil
  for _, file in ipairs(files) do
    local form = form_of(file.path)
    if form then
      if #kept == 0 then one = form elseif one ~= form then one = nil end
      kept[#kept + 1] = file
    else
      left[#left + 1] = file.path
    end
  end
  if #kept == 0 then
    q.error("unsupported", ("%s has no data that qeng reads, but files such as %s; %s"):format(whose, left[1],
      expected))
  end
  if #left > 0 then
    local some = table.concat(left, ", ", 1, math.min(#left, 8))
    note(("%s: %d files are left out, no data by their names: %s"):format(whose, #left, some))
  end
  return kept, one
end

-- ---------------------------------------------------------------- by pattern

function choose.matching(listing, patterns)
  local files = {}
  for _, file in ipairs(listing.files) do
    local wanted = #patterns == 0
    for _, pattern in ipairs(patterns) do
      local lua = "^" .. pattern:gsub("[%^%$%(%)%%%.%[%]%+%-]", "%%%0"):gsub("%*", ".*"):gsub("%?", ".") .. "$"
      wanted = wanted or file.path:match(lua) ~= nil
    end
    if wanted then files[#files + 1] = file end
  end
  return files
end

return choose
