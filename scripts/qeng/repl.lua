local repl = {}
function repl.install() end
function repl.complete() return {} end
function repl.show(...) print(...) end
function repl.help() end
return repl
