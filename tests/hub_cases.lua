-- What q.hub does with a hub that misbehaves: tests/hub_server.py serves, transcripts/hub_test.sh runs this.
--   qeng hub_cases.lua ENDPOINT SOURCE WORK     SOURCE: the folder "model" whose files are served
local q = require "qeng"
local endpoint, source, work = arg[1], arg[2], arg[3]
local failures = 0
local function check(condition, ...)
  if not condition then failures = failures + 1; print("FAILED", ...) end
end
local number = 0
local function client(opt)
  number = number + 1
  local all = { endpoint = endpoint, cache = ("%s/cache%d"):format(work, number), token = "", backoff = 0.02,
    stall_timeout = 1 }
  for key, value in pairs(opt or {}) do all[key] = value end
  return q.hub.open(all), all.cache
end
local function same(folder)
  for _, name in ipairs { "config.json", "tokenizer.json", "model.safetensors" } do
    if q.fs.read(folder .. "/" .. name) ~= q.fs.read(source .. "/" .. name) then return false end
  end
  return true
end

-- whole in the end, by every way
for _, org in ipairs { "plain", "cut", "noranges", "badrange", "busy", "slow", "renamed", "expired", "wrongonce",
    "nohash", "trickle" } do
  local hub, cache = client()
  local folder, commit = q.try(q.hub.model, org .. "/model", { hub = hub })
  check(folder and same(folder), org, commit)
  check(not folder or folder:find(("%s/models--%s--model/snapshots/"):format(cache, org), 1, true), org, folder)
  for _, name in ipairs(folder and q.fs.list(cache .. "/models--" .. org .. "--model/blobs") or {}) do
    check(not name:find "incomplete", org, name)
  end
end

-- refused, with a message that says why, and nothing put in place
local refused = {
  private = "io: .*401.*private: set HF_TOKEN", gated = "io: .*403.*accepts? its conditions",
  missing = "io: .*404.*%?%[31mnot found",
  down = "network: .*503.*tried 5 times", closed = "network: .*100000 seconds", forever = "network: .*tried 5 times",
  loop = "network: .*redirects",
  climbs = "format: .*leads out", absolute = "format: .*leads out", twice = "format: .*twice", huge = "io: .*make room",
  negative = "format: .*%-1 bytes",
  oddcommit = "format: .*as the commit", othercommit = "format: .*commit", movedcommit = "format: .*commit b+ where",
  oddetag = "format: .*ETag",
  wronghead = "format: .*list says that its hash", wronghash = "format: .*damaged on its way",
  wrongsize = "format: .*list says that it has",
  longer = "format: .*more bytes arrive", webpage = "format: .*does not answer as",
  nested = "format: .*does not answer as",
  outside = "io: .*not encrypted", downgrade = "value: .*ftp is not supported", user = "value: .*name or password",
}
for org, pattern in pairs(refused) do
  local hub = client()
  local folder, why = q.try(q.hub.model, org .. "/model", { hub = hub })
  local text = why and why.code .. ": " .. why.message
  check(not folder and text:find("^" .. pattern), org, folder or text)
  check(not hub:cached("model", org .. "/model", "main"), org, "is pinned though it is not whole")
end
check(not q.fs.kind(work .. "/climbed") and not q.fs.kind "/tmp/climbed", "a name led out of its folder")

