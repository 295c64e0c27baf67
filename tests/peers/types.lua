-- Prints the types and mixes in which qeng writes GGUF files, one a line.
for _, name in ipairs(require("qeng.gguf.types").names()) do print(name) end
