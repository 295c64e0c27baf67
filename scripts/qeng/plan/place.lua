-- Where the weights of a plan lie: on the device, in the host's memory, in the file.

-- found: accounts (bytes by name), units (bytes, held, learned, shared) and learns (whether bits do) of a rehearsal.
-- Places the weights where the device may hold `budget` (nil: all of them): bytes of the device, of the host and of the
-- file. Nil where the budget does not do; the second result then says what would (least, least_host).
--
-- Streamed units pass through buffers as large as the largest: one in use and those on their way, two on a GPU
-- (BufferedStream::kDepth). The largest units stay, as many as fit; `keep` is their bytes, which --stream-keep has to
-- be on a GPU. There the streamed units lie in pinned memory of the host as far as host_budget goes, and the rest is
-- read from the file through a buffer. Only a model whose bits learn needs pinned memory for all. written: bytes that a
-- pass copies back. device, as q.devices has it: one_memory, it reads the host's, as the CPU does, and all from the
-- file; streams = false, weights are not streamed to it.
local function place(found, budget, host_budget, device)
  local one_memory = device.one_memory
  local units, total, streamable = {}, 0, 0
  for _, bytes in pairs(found.accounts) do total = total + bytes end
  for number, unit in ipairs(found.units) do
    if device.streams ~= false and (one_memory or not unit.shared) then
      units[#units + 1] = { bytes = unit.bytes, held = unit.held, learned = unit.learned, number = number }
      streamable = streamable + unit.bytes
    end
  end
  table.sort(units, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.number < b.number
  end)
  local buffers, largest, rest = one_memory and 2 or 3, units[1] and units[1].bytes or 0, total - streamable
  local placed = { total = total, least = math.min(total, rest + math.min(buffers, #units) * largest), least_host = 0,
    resident = #found.units,
    device = total, host = 0, file = 0, streamed = 0, written = 0, keep = streamable }
  if not budget or total <= budget then return placed end
  if placed.least > budget then return nil, placed end
  local kept, buffer, moving, held = 0, 0, 0, 0
  for i, unit in ipairs(units) do  -- one that stays leaves room for the buffers that the next needs
    local next = units[i + 1] and units[i + 1].bytes or 0
    if rest + kept + unit.bytes + buffers * math.max(buffer, next) <= budget then
      kept = kept + unit.bytes
    else
      buffer, moving, held = math.max(buffer, unit.bytes), moving + 1, held + unit.held
      placed.written = placed.written + unit.learned
    end
  end
  placed.resident, placed.keep, placed.streamed = #found.units - moving, kept, streamable - kept
  placed.device = rest + kept + math.min(buffers, moving) * buffer
  if one_memory then
    placed.file, placed.written = placed.streamed, 0
    return placed
  end
  placed.host = placed.streamed
  placed.least_host = found.learns and placed.streamed or math.min(placed.streamed, buffer + held)
  host_budget = host_budget or math.huge
  if placed.least_host > host_budget then return nil, placed end
  if placed.host > host_budget then placed.host, placed.file = host_budget, placed.streamed - (host_budget - buffer) end
  return placed
end

return place
