-- The dashboard by a listener without a network: what its files are served as, that each file that one names is there,
-- and that the pages keep to the policy that they are sent with.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local fake = require "server_fake"

local listener = fake.new()
local server = require("qeng.server").new { http = listener }

local function get(path, headers)
  local id = listener:put("GET", path, nil, headers)
  server:turn(0)
  return assert(listener.answers[id], path)
end
local function equal(a, b, what)
  if a ~= b then error(("%s: %s, expected %s"):format(what, tostring(a), tostring(b)), 2) end
end

-- Browsers get the page, others the list.
local browser = { accept = "text/html,application/xhtml+xml,*/*;q=0.8" }
local index = get("/", browser)
equal(get("/").headers["content-type"], "application/json", "the type of / for others")
equal(q.json.decode(get("/", { accept = "application/json" }).body).name, "qeng", "the list's name")

-- Every file that the page names, and that these name.
local files = { ["/"] = index }
local function follow(path)
  if files[path] then return end
  files[path] = get(path)
  equal(files[path].status, 200, path)
  for name in files[path].body:gmatch 'from "%./([^"]+)"' do follow("/pages/" .. name) end
end
for path in index.body:gmatch '="(/[^"]+)"' do follow(path) end
for _, name in ipairs { "overview.js", "chat.js", "requests.js", "models.js", "runs.js", "jobs.js",
  "packets.js", "kernels.js", "kv.js", "peers.js", "style.css" } do
  assert(files["/pages/" .. name], name .. " is named by no file")
end

-- Types and policy of each.
local types = { css = "text/css", js = "text/javascript" }
for path, file in pairs(files) do
  local expected = types[path:match "%.(%w+)$"] or "text/html"
  equal(file.headers["content-type"], expected .. "; charset=utf-8", path)
  equal(file.headers["x-content-type-options"], "nosniff", path)
  equal(file.headers["referrer-policy"], "no-referrer", path)
  local policy = {}
  for name, value in file.headers["content-security-policy"]:gmatch "([%w-]+) ([^;]+)" do policy[name] = value end
  for name, value in pairs {
    ["default-src"] = "'none'", ["script-src"] = "'self'", ["style-src"] = "'self'", ["img-src"] = "'self' data:",
    ["connect-src"] = "'self'", ["frame-ancestors"] = "'none'",
  } do equal(policy[name], value, path .. ", " .. name) end
end

-- No script or style within the page, no markup made of texts, nothing from elsewhere.
assert(not index.body:find "<style" and not index.body:find "%sstyle=" and not index.body:find "%son%w+=")
for tag, inner in index.body:gmatch "(<script[^>]*>)(.-)</script>" do
  assert(tag:find "%ssrc=" and inner == "", "a script within the page")
end
for path, file in pairs(files) do
  for _, word in ipairs { "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "import(" } do
    assert(not file.body:find(word, 1, true), path .. " has " .. word)
  end
  local elsewhere = file.body:gsub("http://www%.w3%.org/2000/svg", ""):match "https?://[^%s\"]+"
  assert(not elsewhere, ("%s names %s"):format(path, tostring(elsewhere)))
end

-- A client that has a file gets no body; one that has another gets it.
local tag = files["/pages/app.js"].headers.etag
local again = get("/pages/app.js", { ["if-none-match"] = tag })
equal(again.status, 304, "a known file")
equal(again.body, "", "the body of a known file")
equal(get("/pages/app.js", { ["if-none-match"] = '"other"' }).status, 200, "another file")
assert(tag ~= files["/pages/chat.js"].headers.etag)

-- Nothing else of the library is served.
for _, name in ipairs { "..", "init.lua", "../init.lua", "pages.lua", ".css", "none.js", "app.js.lua", "a%2fb.js" } do
  equal(get("/pages/" .. name).status, 404, name)
end
