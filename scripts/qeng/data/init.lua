-- Converts text data to packets: what the engine's converter is told, how progress is shown, and opening the result.

local chat = require "qeng.chat"
local hints = require "qeng.console.hints"
local marked = require "qeng.data.marked"
local options = require "qeng.console.options"
local output = require "qeng.console.output"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local splits = require "qeng.hub.splits"

local data = {}

local function source_names(names)
  for name, id in pairs(names or {}) do
    if id ~= math.floor(id) or id < 0 or id > 255 then
      q.error("value", ("source_names %s=%s: expected numbers of 0 to 255"):format(name, tostring(id)))
    end
  end
  return names or {}
end

local function line_of(status, began)
  local seconds = math.max(q.time() - began, 1e-3)
  local text = ("converted %d records, %d tokens, %.1f MB/s, %d records/s"):format(status.records, status.tokens,
    (status.bytes_text - status.bytes_skipped) / 1e6 / seconds, status.seen_here / seconds)
  if status.bytes_total > 0 and status.bytes_read > status.skipped_read then
    local rest = (status.bytes_total - status.bytes_read) / ((status.bytes_read - status.skipped_read) / seconds)
    text = text .. (", %d %%, %s left"):format(100 * status.bytes_read / status.bytes_total, progress.duration(rest))
  end
  return text
end

-- Waits for a conversion, with progress. Ctrl-C, SIGTERM or SIGHUP stops it after the records in flight.
local function follow(job, speak)
  local began, first = q.time(), nil
  while true do
    local status = job:wait(0.2)
    for _, note in ipairs(status.notes) do speak:say(hints(note)) end
    for _, bad in ipairs(status.told) do speak:say(hints(bad) .. "; left out") end
    first = first or status
    local resumed = status.bytes_skipped > 0
    status.seen_here = status.seen - (resumed and first.seen or 0)
    status.skipped_read = resumed and first.bytes_read or 0
    if status.done then return status end
    speak:line(line_of(status, began))
    if q.host.interrupted() then job:stop() end
  end
end

