// Any JSON value, in the notation of gbnf.h: what schemas build on. Bounded where JSON is not, so that output cannot
// run away: white space, digits and exponents (no number overflows a double, integers are exact in one). No lone
// surrogates.
#pragma once

namespace qeng::grammar {

constexpr const char* kJsonRules = R"GBNF(
root      ::= value
value     ::= object | array | string | number | "true" | "false" | "null"
object    ::= "{" ws (member (ws "," ws member)*)? ws "}"
member    ::= string ":" gap value
array     ::= "[" ws (value (ws "," ws value)*)? ws "]"
string    ::= "\"" char* "\""
char      ::= plain | "\\" (["\\/bfnrt] | "u" unit)
plain     ::= [^"\\\x00-\x1F]
unit      ::= [0-9A-CEFa-cef] hex hex hex | [Dd] [0-7] hex hex | [Dd] [89ABab] hex hex "\\u" [Dd] [C-Fc-f] hex hex
hex       ::= [0-9A-Fa-f]
number    ::= "-"? digits ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?
digits    ::= "0" | [1-9] [0-9]{0,14}
boolean   ::= "true" | "false"
ws        ::= (" " | "\n" [ \t]{0,40})?
gap       ::= " "?
date      ::= year "-" day | leap "-02-29"
year      ::= [12] [0-9]{3}
day       ::= ("01" | "03" | "05" | "07" | "08" | "10" | "12") "-" ("0" [1-9] | [12] [0-9] | "3" [01])
            | ("04" | "06" | "09" | "11") "-" ("0" [1-9] | [12] [0-9] | "30")
            | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])
leap      ::= [12] [0-9] ("0" [48] | [2468] [048] | [13579] [26]) | ("12" | "16" | "20" | "24" | "28") "00"
time      ::= clock ("." [0-9]{1,6})? ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])
clock     ::= ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9]
date-time ::= date "T" time
uuid      ::= hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}
email     ::= atom ("." atom)? "@" (label "."){1,3} [a-z]{2,12}
atom      ::= [A-Za-z0-9] [A-Za-z0-9_+-]{0,30}
label     ::= [a-z0-9] ([a-z0-9-]{0,60} [a-z0-9])?
uri       ::= [a-z] [a-z0-9+.-]{0,15} "://" (label "."){0,3} label (":" [1-9] [0-9]{0,3})? ("/" step*)* ("?" more*)? ("#" more*)?
step      ::= [A-Za-z0-9._~!$&'()*+,;=:@-] | "%" hex hex
more      ::= step | "/" | "?"
ipv4      ::= octet "." octet "." octet "." octet
octet     ::= [0-9] | [1-9] [0-9] | "1" [0-9] [0-9] | "2" [0-4] [0-9] | "25" [0-5]
)GBNF";

}  // namespace qeng::grammar
