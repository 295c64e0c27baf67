-- Finds which rule trains one-bit weights best, at equal tokens.
--   qeng recipes/onebit_compare.lua --data text.txt

local q = require "qeng"

local opt = q.options {
  [[Trains a small model of characters with every rule for one-bit weights: the same text, floats and schedule, the
floats' learning rate swept for each rule. Writes out/report.html and out/table.md, and prints the table; a stopped
run goes on where it stood.

What to expect. Frozen random bits with trained scales, embedding and head are a strong control: no claim about
one-bit training holds without them tuned. Straight-through training, which keeps 12 bytes a weight, is the other
end. The table says what share of the gap between the two each rule closes. With 0.8 million weights and 2 million
characters that was about 80 % with 8 bits of state a weight, 64 % with 3 (50 % without friction, method 7free) and
25 % with 2; the two-step machine did worse than bits that never learn. With 5.1 million weights and 20 million
characters it was, on two seeds, 96 and 98 % with 8 bits, 68 and 75 % with 3, and on one 42 % with 3 and no
friction; the two-step machine again did worse than bits that never learn. There bf16 weights (dense16) ended 0.09
ahead of straight-through ones, 8-bit weights trained directly (grid127) 0.08 ahead, ternary ones (grid1) 0.23
behind.

Phases train a quarter of the weights at a time. They save the products of the others' gradients and pay for it in
tokens. At those 2 million characters they gained nothing over the control. At twice as many they were 0.03 ahead of
it, and did what all weights at once do with half the tokens. With 5.1 million weights and 20 million characters
they were 0.13 ahead, 30 % of the gap, where all at once with 3 bits close 68 %. There the counters of what rests
were kept. Method refilled drops them, which saves three quarters of the state too, and at those 2 million
characters lost nothing by it.]],
  { "data", "", "text file; its bytes are the symbols", kind = "input" },
  { "out", "onebit", "output folder", kind = "folder",
    files = { "report.html", "runs.jsonl", "table.md", "unfinished" } },
  { "methods", { "frozen", "latent", "255", "7", "3", "1", "bop", "phased" },
    "also 15, 7free, 7hot, 7cool, 7target, grid1, grid127, refilled, dense, dense16" },
  { "lrs", { 6e-3, 1.2e-2, 2.4e-2 }, "learning rates of the floats to try" },
  { "latent_lr", 0, "learning rate of weights that AdamW trains (latent, grid, dense); 0: each rule's own", min = 0,
    number = true },
  { "seeds", { 1, 2 }, "the sweep is on the first, its best on the others" },
  { "steps", 2000, "optimizer steps", min = 10 },
  { "rows", 8, "windows of a step", min = 1 },
  { "tokens", 128, "characters of a window", min = 8 },
  { "hidden", 128, "width of the model", min = 32 },
  { "layers", 4, "blocks", min = 1 },
  { "heads", 4, "attention heads", min = 1 },
  { "ffn", 352, "inner width of the MLP", min = 32 },
  { "save_every", 500, "steps between checkpoints of the run under way", min = 1 },
  { "held_out", 0.1, "share of the text, at its end, that is not trained on", min = 0.001, max = 0.5 },
  "device",
}
q.use_device(opt)
if opt.data == "" then q.error("usage", "which text? --data FILE") end

opt.text, opt.latent_lr = opt.data, opt.latent_lr > 0 and opt.latent_lr or nil
local rows = q.onebit.compare(opt)
print(q.fs.read(opt.out .. "/table.md"))
print(("%d methods; curves and sweeps: %s/report.html"):format(#rows, opt.out))
