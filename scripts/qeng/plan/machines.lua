-- Machines to plan for that are not here, by name: what their makers publish, which no program reaches in full.
--
-- A machine: description; memory; bandwidth of its memory, and link from the host's, bytes a second; flops_bf16 of
-- matrix products without sparsity, and flops_f32; one_memory: processor and GPU share it, so that no weight is copied
-- or streamed to it.

local q = require "qeng.core"

-- GB of memory, GB/s, TFLOP/s in bf16 and f32, GB/s of the link
local function machine(description, memory, bandwidth, bf16, f32, link, one_memory)
  return { description = description, memory = memory * 1e9, bandwidth = bandwidth * 1e9, flops_bf16 = bf16 * 1e12,
    flops_f32 = f32 * 1e12, link = link and link * 1e9, one_memory = one_memory or false }
end

local machines = {
  -- NVIDIA, DGX Spark: 1 PFLOP/s of FP4 with sparsity, of which dense bf16 is an eighth; 128 GB at 273 GB/s. f32: 6144
  -- lanes at 2.5 GHz.
  gb10 = machine("DGX Spark, GB10", 128, 273, 125, 31, nil, true),
  -- NVIDIA, data sheets of the products; links: PCIe 3, 4 and 5 with 16 lanes, or NVLink-C2C, one way
  gh200 = machine("GH200 96 GB", 96, 4000, 989, 67, 450),
  h200 = machine("H200 SXM", 141, 4800, 989, 67, 64),
  h100 = machine("H100 SXM", 80, 3350, 989, 67, 64),
  a100 = machine("A100 SXM 80 GB", 80, 2039, 312, 19.5, 32),
  l40s = machine("L40S", 48, 864, 362, 91.6, 32),
  l4 = machine("L4", 24, 300, 121, 30.3, 32),
  t4 = machine("T4, bf16 by half precision", 16, 320, 65, 8.1, 16),  -- dense products: kernels/cuda/README.md
  rtx5090 = machine("GeForce RTX 5090", 32, 1792, 209.5, 104.8, 64),
  rtx4090 = machine("GeForce RTX 4090", 24, 1008, 165.2, 82.6, 32),
  rtx3090 = machine("GeForce RTX 3090", 24, 936, 71, 35.6, 32),
}

local function names()
  local list = {}
  for name in pairs(machines) do list[#list + 1] = name end
  table.sort(list)
  return list
end

-- The machine of a name; an error that names them all where there is none.
local function find(name)
  local found = machines[name:lower()]
  if not found then
    q.error("value", ("plan: there is no machine %s; there are %s"):format(name, table.concat(names(), ", ")))
  end
  return found
end

-- The name of the first of `devices` (q.devices()) that is the machine of a name, or nil: there, what is measured is
-- better than what is published.
local function here(name, devices)
  local called = name:upper():gsub("^RTX", "RTX ")
  for _, device in ipairs(devices) do
    if device.description:find("%f[%w]" .. called .. "%f[^%w]") then return device.name end
  end
end

return { find = find, here = here, has = function(name) return machines[name:lower()] ~= nil end, names = names }
