-- q.hopfield: what is stored is recalled, also from a cue with noise; routes; what is refused.
local q = require "qeng"

q.device { device = "cpu", threads = 1 }
local model = q.load("recipes/tiny", { dtype = "f32" })
local memory = q.hopfield(model)
local ok, err = pcall(memory.recall, memory, "Where?")
assert(not ok and err.message == "hopfield: nothing is stored")
local things = { "hat", "brush", "ladder", "kettle", "dog" }
for _, thing in ipairs(things) do
  memory:store(("Where is the %s?"):format(thing), "places")
  memory:store(("How many %ss are there?"):format(thing), "numbers")
end
assert(memory:recall "Where is the river?" == "places" and memory:recall "How many rivers are there?" == "numbers")
local _, share = memory:recall "Where is the hat?"
local weights = memory:weights "Where is the hat?"
assert(share > 0.5 and share < 1 + 1e-6 and math.abs(weights:sum():item() - 1) < 1e-5 and weights:argmax():item() == 0)
assert(memory:recalled(0) == 1 and memory:recalled(0.3) >= 0.9 and memory:recalled(3) < memory:recalled(0.3))
assert(memory:recalled(0.8, 1) == memory:recalled(0.8, 1))
local sharp = q.hopfield(model, { beta = 1000 })
sharp:store(memory.rows[1], "a")
sharp:store(memory.rows[2], "b")
assert(sharp:recall(memory.rows[2]) == "b" and select(2, sharp:recall(memory.rows[2])) > 0.999)
print "ok"
