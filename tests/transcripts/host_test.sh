#!/bin/bash
# The command line and the REPL of the real executable ($QENG): what it prints, and its exit status.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export QENG_HISTORY=$work/history
failures=0

# check NAME STATUS PATTERN... : runs the command in $command (bash) and wants that status and each pattern (grep -E, the
# whole output in one line with | between lines) in stdout and stderr together.
check() {
  local name=$1 status=$2 output got
  shift 2
  output=$(timeout 60 bash -c "$command" 2>&1 </dev/null)
  got=$?
  output=$(printf '%s' "$output" | tr '\n' '|')
  [ "$got" = "$status" ] || { echo "FAILED $name: exit status $got, expected $status: $output"; failures=$((failures + 1)); }
  for pattern in "$@"; do
    printf '%s' "$output" | grep -qE -- "$pattern" || { echo "FAILED $name: no '$pattern' in: $output"; failures=$((failures + 1)); }
  done
}

command="$QENG --help" check "help" 0 '^usage: qeng FILE' 'QENG_SCRIPTS'
command="$QENG --version" check "version" 0 '^qeng [0-9.]+, LuaJIT 2\.1'
command="$QENG --vresion" check "mistyped option" 2 "^qeng: unknown option --vresion; did you mean '--version'\?"
command="$QENG -e" check "-e without code" 2 'needs Lua code'
command="$QENG -e 'print(q.version, ...)' a b" check "-e" 0 '^[0-9.]+	a	b$'
command="$QENG -e 'print(#arg, arg[1])' a b" check "arg with -e" 0 '^2	a$'
command="$QENG -e 'print(#arg)' \$(seq 9000)" check "too many words" 2 'has 9000 words, more than a recipe can be given'
command="$QENG -e 'os.exit(7)'" check "os.exit" 7
command="$QENG -e 'os.exit(\"a\")'" check "os.exit says where" 1 'qeng: -e:1: bad argument #1 to .exit. .number expected, got string'

# ---- recipes
mkdir -p recipes/lib
echo 'print("hello", arg[0], #arg, ...)' > recipes/hello.lua
echo 'return { name = "lib" }' > recipes/lib/init.lua
echo 'return { name = "near" }' > recipes/near.lua
echo 'print(require("near").name, require("lib").name, type(require("qeng").time))' > recipes/needs.lua
printf 'local q = require "qeng"\n\nq.host.isatty("x")\n' > recipes/misuse.lua
printf 'local t\n\nprint(t.x)\n' > recipes/broken.lua
printf 'local x = = 1\n' > recipes/syntax.lua
printf 'require("qeng").error("usage", "--lr: number expected")' > recipes/usage.lua
printf 'local q = require "qeng"\nlocal r, e = q.try(q.fs.read, "nothing.txt")\nprint(r, e.code, e.message)\nq.fs.read "nothing.txt"\n' > recipes/missing.lua

command="$QENG recipes/hello.lua --x 1" check "recipe" 0 '^hello	recipes/hello.lua	2	--x	1$'
command="$QENG recipes/hello" check "recipe without .lua" 0 '^hello'
command="cd / && $QENG $work/recipes/needs.lua" check "a recipe's own modules" 0 '^near	lib	function$'
command="$QENG recipes/helo.lua" check "missing recipe" 1 "^qeng: recipes/helo.lua: no such recipe; did you mean 'recipes/hello.lua'\?"
command="$QENG recipes" check "a folder" 1 'is a folder'
command="$QENG recipes/misuse.lua" check "misuse names the line" 1 \
  "^qeng: recipes/misuse.lua:3: bad argument #1 to 'host.isatty': integer expected, got string$"
command="$QENG recipes/broken.lua" check "an error in a recipe" 1 '^qeng: recipes/broken.lua:3: attempt to index local' 'stack traceback'
command="$QENG recipes/syntax.lua" check "a syntax error" 1 '^qeng: recipes/syntax.lua:1: unexpected symbol'
command="$QENG recipes/usage.lua" check "wrong usage of a recipe" 2 '^qeng: --lr: number expected$'
command="$QENG recipes/missing.lua" check "a missing file" 1 'nil	io	nothing.txt: no such file\|' '\|qeng: recipes/missing.lua:4: nothing.txt: no such file'

