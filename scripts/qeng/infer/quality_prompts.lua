-- Coding questions whose answers can be checked by running or reading them. kind "lua": `tests` (Lua, true if all is
-- well) uses what the answer's code defines. "json": the answer's JSON equals `value`. "exact": the answer's first
-- line, trimmed, is `value`.

local function lua(name, question, tests)
  local asked = "Write a Lua function " .. name .. " that " .. question .. " Answer with code only."
  return { kind = "lua", question = asked, tests = "return " .. tests }
end
local function json(question, value)
  return { kind = "json", question = question .. " Answer with JSON only.", value = value }
end
local function exact(question, value)
  return { kind = "exact", question = question .. " Answer with the result only.", value = value }
end

return {
  lua("add(a, b)", "returns the sum of two numbers.", "add(2, 3) == 5 and add(-1, 1) == 0"),
  lua("max_of(t)", "returns the largest number in a list.", "max_of { 3, 9, 2 } == 9 and max_of { -5 } == -5"),
  lua("reverse(s)", "returns a string reversed.", "reverse 'abc' == 'cba' and reverse '' == ''"),
  lua("is_even(n)", "returns whether a whole number is even.", "is_even(4) == true and is_even(7) == false"),
  lua("factorial(n)", "returns n factorial.", "factorial(0) == 1 and factorial(5) == 120"),
  lua("fib(n)", "returns the n-th Fibonacci number, with fib(1) = fib(2) = 1.", "fib(1) == 1 and fib(10) == 55"),
  lua("sum(t)", "returns the sum of a list of numbers, 0 for an empty one.", "sum { 1, 2, 3 } == 6 and sum {} == 0"),
  lua("count_vowels(s)", "counts the letters a, e, i, o, u of a lower-case string.",
    "count_vowels 'education' == 5 and count_vowels 'xyz' == 0"),
  lua("is_palindrome(s)", "returns whether a string reads the same backwards.",
    "is_palindrome 'level' == true and is_palindrome 'ab' == false"),
  lua("gcd(a, b)", "returns the greatest common divisor of two positive integers.",
    "gcd(12, 18) == 6 and gcd(7, 5) == 1"),
  lua("is_prime(n)", "returns whether an integer is prime.",
    "is_prime(2) == true and is_prime(9) == false and is_prime(1) == false"),
  lua("split(s, sep)", "splits a string at a one-character separator into a list.",
    "#split('a,b,c', ',') == 3 and split('a,b,c', ',')[2] == 'b'"),
  lua("keys(t)", "returns the sorted list of the string keys of a table.",
    "table.concat(keys { b = 1, a = 2 }, ',') == 'a,b'"),
  lua("map(t, f)", "returns a list of f applied to each element.",
    "map({ 1, 2 }, function(x) return x * x end)[2] == 4"),
  lua("filter(t, f)", "returns a list of the elements for which f is true.",
    "#filter({ 1, 2, 3, 4 }, function(x) return x > 2 end) == 2"),
  lua("contains(t, x)", "returns whether a list contains a value.",
    "contains({ 1, 2 }, 2) == true and contains({}, 1) == false"),
  lua("celsius(f)", "converts degrees Fahrenheit to Celsius.", "celsius(212) == 100 and celsius(32) == 0"),
  lua("unique(t)", "returns a list without repeated values, in their first order.",
    "table.concat(unique { 1, 2, 1, 3 }, ',') == '1,2,3'"),
  lua("binary(n)", "returns a non-negative integer in binary as a string, '0' for 0.",
    "binary(5) == '101' and binary(0) == '0'"),
  lua("trim(s)", "removes white space at both ends of a string.", "trim '  a b ' == 'a b'"),
  json("A JSON object with the key ok set to true.", { ok = true }),
  json("A JSON array of the first three even positive numbers.", { 2, 4, 6 }),
  json("Convert to a JSON object: name Ada, age 36.", { name = "Ada", age = 36 }),
  json("A JSON object that maps a to 1 and b to 2.", { a = 1, b = 2 }),
  json("An empty JSON array under the key items, in an object.", { items = {} }),
  json("Sort as a JSON array: 9, 4, 7.", { 4, 7, 9 }),
  json("A JSON object with point set to an object of x 1 and y 2.", { point = { x = 1, y = 2 } }),
  json("The words of 'red green blue' as a JSON array of strings.", { "red", "green", "blue" }),
  json("A JSON object with the keys min and max for the numbers 5, 1, 8.", { min = 1, max = 8 }),
  json("A JSON array that holds the booleans true and false, in this order.", { true, false }),
  exact("What is 17 + 25?", "42"),
  exact("What is 9 * 8?", "72"),
  exact("What does the Lua expression #'hello' give?", "5"),
  exact("What does the Lua expression 7 % 3 give?", "1"),
  exact("What is 2 to the power of 10?", "1024"),
  exact("What is 0x1F in decimal?", "31"),
  exact("What is the binary number 1010 in decimal?", "10"),
  exact("What does the Lua expression ('abc'):upper() give?", "ABC"),
  exact("How many bits has a byte?", "8"),
  exact("What does the Lua expression math.max(3, 8, 5) give?", "8"),
}
