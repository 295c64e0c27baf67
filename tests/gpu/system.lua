-- What this machine has, for scripts/gpu-check; fails with the reason where the device is missing:
--   qeng system.lua DEVICE OUT.json OUT.summary
local q = require "qeng"
q.device { device = arg[1] }
local devices, chosen = q.devices(), nil
for _, device in ipairs(devices) do
  print(("%-8s %s, %.1f GiB"):format(device.name, device.description, device.memory / 2 ^ 30))
  if device.name == arg[1] then chosen = device end
end
local limits = q.limits()
print(("%s: copies at %.0f GB/s, matrix products at %.1f TFLOP/s in bf16 and %.1f in f32"):format(
  arg[1], limits.bandwidth / 1e9,
  limits.flops_bf16 / 1e12, limits.flops_f32 / 1e12))
q.fs.write(arg[2], q.json.encode { version = q.version, device = chosen, devices = devices, limits = limits } .. "\n")
q.fs.write(arg[3], ("%s, %.0f GB/s, %.0f TFLOP/s bf16\n"):format(chosen and chosen.description or arg[1],
  limits.bandwidth / 1e9, limits.flops_bf16 / 1e12))