# ---- the executable with its recipes beside it: an installation and a bundle
mkdir -p install/bin install/share/qeng/recipes bundle/bin bundle/recipes
cp "$QENG" install/bin/ && cp "$QENG" bundle/bin/
cp recipes/hello.lua install/share/qeng/recipes/installed.lua
cp recipes/hello.lua bundle/recipes/bundled.lua
command="install/bin/qeng recipes/installed.lua" check "an installed recipe" 0 '^hello'
command="bundle/bin/qeng recipes/bundled.lua" check "a bundle's recipe" 0 '^hello'
command="install/bin/qeng recipes/instaled.lua" check "near an installed recipe" 1 "did you mean 'recipes/installed.lua'"

# ---- the library from disk
mkdir -p scripts/qeng
echo 'return { version = "from disk" }' > scripts/qeng/init.lua
command="QENG_SCRIPTS=scripts $QENG -e 'print(q.version)'" check "QENG_SCRIPTS" 0 '^from disk$'

# ---- Ctrl-C. A background job of a script ignores SIGINT, which the handler of qeng undoes.
interrupt() { # interrupt NAME PATTERN CODE
  local output got
  "$QENG" -e "$3" > out 2>&1 &
  local pid=$!
  sleep 0.5
  kill -INT $pid
  wait $pid
  got=$?
  output=$(tr '\n' '|' < out)
  [ $got = 130 ] && printf '%s' "$output" | grep -qE "$2" || { echo "FAILED $1: status $got: $output"; failures=$((failures + 1)); }
}
interrupt "Ctrl-C of an endless loop" 'interrupted' 'while true do end'
interrupt "Ctrl-C of a loop that calls the engine" '-e:1: interrupted by Ctrl-C' 'while true do q.time() end'
cat > products.lua <<'END'
local q = require "qeng"
local a = q.randn { 4, 256, 256 }
q.host.uninterrupted(function()
  local begin = q.time()
  while q.time() - begin < 2 do q.scope(function() a:matmul(a):compute() end) end
end)
END
"$QENG" products.lua > out 2>&1 &
pid=$!
sleep 0.3
while kill -INT $pid 2>/dev/null; do sleep 0.002; done
wait $pid
got=$?
[ $got = 130 ] || { echo "FAILED signals during products: status $got: $(cat out)"; failures=$((failures + 1)); }
interrupt "q.try does not hide Ctrl-C" 'interrupted by Ctrl-C' 'while true do q.try(function() for i = 1, 1e5 do q.time() end end) end'
interrupt "deferred Ctrl-C is told" 'told' \
  'q.host.defer_interrupt(true) while not q.host.interrupted() do end print "told" q.error("interrupted", "stopped")'
interrupt "deferred Ctrl-C raises when no longer deferred" 'interrupted by Ctrl-C' \
  'q.host.defer_interrupt(true) local t = q.time() while q.time() < t + 1 do end q.host.defer_interrupt(false) for i = 1, 10 do q.time() end print "not reached"'

