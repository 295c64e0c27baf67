-- The library: the engine (C++) and what is written in Lua on top of it.
local q = require "qeng.core"
q.help = require "qeng.help"
return q
