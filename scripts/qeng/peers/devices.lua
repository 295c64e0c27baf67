-- Devices of this machine as workers: a process of this one's tree for each, which dies with it. So several GPUs, or a
-- GPU and the processor, compute layers of one model by the code that several machines do.

local q = require "qeng.core"

local devices = {}

local start_within = 120  -- seconds: a GPU's libraries are large, and its limits are measured

-- Whether a word of --peers names a device: "cuda:1", "cpu".
function devices.is(text)
  for _, kind in ipairs { "cpu", "cuda", "opencl" } do
    if text == kind or text:match("^" .. kind .. ":%d+$") then return true end
  end
  return false
end

-- Starts a worker on each device. opt: peer_keys, weights. path: of the model. wait(seconds). Returns
-- {{name =, address =, process = to be held as long as it is wanted}...}.
function devices.start(names, opt, path, wait)
  local list, recipe = {}, q.fs.find "recipes/worker.lua"
  if not recipe then q.error("io", "recipes/worker.lua is not beside the executable, and starts workers on devices") end
  local folder = os.tmpname()
  q.fs.remove(folder)
  q.fs.mkdir(folder)
  for i, name in ipairs(names) do
    local words = { recipe, "--listen=127.0.0.1:0", "--silent", "--device=" .. name, "--model=" .. path }
    if opt.peer_keys then words[#words + 1] = "--keys=" .. opt.peer_keys end
    if opt.weights and opt.weights ~= "stream" then words[#words + 1] = "--weights=" .. opt.weights end
    local output = ("%s/%d"):format(folder, i)
    list[i] = { name = name, output = output, process = q.host.process(words, { output = output }) }
  end
  local till = q.time() + start_within
  for _, each in ipairs(list) do
    repeat
      local text = q.fs.kind(each.output) and q.fs.read(each.output) or ""
      each.address = text:match "^worker .- at ([%d.]+:%d+)\n"
      if each.process:status() or q.time() > till then
        q.fs.remove(folder)
        q.error("peer", ("the worker of device %s does not start: %s"):format(each.name, text))
      end
      if not each.address then wait(0.02) end
    until each.address
  end
  q.fs.remove(folder)
  return list
end

return devices
