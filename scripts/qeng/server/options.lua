-- The options of recipes/serve.lua, and the server that they say.

local kv_option = require "qeng.infer.kv_option"
local models = require "qeng.model"
local options = require "qeng.console.options"
local q = require "qeng.core"
local server = require "qeng.server"

options.set("serve", {
  { "model", "", "Hugging Face folder, .gguf file, or org/name[@revision] on the hub; without it, a small built-in one",
    kind = "input" },
  "dtype", "weights",
  { "models", nil, "folder of models that are loaded when a request names them; then --model is not needed",
    kind = "input" },
  { "keep", 1, "of --models so many stay loaded", min = 1 },
  { "name", "", "what requests call the model; by default the end of its path" },
  { "adapter", {}, "adapters that requests choose by their names: NAME=DIR,..." },
  { "host", "127.0.0.1", "where to listen; beyond this machine --api-key or --no-auth is needed" },
  { "port", 8080, "0: any that is free", min = 0, max = 65535 },
  { "api_key", {}, "what clients have to show, several with commas between; or in the variable QENG_API_KEY" },
  { "no_auth", false, "answer whoever can reach --host" },
  { "origin", {}, "web pages of these origins may call the server" },
  { "tls_cert", "", "certificate chain (PEM), for https", kind = "input" },
  { "tls_key", "", "its key (PEM)", kind = "input" },
  { "max_batch", 64, "answers that are written at the same time", min = 1 },
  { "context", 0, "the most tokens of a prompt and its answer, 0: the model's", min = 0 },
  "kv",
  { "kv_memory", nil, "size of the KV cache, as 4G; by default for --max-batch answers of up to 4096 tokens",
    kind = "bytes" },
  { "root", nil, "folder whose files requests may name (adapters to load); without it they may name none",
    kind = "input" },
  { "queue", 256, "requests that may wait; more get status 429", min = 0 },
  { "grace", 30, "seconds for what runs when the server is told to end", min = 0 },
  { "log", "-", "access log as lines of JSON, without prompts and answers: a file, - for standard error, none" },
  { "log_text", false, "the access log has prompts and answers too" },
})

local loopback = { ["127.0.0.1"] = true, ["::1"] = true, localhost = true }

-- Who may come: options of q.http_server.
local function access(opt)
  local keys = { unpack(opt.api_key) }
  keys[#keys + 1] = os.getenv "QENG_API_KEY"
  if #keys > 0 and opt.no_auth then q.error("usage", "--api-key and --no-auth exclude each other") end
  for _, origin in ipairs(opt.origin) do
    if origin ~= "null" and not origin:find "^%a[%w+.-]*://[^/*]+$" then  -- null: of a page that is a file
      q.error("usage", ("--origin %s: expected what a browser sends, such as https://example.org"):format(origin))
    end
  end
  local alone = loopback[opt.host]
  if not alone and #keys == 0 and not opt.no_auth then
    q.error("usage", ("--host %s lets other machines in: give --api-key KEY, or say --no-auth"):format(opt.host))
  end
  return {
    host = opt.host, port = opt.port, keys = keys, open = { "/health" }, origins = opt.origin,
    hosts = alone and { "localhost", "127.0.0.1", "[::1]", "::1" } or nil,  -- no name that a web page made up
    cert = opt.tls_cert ~= "" and opt.tls_cert or nil, key = opt.tls_key ~= "" and opt.tls_key or nil,
  }
end

local function log_to(path)
  if path == "none" then return nil end
  if path == "-" then return function(line) io.stderr:write(line) end end
  return function(line) q.fs.append(path, line) end
end

-- {"NAME=DIR", ...} as {[NAME] = DIR}.
local function adapters(list)
  local all = {}
  for _, text in ipairs(list) do
    local name, path = text:match "^([^=]+)=(.+)$"
    if not name then q.error("usage", ("--adapter %s: expected NAME=DIR"):format(text)) end
    if all[name] then q.error("usage", ("--adapter: two are called %s; give each its own name"):format(name)) end
    all[name] = path
  end
  return all
end

-- A server from parsed options of the set "serve", and the address that it listens at.
return function(opt)
  local http = access(opt)
  if (http.cert == nil) ~= (http.key == nil) then q.error("usage", "--tls-cert and --tls-key go together") end
  http.starting = true
  local listener = q.http_server(http)  -- it says that it lives, and is not ready, while models are loaded
  local limits = q.limits { if_room = true }  -- now: later it would keep requests waiting
  local first = {}
  if opt.model ~= "" or not opt.models then
    local path = opt.model ~= "" and opt.model or q.fs.find "recipes/tiny"
    if not path then q.error("io", "the built-in model recipes/tiny is not beside the recipes: give --model") end
    local name = opt.name ~= "" and opt.name or path:gsub("/+$", ""):match "([^/]+)$":gsub("%.gguf$", "")
    first[1] = { name, models.load(path, opt) }
  end
  local made = server.new {
    models = first, dir = opt.models, keep = opt.keep, load = { dtype = opt.dtype, weights = opt.weights },
    adapters = adapters(opt.adapter), queue = opt.queue,
    grace = opt.grace, log = log_to(opt.log), log_text = opt.log_text,
    http = listener, root = opt.root, limits = limits,
    engine = {
      max_batch = opt.max_batch, kv = kv_option(opt), memory = opt.kv_memory,
      context = opt.context > 0 and opt.context or nil,
    },
  }
  listener:ready()  -- from the time that its address is told
  local host = opt.host:find(":", 1, true) and "[" .. opt.host .. "]" or opt.host
  return made, ("%s://%s:%d"):format(http.cert and "https" or "http", host, made.http:port())
end
