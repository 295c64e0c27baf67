-- What a run trains, as the options of the set "finetune" say it.

local q = require "qeng.core"

local mode = {}

-- Sets what is trained: every weight, a new adapter, or the adapter of opt.adapter.
function mode.set(model, opt)
  if opt.mode ~= "full" and opt.gradients ~= "f32" then
    q.error("usage", "--gradients goes with --mode full: those of adapters are small, and stay f32")
  end
  if opt.mode == "full" then return model:full { gradients = opt.gradients } end
  if opt.adapter == "" then
    return model:lora {
      rank = opt.rank, alpha = opt.alpha > 0 and opt.alpha or nil, rslora = opt.rslora, dropout = opt.dropout,
      targets = #opt.targets > 0 and opt.targets or nil, ranks = opt.rank_pattern, alphas = opt.alpha_pattern,
      dora = opt.dora, seed = opt.seed,
    }
  end
  model:load_adapter(opt.adapter)
  local adapter = model.adapter
  if opt.__given.dropout then
    adapter.dropout = opt.dropout
    for _, layer in ipairs(model.linears) do
      if layer.lora then layer.lora.dropout = opt.dropout end
    end
  end
  io.stderr:write(("going on from %s: rank %d, alpha %g, dropout %g, %d parameters of %s\n"):format(opt.adapter,
    adapter.rank, adapter.alpha, adapter.dropout, #adapter.parameters, table.concat(adapter.targets, ", ")))
end

-- Trains a head that drafts tokens beside it: that of opt.adapter, the model's own, or a new one.
function mode.draft(model, opt)
  if opt.mtp == 0 then return end
  if not model.mtp then model:attach_mtp { writable = true, seed = opt.seed } end
  model:train_mtp { weight = opt.mtp, depth = opt.mtp_depth }
end

return mode
