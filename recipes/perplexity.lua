-- Measures the perplexity of a text under a model, as llama.cpp counts it. Against a reference model it also tells the
-- KL divergence and how often both find the same token likeliest.
--   qeng recipes/perplexity.lua --model model.gguf --data wiki.test.raw [--reference DIR]

local q = require "qeng"
local perplexity = require "qeng.infer.perplexity"
local progress = require "qeng.console.progress"

local opt = q.options {
  "Scores a text: windows that do not overlap, of which the second half counts (llama.cpp's default), or strided ones.",
  "model",
  { "data", nil, "a text file", kind = "input", required = true },
  { "reference", "", "another model of the same tokenizer, to compare with", kind = "input" },
  { "adapter", "", "PEFT adapter folder for the model, or an adapter as a GGUF file", kind = "input" },
  { "context", 512, "tokens of a window", min = 4 },
  { "stride", 0, "tokens between windows, whose last so many are scored; 0: no overlap", min = 0 },
  { "windows", 0, "at most so many windows, 0: all", min = 0 },
  "kv",
  { "out", "", "a file for the figures, as JSON", kind = "output", holds = { "ppl", "figures of this recipe" } },
  "weights", "peers", "device",
}
q.use_device(opt)

local model = q.load(opt.model, opt)
if opt.adapter ~= "" then model:load_adapter(opt.adapter) end
local line, begin = progress.new(), q.time()
local found = perplexity.run(model, q.fs.read(opt.data), {
  context = opt.context, stride = opt.stride, most = opt.windows > 0 and opt.windows or nil, kv = q.kv_option(opt),
  reference = opt.reference ~= "" and q.load(opt.reference, { dtype = opt.dtype }) or nil,
  watch = function(so_far, windows)
    local left = (q.time() - begin) / so_far.windows * (windows - so_far.windows)
    line:line(("window %d of %d  perplexity %.4f +- %.4f%s  %s left"):format(so_far.windows, windows, so_far.ppl,
      so_far.ppl_error, so_far.kl and ("  KL %.2e"):format(so_far.kl) or "", progress.duration(left)))
  end,
})
line:finish()

print(("perplexity %.4f +- %.4f over %d tokens in %d windows of %d, %s"):format(found.ppl, found.ppl_error, found.count,
  found.windows, opt.context, opt.stride > 0 and opt.stride .. " apart" or "second halves"))
if found.kl then
  print(("reference  %.4f, ratio %.6f"):format(found.reference_ppl, found.ratio))
  print(("KL(reference || model) %.3e +- %.1e nats, 99 %% of tokens under %.3e"):format(found.kl, found.kl_error,
    found.kl_99))
  print(("same likeliest token in %.3f %%"):format(100 * found.same_top))
end
if opt.out ~= "" then q.fs.write(opt.out, q.json.encode(found, { pretty = true }) .. "\n") end
