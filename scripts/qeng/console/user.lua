-- The user's own folder of things that may be thrown away: ~/.cache/qeng, or XDG_CACHE_HOME/qeng.

local q = require "qeng.core"

local user = {}

function user.cache_dir()
  local base = os.getenv "XDG_CACHE_HOME"
  if not base or base == "" then
    local home = os.getenv "HOME"
    if not home or home == "" then
      q.error("io", "neither XDG_CACHE_HOME nor HOME is set: set one, to say where caches go")
    end
    base = home .. "/.cache"
  end
  return base .. "/qeng"
end

return user
