// The command line of qeng: runs recipes, code, or the REPL.
#pragma once
#include <string>

namespace qeng {

constexpr int kExitDone = 0, kExitFailed = 1, kExitUsage = 2;  // and interrupt.h's

int run_host(int argc, char** argv);  // the exit status

// The first that exists of: path as given, beside the running recipe's folder, beside the installed or bundled recipes.
// "" if none does.
std::string find_file(const std::string& path);

}  // namespace qeng
