-- The device that the runtime in use computes on.

local q = require "qeng.core"

local devices = {}

-- An entry of q.devices. That of a process with several runtimes is the last one's.
function devices.in_use()
  q.empty { 1 }  -- makes the default runtime
  local found
  for _, each in ipairs(q.devices()) do
    if each.in_use then found = each end
  end
  return found
end

return devices
