-- Shapes, positions and dtypes that slices, orders and products do not take: each error names the operation and the
-- shapes.
local q = require "qeng"
local refused = require("scratch").refused

q.device { device = "cpu" }

local x, i = q.zeros { 2, 3 }, q.tensor({ 0, 5 }, "i32")
refused("slice: there is no dimension 3 in a tensor of 2", x.slice, x, 3, 0, 1)
refused("slice: the step is a whole number, not 0", x.slice, x, 1, 0, 1, 0)
refused("slice: positions are whole numbers, not 0.5", x.slice, x, 1, 0.5)
refused("index: position 2 is outside [0, 2)", function() return x[2] end)
refused("index: position -3 is outside [0, 2)", function() return x[-3] end)
refused("at: 1 positions in a tensor of 2 dimensions", x.at, x, 1)
refused("at: position 3 is outside [0, 3)", x.at, x, 1, 3)
refused("permute of f32 [2, 3]: expected each of its dimensions once", x.permute, x, 1, 1)
refused("squeeze of [2, 3]: dimension 2 is not 1", x.squeeze, x, 2)
refused("expand of f32 [2, 3]: dimension 1 is 2, not 1", x.expand, x, 4, 3)
refused("expand of f32 [2, 3] to 1 dimensions, which are fewer", x.expand, x, 3)
refused("concat along dimension 1 of f32 [2, 3] and f32 [2, 2]", q.concat, { x, q.zeros { 2, 2 } })
refused("concat along dimension 1 of f32 [2, 3] and bf16 [2, 3]", q.concat, { x, q.zeros({ 2, 3 }, "bf16") })
refused("concat: a list of tensors is expected", q.concat, {})
refused("split of [2, 3]: the parts have 2 positions of 3", x.split, x, { 1, 1 }, 2)
refused("gather of [2, 3] by [2]: they have as many dimensions", x.gather, x, 1, i)
refused("gather of f32 [2, 3] along dimension 1 by i32 [1, 2]", x.gather, x, 1, q.zeros({ 1, 2 }, "i32"))
refused("gather: the index is i32, not f32", x.gather, x, 1, x)
refused("index 5 at position 1 is outside [0, 2)", function() return x:index_select(1, i):table() end)
refused("index_select: the index has one dimension, not [1, 2]", x.index_select, x, 1, q.zeros({ 1, 2 }, "i32"))
refused("the values are f32 [1, 3], expected f32 [2, 3]", x.scatter_add, x, 1, q.zeros({ 2 }, "i32"), q.zeros { 1, 3 })
refused("topk of [2, 3]: there are no 4 elements along dimension 2", x.topk, x, 4)
refused("matmul of f32 [2, 3] and bf16 [3, 2]: dtypes differ; cast with :to()", x.matmul, x, q.zeros({ 3, 2 }, "bf16"))
refused("inner dimensions differ, 3 and 2", x.matmul, x, x)
refused("dimensions before the last two differ, 2 and 3", x.matmul, q.zeros { 2, 1, 3 }, q.zeros { 3, 3, 1 })
refused("matmul: there is no option transpose", x.matmul, x, x, { transpose = true })
refused("tril and triu take two dimensions or more, not [3]", function() return x[0]:tril() end)
refused("arange: the step is 0", q.arange, 0, 1, 0)
refused("a tensor has no field to set", function() x.label = 1 end)
refused("reshape", x.reshape, x, { -1, 4 })
print "ok"
