-- Models and datasets by their names on a Hugging Face-compatible hub: which files to take, and fetching them. Fetched
-- files lie under a commit in the folder that Hugging Face's tools share. engine/hub does the transfers and the checks.
--
--   org/name   org/name@revision   datasets also: org/name:split   org/name:config   org/name:config:split

local choose = require "qeng.hub.files"
local configs = require "qeng.hub.configs"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local user = require "qeng.console.user"

local hub = {}

-- {repo=, revision=, config=, split=} of a name; nil if the text is no name. One word after a colon is in split,
-- whether it is a split or a config. A word that ends as a data file does is taken for a misspelt path, and is no name
-- either.
function hub.parse(text)
  local repo, rest = text:match "^([%w][%w._-]*/[%w][%w._-]*)(.*)$"
  if not repo then return nil end
  local revision = rest:match "^@([%w][%w._/+-]*)"
  if revision then rest = rest:sub(#revision + 2) end
  local config, split = rest:match "^:([^:/%c]+):([^:/%c]+)$"
  split = split or rest:match "^:([^:/%c]+)$"
  if rest ~= "" and not split then return nil end
  if rest == "" and not revision and choose.is_file_name(repo) then return nil end
  return { repo = repo, revision = revision or "main", config = config, split = split }
end

local function listing_of(handle, kind, name, speak)
  if not handle:settings().offline then
    local found, why = q.try(handle.list, handle, kind, name.repo, name.revision, function(_, _, note)
      if note ~= "" then speak:line(name.repo .. ": " .. note) end
    end)
    if found then return found end
    local cached = why.code == "network" and handle:cached(kind, name.repo, name.revision)
    if not cached then error(why, 0) end
    speak:say(("note: %s; taking what was fetched earlier: commit %s"):format(why.message, cached.commit:sub(1, 12)))
    return cached, true
  end
  local cached = handle:cached(kind, name.repo, name.revision)
  if not cached then
    q.error("io", ("%s at %s is not in %s, and HF_HUB_OFFLINE forbids to fetch it"):format(name.repo, name.revision,
      handle:settings().cache))
  end
  return cached, true
end

-- The bytes of those of `files` that are not here yet.
local function missing_bytes(listing, files)
  local bytes = 0
  for _, file in ipairs(files) do
    if q.fs.kind(listing.folder .. "/" .. file.path) ~= "file" then bytes = bytes + (file.size or 0) end
  end
  return bytes
end

-- Fetches `files` in order, with progress. state lives over several calls of one job.
local function fetch_all(handle, kind, name, listing, files, speak)
  local needed, room = missing_bytes(listing, files), handle:room()
  if needed > room then
    q.error("io", ("%s needs %s, and %s are free at %s: make room, or set HF_HOME to a folder on another disk")
      :format(name.repo, progress.bytes(needed), progress.bytes(room), handle:settings().cache))
  end
  local arrived, started = 0, q.time()
  for i, file in ipairs(files) do
    local before, last
    local _, verified = handle:fetch(kind, name.repo, listing.commit, file, function(done, total, note)
      before = before or done
      if last and done > last then arrived = arrived + done - last end
      last = done
      local rate = arrived / math.max(q.time() - started, 0.1)
      local text = ("%s  %d/%d  %s%s"):format(file.path, i, #files, progress.bytes(done),
        total and " of " .. progress.bytes(total) or "")
      if note ~= "" then
        text = text .. "  " .. note
      elseif rate > 0 then
        local left = math.max(0, needed - arrived) / rate
        text = text .. ("  %s/s  ETA %s"):format(progress.bytes(rate), progress.duration(left))
      end
      if done > 0 or note ~= "" then speak:line(text) end
    end)
    if not verified then
      speak:say(("note: %s: the hub gives no hash of it, so only its size was checked"):format(file.path))
    end
  end
  speak:finish()
  return arrived
end

local function begin(text, kind, opt)
  local name = hub.parse(text)
  if not name or kind == "model" and name.split then
    q.error("value", ("'%s' is no name on a hub; expected org/name, org/name@revision%s"):format(text,
      kind == "dataset" and ", org/name:split, org/name:config:split" or ""))
  end
  local handle, speak = opt.hub or q.hub.open(), progress.new()
  local listing, local_only = listing_of(handle, kind, name, speak)
  local function get(files)
    if not local_only then return fetch_all(handle, kind, name, listing, files, speak) end
  end
  local function done() if not local_only then handle:pin(kind, name.repo, name.revision, listing.commit) end end
  return name, listing, get, done, speak
end

-- Fetches what is not here of a model: configuration, tokenizer and safetensors. opt.hub: a client, from q.hub.open.
-- Returns the folder and the commit.
function hub.model(text, opt)
  local name, listing, get, done = begin(text, "model", opt or {})
  get(choose.model_texts(listing))
  get(choose.model_weights(listing, name.repo, function(path) return q.fs.read(listing.folder .. "/" .. path) end))
  done()
  return listing.folder, listing.commit
end

-- The folder of a model with only its configuration and tokenizer, and the commit. whole: the weights are there
-- already. A revision is pinned to its commit only if the weights are here: without a network the model could not be
-- loaded.
function hub.model_texts(text, opt)
  local name, listing, get, done = begin(text, "model", opt or {})
  get(choose.model_texts(listing))
  local function read(path) return q.fs.read(listing.folder .. "/" .. path) end
  local files = q.try(choose.model_weights, listing, name.repo, read)
  local whole = files ~= nil and missing_bytes(listing, files) == 0
  if whole then done() end
  return listing.folder, listing.commit, whole
end

-- Several files as the data of `label`. Shards of lines become one file, made once for each commit. Of other or mixed
-- forms it gives the paths, with commas between, as data.inputs takes them. form: the form of all of them, or nil.
local function join(name, listing, files, form, label)
  if not form or form.array then
    local paths = {}
    for i, file in ipairs(files) do
      paths[i] = listing.folder .. "/" .. file.path
      if file.path:lower():find "%.qubgpu" or paths[i]:find "," then
        q.error("unsupported", ("%s: %s is %d files, such as %s: give --data one of them, under %s"):format(name.repo,
          label, #files, file.path, listing.folder))
      end
    end
    return table.concat(paths, ",")
  end
  local folder = ("%s/hub/datasets--%s/%s"):format(user.cache_dir(), name.repo:gsub("/", "--"), listing.commit)
  local path = ("%s/%s.%s"):format(folder, label, form.ending)
  if q.fs.kind(path) == "file" then return path end
  q.fs.mkdir(folder)
  local parts = {}
  for i, file in ipairs(files) do parts[i] = listing.folder .. "/" .. file.path end
  q.fs.join(parts, path, { lines = not form.packed })
  return path
end

-- The configs of the dataset's README, which is fetched for them; nil if it has none.
local function configs_of(name, listing, get)
  for _, file in ipairs(listing.files) do
    if file.path == "README.md" then
      configs.check_size(file.size or 0, name.repo .. "/README.md")
      get { file }
      return configs.read(q.fs.read(listing.folder .. "/README.md"), name.repo .. "/README.md")
    end
  end
end

-- The data of a split as one local file, or several with commas between. The configs of the dataset's README say which
-- files these are. Without configs they are the files named like the split (train if none is named). opt.hub: a client,
-- from q.hub.open. Returns the path and the commit.
function hub.data(text, opt)
  local name, listing, get, done, speak = begin(text, "dataset", opt or {})
  local function note(line) speak:say("note: " .. line) end
  local list = configs_of(name, listing, get)
  local files, form, label
  if list then
    local config, split
    files, config, split = configs.files(list, name, listing.files, note)
    files, form = choose.readable(files, ("%s: config %s, split %s"):format(name.repo, config, split), note)
    label = config:gsub("[^%w._-]", function(byte) return ("%%%02X"):format(byte:byte()) end) .. "--" .. split
  elseif name.config then
    q.error("value", ("%s has no configs in a README.md: name a split alone, %s:%s"):format(name.repo, name.repo,
      name.split))
  else
    local left
    label = name.split or "train"
    files, form, left = choose.data_files(listing, name.repo, label)
    if left then note(("%s also has its data as %s; taken: %s"):format(name.repo, left, form.ending)) end
  end
  local once, seen = {}, {}
  for _, file in ipairs(files) do
    if not seen[file] then once[#once + 1], seen[file] = file, true end
  end
  get(once)
  done()
  if #files == 1 then return listing.folder .. "/" .. files[1].path, listing.commit end
  return join(name, listing, files, form, label), listing.commit
end

-- Fetches every file of a repository, or those whose path matches one of `patterns` ("*.json"). Returns the folder, the
-- commit and the number of files.
function hub.files(text, kind, patterns, opt)
  local name, listing, get, done = begin(text, kind, opt or {})
  local files = choose.matching(listing, patterns)
  if #files == 0 then q.error("value", ("%s has no file like %s"):format(name.repo, table.concat(patterns, ", "))) end
  get(files)
  done()
  return listing.folder, listing.commit, #files
end

-- A recipe's --model or --data. A path that exists stays as it is, and a name is fetched. Anything else comes back, for
-- the reader of files to refuse.
local function resolve(text, fetch, what, taken)
  if text == "" or q.fs.kind(text) or not hub.parse(text) then return text, nil, true end
  local hub_address = q.hub.open():settings().endpoint
  io.stderr:write(("%s %s: not a path here, so %s fetched from %s\n"):format(what, text, taken or "it is", hub_address))
  return fetch(text)
end
function hub.resolve_model(text) return (resolve(text, hub.model, "model")) end
function hub.resolve_data(text)
  if text:find "^peer:" then return hub.over_peers(text) end
  return (resolve(text, hub.data, "data"))
end

-- As resolve_model, for callers that read no weights. Also whether the weights are here.
function hub.resolve_texts(text)
  local path, _, whole = resolve(text, hub.model_texts, "model", "its configuration is")
  return path, whole
end

return hub
