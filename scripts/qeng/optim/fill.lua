-- A state of an optimizer, or a parameter, from an open checkpoint.

local q = require "qeng.core"

-- Fills a tensor from an open file, if the file has one of its shape and dtype.
return function(tensor, file, name)
  local info = file:info(name)
  if not info then
    q.error("format", ("the checkpoint holds no %s: the run was started with other options"):format(name))
  end
  if info.dtype ~= tensor:dtype() then
    q.error("dtype", ("the checkpoint holds %s as %s, this run has it as %s: the run was started with other options")
      :format(name, info.dtype, tensor:dtype()))
  end
  tensor:copy(file:tensor(name, { shape = tensor:shape() }))
end
