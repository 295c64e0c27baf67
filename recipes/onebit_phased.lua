-- Does the same as onebit_pretrain, with a bounded part of the weights learning at a time. The others are bits without
-- state.
--   qeng recipes/onebit_phased.lua --data text.jsonl --active 2e6

local q = require "qeng"

local opt = q.options {
  [[Trains a model of one-bit weights in phases: --active weights learn for --phase-steps steps, then others do.
What it gains is memory: only what learns has counters (those of the others are dropped, or with --keep stay), and
only it needs the weight's gradient. What it costs is tokens: each weight sees a share of the evidence. With 0.8
million weights and 2 million characters a quarter of them at a time gained nothing over frozen random bits, their
counters kept or dropped. With twice as many characters and --keep it was 0.03 ahead of them, where all weights at
once are after half the tokens. With 5.1 million weights and 20 million characters (--keep) it was 0.13 ahead and
closed 30 % of the gap to straight-through training; all weights at once close 68 %. It is for models that do not
fit otherwise. recipes/onebit_compare.lua --methods frozen,latent,7,phased measures it on a text of yours.]],
  "onebit",
  { "active", 0, "the most weights that learn at once, 0: four turns, as equal as blocks allow", min = 0 },
  { "phase_steps", 100, "steps of a phase", min = 1 },
  { "by", "layer", "what learns together: blocks in turn (matrices of one that is larger than --active), a band of "
    .. "rows of every matrix, or the matrices with the largest gradients", choices = { "layer", "rows", "gradient" } },
  { "keep", false, "keep the counters of what rests, instead of dropping them" },
}
q.use_device(opt)

q.onebit.pretrain(opt, function(model)
  return q.phases(model, {
    active = opt.active > 0 and opt.active or nil, count = 4, steps = opt.phase_steps, by = opt.by, keep = opt.keep,
    inertia = q.onebit.inertia_options(opt),
  })
end, "Pretraining with one-bit weights, in phases")