-- the token opens what is private, and is shown to the hub alone (the shell looks into the server's log)
check(q.try(q.hub.model, "private/model", { hub = client { token = "secret" } }), "private with the token")
check(select(2, q.try(q.hub.model, "private/model", { hub = client { token = "wrong" } })).message:find "is not valid",
  "a wrong token")

-- an interrupted download goes on
do
  local hub, cache = client { attempts = 1 }
  local listing = hub:list("model", "cut/second", "main")
  local file
  for _, one in ipairs(listing.files) do if one.path == "model.safetensors" then file = one end end
  local path, why = q.try(hub.fetch, hub, "model", "cut/second", listing.commit, file)
  check(not path and why.code == "network", "cut with one attempt", path or why)
  local part = cache .. "/models--cut--second/blobs/" .. file.hash .. ".incomplete"
  local came = #q.fs.read(part)
  check(came > 0 and came < file.size, "what came is kept", came)
  local first
  hub = client { cache = cache }
  path = hub:fetch("model", "cut/second", listing.commit, file, function(done) first = first or done > 0 and done end)
  check(first == came and #q.fs.read(path) == file.size, "gone on from", first, came)
  -- a part of another file is found by its hash and thrown away
  q.fs.remove(path)
  q.fs.remove(cache .. "/models--cut--second/blobs/" .. file.hash)
  q.fs.write(part, ("x"):rep(1000))
  path = hub:fetch("model", "cut/second", listing.commit, file)
  check(q.fs.read(path) == q.fs.read(source .. "/model.safetensors"), "a foreign part")
end

-- revisions, and the cache without a network
do
  local hub, cache = client()
  local folder, commit = q.hub.model("plain/model@v1", { hub = hub })
  check(commit == "c0ffee" .. ("0"):rep(34), commit)
  check(q.fs.read(cache .. "/models--plain--model/refs/v1") == commit, "refs")
  local away = client { cache = cache, offline = true, endpoint = "http://127.0.0.1:9" }
  check(q.hub.model("plain/model@v1", { hub = away }) == folder and q.hub.model("plain/model@" .. commit,
    { hub = away }) == folder, "offline")
  local found, why = q.try(q.hub.model, "plain/model", { hub = away })
  check(not found and why.message:find "HF_HUB_OFFLINE", "offline, another revision", why)
  local unreachable = client { cache = cache, endpoint = "http://127.0.0.1:9", attempts = 2 }
  check(q.hub.model("plain/model@v1", { hub = unreachable }) == folder, "a hub out of reach")
  found, why = q.try(q.hub.model, "plain/model@v2", { hub = hub })
  check(not found and why.message:find "no such revision", why)
end

-- datasets
do
  local hub = client()
  local path = q.hub.data("plain/chats", { hub = hub })
  check(q.fs.read(path) == '{"text":"a"}\n{"text":"b"}\n', "two shards of train as one file", path)
  check(path:find "train.jsonl", path)
  check(q.fs.read((q.hub.data("plain/chats:test", { hub = hub }))) == '{"text":"t"}\n', "test")
  local found, why = q.try(q.hub.data, "plain/chats:dev", { hub = hub })
  check(not found and why.message:find "no data of split dev; it has test, train", why)
  local shards = q.hub.data("plain/parquet", { hub = hub })
  check(shards:find "train%-00000.*%.parquet,.*train%-00001.*%.parquet$",
    "shards of Parquet with commas between", shards)
  found, why = q.try(q.hub.model, "plain/chats", { hub = hub })
  check(not found and why.message:find "has no safetensors", why)
end

-- configs of a README
do
  local hub = client()
  local function data(name) return q.fs.read((q.hub.data(name, { hub = hub }))) end
  local function refusal(name)
    local found, why = q.try(q.hub.data, name, { hub = hub })
    return found and "taken" or why.code .. ": " .. why.message
  end
  local english = '{"text":"en/part-1"}\n{"text":"en/part-2"}\n{"text":"en/more"}\n'
  for _, name in ipairs { "plain/configs", "plain/configs:train", "plain/configs:english",
      "plain/configs:english:train" } do
    check(data(name) == english, "the default config's train", name)
  end
  check(data "plain/configs:held.out" == '{"text":"en/held"}', "a split of the default config")
  check(data "plain/configs@v1:french" == '{"text":"fr/data/train-00000-of-00001"}', "a config by names under data_dir")
  check(data "plain/parts:b" == '{"text":"x"}\n{"text":"y"}\n' and data "plain/parts:a:train" == '{"text":"x"}\n',
    "two without a default")
  for name, pattern in pairs {
    ["plain/parts"] = "value: .*several configs and no default: name one, as plain/parts:a; its README.md has a, b",
    ["plain/configs:test"] =
    "value: .*no data of split test; config english has train, held.out; its configs are english, french, " .. "piped",
    ["plain/configs:german:train"] = "value: .*no config german; its README.md has english, french, piped",
    ["plain/configs:french:test"] = "value: .*config french has no split test; .*it has train",
    ["plain/configs:piped"] = "unsupported: .*piped of README.md says sep: |",
    ["plain/chats:default:train"] = "value: .*no configs in a README.md",
  } do
    check(refusal(name):find("^" .. pattern), name, refusal(name))
  end
end

-- addresses and names
for _, bad in ipairs { "http://example.com", "ftp://127.0.0.1", "http://127.0.0.1.example.com", "nothing",
    "https://me:pw@huggingface.co" } do
  check(not q.try(q.hub.open, { endpoint = bad }), bad, "taken")
end
for _, bad in ipairs { "../x", "a/b/c", "a/..", "-a/b", "a/b@..", "a/b@x/../y", "a/b:c:d", "a/b:c", "" } do
  local found, why = q.try(q.hub.model, bad, { hub = client() })
  check(not found and why.code == "value", bad, found or why)
end

print(failures == 0 and "hub cases: ok" or failures .. " failed")
os.exit(failures == 0 and 0 or 1, true)
