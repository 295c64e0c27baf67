-- Damage to packets is found, placed and counted: a few of the bit flips of tests/packets_flips.lua.
arg = { [0] = arg and arg[0], "200", "3" }
dofile "tests/packets_flips.lua"