# ---- the REPL, as a session piped in
repl() { printf '%s\n' "$@" | "$QENG" > out 2>&1; }
expect() { # expect NAME STATUS LINES...
  local name=$1
  shift
  printf '%s\n' "$@" > expected
  diff expected out > difference || { echo "FAILED REPL, $name:"; cat difference; failures=$((failures + 1)); }
}
repl '1 + 1' 'x = 3' 'x' '"text"' 'nil' '1, nil, "two"'
expect "expressions are printed" 2 3 text $'1\tnil\ttwo'
repl 'for i = 1, 2 do' '  print(i)' 'end' 'f = function(a)' 'return a * 2' 'end f(4)' 'f(5)' 't = {' '1,' '2}' '#t'
expect "several lines" 1 2 10 2
repl 't = { 1, 2, { 3 }, name = "n", ["a b"] = true }' 't' 't.t = t' 't' '{}' 'q.json.decode("[null]")'
expect "tables" '{1, 2, {3}, ["a b"] = true, name = "n"}' '{1, 2, {3}, ["a b"] = true, name = "n", t = <cycle>}' '{}' '{null}'
repl 'a = { { { { { 1 } } } } }' 'a' 'for i = 1, 50 do a[i] = i end' 'print(#q.version > 0)' 'local s = ("x"):rep(70) return { s, s }'
expect "deep and wide tables" '{{{{{...}}}}}' true '{' "  \"$(printf 'x%.0s' {1..70})\"," "  \"$(printf 'x%.0s' {1..70})\"" '}'
repl 'q.host.isatty(9)' 'error({ code = "io", message = "m" })' 'x = = 1' 'q.error("value", "no good")' '"still here"'
sed -i 's/^stack traceback:$/T/; /^\t/d' out
expect "errors do not end it" "bad argument #1 to 'host.isatty': 0, 1 or 2 expected, got 9" m "stdin:1: unexpected symbol near '='" 'no good' 'still here'
repl 'q.zeros{2}[5]' '= =' 'error "own"'
sed -i 's/^stack traceback:$/T/; /^\t/d' out
expect "a syntax error shows no earlier traceback" 'stdin:1: index: position 5 is outside [0, 2)' "stdin:1: unexpected symbol near '='" own T
repl 'help("q.host.isatty")' 'help(q.host.isatty)' 'help("q.nothing")'
expect "help" 'q.host.isatty(fd)' '    fd?: 0|1|2  1' '    returns boolean' 'q.host.isatty(fd)' '    fd?: 0|1|2  1' '    returns boolean' \
  'nothing is called q.nothing; help() lists the names'
repl 'q' 'help(q.json)' 'help "Tensor.fill"' 'help(string.rep)' 'help({})' 'q.zeros({ 2 })' 't = {}' 'for i = 1, 30 do t[i] = { ("x"):rep(60), ("y"):rep(60) } end' 't'
sed -i '$!{/^  *["{}]/d}' out  # the lines of the large table, but for the last
expect "help of what is at hand" "qeng $("$QENG" -e 'print(q.version)'): help(q) lists its names" q.json \
  '  q.json.decode(text, opt)  -- Arrays keep that they are arrays; whole numbers are exact up to 2^53.' '  q.json.encode(value, opt)' \
  '  q.json.array(t)  -- Marks a table so that it is written as [] even when empty.' 'Tensor:fill(value)' '    value: number  of i32 and i64 an integer of 24 bits' '    returns Tensor self' \
  "string.rep is Lua's own: www.lua.org/manual/5.1" 'no reference for this table; help() lists the names' 'f32 [2]  [0. 0.]' '{' '... 62 more lines'
repl 'help()'
grep -q 'q.adamw_state' out || { echo "FAILED help()"; failures=$((failures + 1)); }
printf 'while true do end\n"after"\n' > session
"$QENG" < session > out 2>&1 &
pid=$!
sleep 0.7
kill -INT $pid
wait $pid
grep -q interrupted out && grep -q after out || { echo "FAILED Ctrl-C in the REPL: $(cat out)"; failures=$((failures + 1)); }
command="printf 'x\n' | $QENG -i -e 'x = 5'" check "-i after code" 0 '^5$'

# ---- -i FILE: the file's variables stay, its local ones too, wherever it has come to
printf 'local a, b = 1, 2\nlocal function sum() return a + b end\nfor i = 1, 3 do c = i end\nprint(...)\n' > recipes/keeps.lua
command="printf 'a, b, c, sum(), i\n' | $QENG -i recipes/keeps.lua x y" check "-i FILE" 0 '^x	y\|1	2	3	3	nil$'
printf 'local before = 1\nlocal function deep() error("no good") end\ndeep()\nlocal after = 2\n' > recipes/fails.lua
command="printf 'before, after\n' | $QENG -i recipes/fails.lua" check "-i FILE that fails" 0 'fails.lua:2: no good' 'in function .deep.' '1	nil$'
printf 'local n = 0\nwhile true do n = n + 1 end\n' > recipes/endless.lua
printf 'n > 0\n' > session
"$QENG" -i recipes/endless.lua < session > out 2>&1 &
pid=$!
sleep 0.7
kill -INT $pid
wait $pid
grep -q 'interrupted by Ctrl-C' out && grep -q '^true$' out || { echo "FAILED Ctrl-C in -i FILE: $(cat out)"; failures=$((failures + 1)); }

[ $failures = 0 ] && echo "host: ok"
exit $((failures > 0))
