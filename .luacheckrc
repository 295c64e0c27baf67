-- What luacheck looks for in qeng's Lua: globals, what is unused, overwritten or shadowed, lines over 120 columns.
-- The test "lua lint" (tests/CMakeLists.txt) fails on any warning.
std = "luajit"
max_line_length = 120
ignore = {
  "212/self", "432/self",  -- a method has self, whether or not it reads it
  "581",                   -- not (x > 0) refuses NaN too, x <= 0 does not
}
files["bindings/api.lua"] = { ignore = { "212", "241" } }  -- declarations: functions without bodies, classes that nobody reads
files["tests"] = { ignore = { "121", "122" } }             -- tests put functions of their own in place of print, io.write and os.exit
