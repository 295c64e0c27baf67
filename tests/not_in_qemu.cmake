# Unit tests that take qemu minutes, that measure time, or that start threads in a child of a process with threads. CTest
# reads this after the tests of a cross build, and scripts/test --arm64 leaves them out. A test that qemu is too slow for
# goes here.
foreach(name
    "two runs are bit-identical, and so are two thread counts outside of oneDNN"
    "bf16 products of any k are right, and a NaN stays in its row"
    "the limits of the machine are measured once and are plausible"
    "grammar: random grammars accept what a recursive-descent matcher accepts, prefix by prefix"
    "a child process, which has none of the threads, works too"
    "whatever sequences do, each finds what it stored, exact rows too, and nothing is lost"
    "a product of several panels agrees with float64"
    "an ordered product agrees with float64"
    "a row of an ordered product has the same bits whatever other rows and columns there are"
    "a product by tiles gives the same bits with any number of threads"
    "a long run of marks is ordered in reasonable time"
    "NFC agrees with utf8proc on every code point, alone and after a letter")
  set_tests_properties("unit:${name}" PROPERTIES LABELS not_in_qemu)
endforeach()