-- "3 of an unknown shape, 1 not JSON"
local function reasons(counts)
  local list = {}
  for reason, count in pairs(counts.bad_by_reason) do list[#list + 1] = ("%d: %s"):format(count, reason) end
  table.sort(list)
  return table.concat(list, ", ")
end

local template_words = {
  model = "the model's own", chatml = "ChatML", none = "none (prompts and completions are joined as they are)",
}

-- One line about what was converted.
function data.summary(counts)
  local text = ("%d records, %d tokens, %d trained, %d bad"):format(counts.records, counts.tokens, counts.targets,
    counts.bad)
  if counts.bad > 0 then text = text .. " (" .. reasons(counts) .. ")" end
  if counts.duplicates > 0 then text = text .. (", %d duplicates left out"):format(counts.duplicates) end
  if counts.longer > 0 then text = text .. (", %d longer than the limit: %s"):format(counts.longer, counts.long) end
  if counts.repaired > 0 then text = text .. (", %d with ill-formed UTF-8, replaced"):format(counts.repaired) end
  text = text .. "; template: " .. template_words[counts.template]
  return text .. ", special tokens in texts " .. (counts.special == "parse" and "parsed" or "taken as text")
end

-- Lines that show one record of the dataset at path as it is trained, for standard output or another file descriptor.
function data.sample(path, tokenizer, to) return marked.sample(q.ndp.open(path), tokenizer, to or 1) or "no record" end

-- How recipes that read text data convert them.
options.set("data", {
  "template",
  { "special", "parse", "what special tokens spelled in texts become: tokens (as transformers reads text), or text",
    choices = { "parse", "text" } },
  { "documents", "paragraph", "what one document of plain text is (paragraph: blank lines part them)",
    choices = { "paragraph", "line", "file" } },
})

local long_words = {
  keep = "kept whole", drop = "left out", split = "split", truncate = "only their beginning kept",
  ["end"] = "only their end kept",
}

local function is_packed(path)
  local file = io.open(path, "rb")
  local packed = file and file:read(6) == "QUBGPU"
  if file then file:close() end
  return packed or false
end

-- Whether a file of a folder is data by its name. Files that describe the folder are not.
local function is_data_name(name)
  local bare = name:lower():gsub("%.gz$", ""):gsub("%.zstd?$", ""):gsub("%.bz2$", ""):gsub("%.xz$", "")
  local ending = bare:match "%.(%w+)$"
  local known = { qubgpu = true }
  for _, each in ipairs(select(2, q.ndp.formats())) do known[each] = true end
  return known[ending] and not name:find "^[%._]" and not bare:find "^readme" and not bare:find "^license"
end

local function files_of(folder)
  local files, left = {}, {}
  folder = folder:gsub("(.)/+$", "%1")
  for _, name in ipairs(q.fs.list(folder)) do
    local path = folder .. "/" .. name
    if q.fs.kind(path) == "file" and is_data_name(name) then files[#files + 1] = path else left[#left + 1] = name end
  end
  if #files == 0 then
    local below = q.fs.kind(folder .. "/data") == "dir" and ("; is it %s/data that is meant?"):format(folder) or ""
    q.error("io", ("%s: a folder without data files (%s; also as .gz, .zst, .bz2 or .xz)%s"):format(folder,
      table.concat(select(2, q.ndp.formats()), ", "), below))
  end
  return files, left
end

-- Says that the files of a folder whose names tell several splits are all read.
local function tell_splits(folder, files, speak)
  local named, names, list = {}, {}, {}
  for i, path in ipairs(files) do
    names[i] = path:match "[^/]*$"
    named[i] = { path = names[i] }
  end
  for i, split in ipairs(splits.of({}, named, folder)) do list[i] = split.name end
  if #list < 2 then return end
  speak:say(("%s: by their names its files are of the splits %s, and all are read: %s; give a file or a pattern in "
    .. "place of the folder to choose"):format(folder, table.concat(list, ", "),
    table.concat(names, ", ", 1, math.min(#names, 8)) .. (#names > 8 and ", ..." or "")))
end

-- The files that data are read from. given: a file, a folder (its data files by name), a pattern such as
-- 'data/*.jsonl', several of these with commas between, or a list of them. speak: says which files of a folder are no
-- data, and where it has several splits.
function data.inputs(given, speak)
  local paths = {}
  local function add(text)
    local kind = q.fs.kind(text)
    if kind == "file" or text == "-" then
      paths[#paths + 1] = text
    elseif kind == "dir" then
      local files, left = files_of(text)
      for _, path in ipairs(files) do paths[#paths + 1] = path end
      if speak then tell_splits(text, files, speak) end
      if speak and #left > 0 then
        local some = table.concat(left, ", ", 1, math.min(#left, 8))
        speak:say(("%s: %d files are read; left out, no data by their names: %s"):format(text, #files, some))
      end
    elseif text:find "," then  -- no name with a comma in it
      for part in text:gmatch "[^,]+" do add(part) end
    else
      local found = text:find "[*?%[]" and q.fs.glob(text) or {}
      if #found == 0 then
        q.error("io", ("data %s: no such file; expected JSONL, JSON, Parquet, CSV, TSV, text or a .qubgpu file, "
          .. "a folder of them, or a pattern"):format(text))
      end
      for _, path in ipairs(found) do add(path) end
    end
  end
  if type(given) == "table" then for _, text in ipairs(given) do add(text) end else add(given) end
  return paths
end

-- Converts `from` (as data.inputs takes it; "-": standard input) to the dataset `to`. It replaces a dataset. Without
-- opt.overwrite it replaces no other file, and nothing that is read. Bad records are told with their place and left
-- out. opt: tokenizer, template, template_args, system, turns, special, format, documents (paragraph), max_tokens,
-- long, dedupe, max_bad (share of bad records that is an error, 0.01), max_record (MiB), source, source_field,
-- source_names, destination, resume, checkpoint (seconds), threads. Returns the counts.
function data.convert(from, to, opt)
  local speak = progress.new()
  local inputs = data.inputs(from, speak)
  output.file(to, { holds = "qubgpu", reads = inputs, overwrite = opt.overwrite or false })
  local tokenizer, info, named = opt.tokenizer, opt.tokenizer:info(), source_names(opt.source_names)
  local template = chat.template(tokenizer, opt.template, opt.system, opt.turns, opt.special, opt.template_args)
  local system = template.default_system or template.system or nil
  local text_begin, text_end = chat.text_ends(tokenizer)
  local arguments = template.arguments
    and (type(opt.template_args) == "string" and opt.template_args or q.json.encode(template.arguments)) or nil
  q.host.outlive_output()
  local job = q.ndp.convert {
    inputs = inputs, output = to, tokenizer = tokenizer, format = opt.format, documents = opt.documents,
    chatml = template.name == "chatml", system = system, turns = template.turns, special = template.special,
    text_begin = text_begin, text_end = text_end,
    renderer = { template = template.name, system = opt.system, turns = template.turns, special = template.special,
      arguments = arguments },
    max_tokens = opt.max_tokens, long = opt.long, dedupe = opt.dedupe, max_bad = opt.max_bad,
    max_record = opt.max_record,
    source = opt.source, source_field = opt.source_field, source_names = named, destination = opt.destination,
    resume = opt.resume, checkpoint = opt.checkpoint, threads = opt.threads,
    meta = {
      tokenizer = info.name, tokenizer_hash = tokenizer:hash(), vocab_size = tokenizer:vocab_size(),
      template = template.name,
      sources = q.json.array { unpack(inputs) }, system = system, turns = template.turns, special = template.special,
      template_args = arguments, max_tokens = opt.max_tokens, long = opt.max_tokens and (opt.long or "keep"),
      dedupe = opt.dedupe or false, source_field = opt.source_field,
      source_names = next(named) and options.settings({ named })[1],
    },
  }
  q.host.defer_interrupt(true)
  local ok, result = pcall(follow, job, speak)
  q.host.defer_interrupt(false)
  speak:finish()
  if not ok then
    job:stop()
    error(result, 0)
  end
  result.long, result.template, result.special = long_words[opt.long or "keep"], template.name, template.special
  return result
end

local open_options = { "tokenizer", "any_tokenizer", "cache", "cache_dir", "overwrite", "template", "template_args",
  "system", "turns", "special", "format", "documents", "max_tokens", "long", "dedupe", "max_bad", "max_record",
  "source", "source_field", "source_names", "destination", "resume", "resumed", "checkpoint",
  "threads" }

-- What tells how texts were made, of options or of a dataset; nil: nothing, as of defaults.
local function made_by(values)
  local arguments = values.template_args
  if type(arguments) == "string" then arguments = q.try(q.json.decode, arguments) end
  return { template = values.template ~= "auto" and values.template or nil,
    special = values.special ~= "parse" and values.special or nil,
    ["template-args"] = arguments and next(arguments) ~= nil and q.json.encode(arguments) or nil }
end

-- Refuses options that ask for other texts than those of a dataset.
local function check_made(path, meta, opt)
  local asked, made = made_by(opt), made_by(meta)
  for _, name in ipairs(meta.template and { "template", "template-args", "special" } or {}) do
    if name == "template-args" and asked[name] and not made[name] then  -- records may have their own
      io.stderr:write(("%s is a dataset already, made without --template-args: they count for --samples alone\n")
        :format(path))
    elseif asked[name] and asked[name] ~= made[name] then
      q.error("value", ("%s is a dataset already, made with %s %s, and not %s: leave --%s out, or convert the data "
        .. "again"):format(path, name, made[name] or name == "special" and "parse" or "none", asked[name], name))
    end
  end
end

-- A dataset to train on. It is a .qubgpu file, which is checked against the tokenizer and opt, or text data
-- (data.inputs), which are converted first, to opt.cache or to data.qubgpu in opt.cache_dir. Returns it and the path of
-- its file.
function data.open(path, opt)
  options.refuse_others("packets", opt, open_options)
  local inputs = data.inputs(path)
  local packed = #inputs == 1 and is_packed(inputs[1])
  if packed then
    path = inputs[1]
  else
    if opt.cache_dir then q.fs.mkdir(opt.cache_dir) end
    local to = opt.cache or opt.cache_dir .. "/data.qubgpu"
    local counts = data.convert(path, to, opt)
    io.stderr:write(("%s: %s\n"):format(path, data.summary(counts)))
    io.stderr:write(data.sample(to, opt.tokenizer, 2), "\n")
    path = to
  end
  local file = q.ndp.open(path)
  local meta = file:meta()
  local made_with = meta.tokenizer_hash
  if packed and not opt.resumed then check_made(path, meta, opt) end  -- a run that goes on says what it said
  if opt.tokenizer and not opt.any_tokenizer and made_with and made_with ~= opt.tokenizer:hash() then
    q.error("value", ("%s was made with tokenizer %s (hash %s), the model's is %s (hash %s): convert the data again "
      .. "with --tokenizer of this model"):format(path, tostring(meta.tokenizer), tostring(made_with),
      opt.tokenizer:info().name, opt.tokenizer:hash()))
  end
  return file, path
end

return data
