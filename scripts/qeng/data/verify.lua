-- Checks that a dataset is whole: every frame, every block's hash, the index. Damage is named with its place.

local progress = require "qeng.console.progress"
local q = require "qeng.core"

local verify = {}

local kShown = 20

local function sources(by_source)
  local parts = {}
  for src, count in pairs(by_source) do parts[#parts + 1] = ("source 0x%02x: %d"):format(src, count) end
  table.sort(parts)
  return table.concat(parts, ", ")
end

-- Verifies an open dataset and prints what it finds. Damage is an error of code "format". The header, the index and the
-- meta data were checked when the dataset was opened.
function verify.file(file, path)
  local speak, begin = progress.new(), q.time()
  local found = file:verify { progress = function(done, total)
    local rate = done / math.max(q.time() - begin, 1e-9)
    speak:line(("verify: %s of %s, %s/s, %s left"):format(progress.bytes(done), progress.bytes(total),
      progress.bytes(rate),
      progress.duration((total - done) / rate)))
  end }
  speak:finish()
  if found.ok then
    print(("verify: every frame of %d records, every hash of %d blocks and the index are whole"):format(found.records,
      found.blocks))
    return
  end
  for i = 1, math.min(kShown, #found.damaged) do
    local bad = found.damaged[i]
    print(("damaged: record %d, frame at byte %d, source 0x%02x"):format(bad.record, bad.offset, bad.src))
  end
  for i = 1, math.min(kShown, #found.block_offsets) do
    print(("damaged: block of 1 MiB at byte %d does not have its hash"):format(found.block_offsets[i]))
  end
  q.error("format", ("%s is damaged: %d of %d records (%s) and %d of %d blocks; recipes/packets.lua filter copies what "
    .. "is whole"):format(path, found.bad_records, found.records, sources(found.by_source), found.bad_blocks,
    found.blocks))
end

-- Reads bare frames to their end and prints what is in them. Damage is an error of code "format".
function verify.frames(path, crc)
  local scanner, types, records, tokens = q.ndp.scan(path, { crc = crc }), {}, 0, 0
  for record in function() return scanner:next() end do
    records, types[record.type] = records + 1, (types[record.type] or 0) + 1
    tokens = tokens + (record.tokens and #record.tokens or 0)
  end
  local parts = {}
  for name, count in pairs(types) do parts[#parts + 1] = ("%d %s"):format(count, name) end
  table.sort(parts)
  print(("%s: bare frames, %d records (%s), %d tokens"):format(path, records, table.concat(parts, ", "), tokens))
  local errors = scanner:errors()
  if errors.total > 0 then
    q.error("format", ("%s: %d frames are damaged (%s), %d bytes were skipped, %d records lost a frame"):format(path,
      errors.total,
      sources(errors.by_source), errors.skipped_bytes, errors.lost))
  end
end

return verify
