-- A text as one word of a shell, for commands that are told.
return function(text)
  if text:find "^[%w_./:@%%+=,-]+$" then return text end
  return "'" .. text:gsub("'", "'\\''") .. "'"
end
