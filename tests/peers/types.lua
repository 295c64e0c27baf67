-- The types and mixes that qeng writes GGUF files in, a line each.
for _, name in ipairs(require("qeng.gguf.types").names()) do print(name) end
