// Where cuBLASLt is looked for, and the file in which the choices of its algorithms are kept.
#include "kernels/cuda/linear/cublaslt_files.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels/error.h"
#include "kernels/math/crc16.h"
#include "tests/catch.h"

using namespace qeng;
namespace fs = std::filesystem;

namespace {

const char* const kMachine = "NVIDIA H200, 132 multiprocessors, cuBLAS 130100, driver 13000";

GemmChoices some_choices() {
  return {{"8192x8960x1536 nt bf16 bf16 ld 1536 1536 8960 align 16 16 16 added", {3, "algorithm 66 tile 20", 215.25}},
          {"8192x16x1536 nt bf16 bf16 ld 1536 1536 16 align 16 16 16", {0, "algorithm 67 tile 5", 7}}};
}

struct Parsed {
  GemmChoices choices;
  std::vector<std::string> complaints;
};
Parsed parse(const std::string& text, const std::string& machine = kMachine) {
  Parsed parsed;
  parsed.choices = parse_choices(text, machine, [&](const std::string& why) { parsed.complaints.push_back(why); });
  return parsed;
}

// Sets a variable of the environment for a while.
struct Environment {
  Environment(const char* variable, const std::string& value) : name(variable) {
    if (const char* old = std::getenv(variable)) before = old, was_set = true;
    setenv(variable, value.c_str(), 1);
  }
  ~Environment() { was_set ? setenv(name, before.c_str(), 1) : unsetenv(name); }
  const char* name;
  std::string before;
  bool was_set = false;
};

struct Folder {
  Folder() : path(fs::temp_directory_path() / ("qeng-cublaslt-" + std::to_string(getpid()))) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("choices of algorithms are read as they were written") {
  const std::string text = choices_text(kMachine, some_choices());
  const Parsed parsed = parse(text);
  CHECK(parsed.complaints.empty());
  CHECK(parsed.choices.size() == 2);
  CHECK(choices_text(kMachine, parsed.choices) == text);
  const GemmChoice& large = parsed.choices.begin()->second;
  CHECK((large.candidate == 0 && large.algorithm == "algorithm 67 tile 5" && large.microseconds == 7));
}

TEST_CASE("choices of another machine or library are left alone") {
  const std::string text =
      choices_text("NVIDIA H200, 132 multiprocessors, cuBLAS 120805, driver 13000", some_choices());
  const Parsed parsed = parse(text);
  CHECK(parsed.choices.empty());
  REQUIRE(parsed.complaints.size() == 1);
  CHECK(contains(parsed.complaints[0], "cuBLAS 120805"));
  CHECK(contains(parsed.complaints[0], "cuBLAS 130100"));
  CHECK(parse("qeng cublaslt choices 2\n" + text.substr(text.find('\n') + 1)).choices.empty());
  CHECK(parse("").choices.empty());
  CHECK(parse(std::string(100, '\0')).choices.empty());
}

TEST_CASE("a choice whose line is cut or changed is left out, and the others stay") {
  const std::string text = choices_text(kMachine, some_choices());
  const size_t first = text.find('\n', text.find('\n') + 1) + 1;  // of the first shape's line
  const size_t second = text.find('\n', first) + 1;
  for (size_t length = second; length < text.size() - 1; ++length) {
    const Parsed parsed = parse(text.substr(0, length));
    CHECK(parsed.choices.size() == 1);
    CHECK(parsed.complaints.size() == (length > second ? 1 : 0));
  }
  for (size_t at = first; at < second - 1; ++at) {  // a byte of the first line: never a different choice
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    const Parsed parsed = parse(changed);
    INFO(changed);
    CHECK(parsed.choices.size() == 1);
    CHECK(!parsed.complaints.empty());
  }
  std::string twice = text + text.substr(second);
  CHECK(parse(twice).choices.size() == 2);
  CHECK(parse(twice).complaints.size() == 1);
}

TEST_CASE("a line that makes no sense is left out, though its checksum is right") {
  const std::string head = choices_text(kMachine, {});
  const auto summed = [](const std::string& line) {
    char sum[16];
    std::snprintf(sum, sizeof sum, " | %04x\n", crc16(kCrcCcittFalse, line.data(), line.size()));
    return line + sum;
  };
  CHECK(parse(head + summed("1x1x1 | candidate 2 | algorithm 1 | 1.5 us")).choices.size() == 1);
  for (const char* line :
       {"1x1x1 | candidate -1 | algorithm 1 | 1.5 us", "1x1x1 | candidate 99999999999999 | algorithm 1 | 1.5 us",
        "1x1x1 | candidate  | algorithm 1 | 1.5 us", "1x1x1 | candidate 1x | algorithm 1 | 1.5 us",
        "1x1x1 | 1 | algorithm 1 | 1.5 us", "1x1x1 | candidate 1 | algorithm 1 | nan us",
        "1x1x1 | candidate 1 | algorithm 1 | 1.5", "1x1x1 | candidate 1 | algorithm 1", "", "1x1x1"}) {
    INFO(line);
    const Parsed parsed = parse(head + summed(line));
    CHECK(parsed.choices.empty());
    CHECK(parsed.complaints.size() == 1);
  }
}

TEST_CASE("choices are added to what other processes wrote, whose choices stay") {
  const Folder folder;
  const std::string path = folder.path / "deep" / "choices.txt";
  const auto complain = [](const std::string& why) { FAIL(why); };
  CHECK(read_choices(path, kMachine, complain).empty());
  GemmChoices mine = some_choices();
  CHECK(add_choices(path, kMachine, mine, complain).size() == 2);
  mine.begin()->second.candidate = 9;
  mine["1x1x1"] = {1, "algorithm 1", 2};
  const GemmChoices all = add_choices(path, kMachine, mine, complain);
  CHECK(all.size() == 3);
  CHECK(all.begin()->first == "1x1x1");
  CHECK(std::next(all.begin())->second.candidate == 0);
  CHECK(content(path) == choices_text(kMachine, all));
  CHECK(read_choices(path, kMachine, complain).size() == 3);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path / "deep"))
    CHECK(!contains(entry.path().string(), ".tmp"));
}

TEST_CASE("several processes that choose at once lose none of their choices") {
  const Folder folder;
  const std::string path = folder.path / "choices.txt";
  constexpr int kProcesses = 4, kEach = 10;
  for (int process = 0; process < kProcesses; ++process)
    if (fork() == 0) {
      for (int i = 0; i < kEach; ++i)
        add_choices(path, kMachine, {{std::to_string(process) + "x" + std::to_string(i), {i, "a", 1}}},
                    [](const std::string&) { _exit(1); });
      _exit(0);
    }
  for (int process = 0; process < kProcesses; ++process) {
    int status = -1;
    wait(&status);
    CHECK(status == 0);
  }
  CHECK(read_choices(path, kMachine, [](const std::string& why) { FAIL(why); }).size() == kProcesses * kEach);
}

TEST_CASE("the file of choices lies in the user's cache and is named after the machine") {
  {
    const Environment cache("XDG_CACHE_HOME", "/some/cache");
    CHECK(choices_path("NVIDIA H200, cuBLAS 130100") == "/some/cache/qeng/cublaslt-NVIDIA-H200-cuBLAS-130100.txt");
  }
  const Environment cache("XDG_CACHE_HOME", ""), home("HOME", "/home/somebody");
  CHECK(choices_path("a/../b") == "/home/somebody/.cache/qeng/cublaslt-a-b.txt");
}

TEST_CASE("a cuBLASLt that is not there is named in one line with what to do") {
  const auto error_of = [](const std::function<std::string(void*)>& accept) -> std::string {
    try {
      open_cublaslt_library(accept);
    } catch (const Error& error) {
      CHECK(error.code == "unsupported");
      return error.what();
    }
    return "";
  };
  const auto refuse = [](void*) { return std::string("it is too old"); };
  {
    const Environment given("QENG_CUBLASLT", "/nonexistent");
    const std::string text = error_of(refuse);
    CHECK(
        text ==
        "cuBLASLt: QENG_CUBLASLT is /nonexistent (no such file); set it to a libcublasLt.so.13 or .so.12, or unset it");
  }
  {
    const Folder folder;
    const std::string fake = folder.path / "libcublasLt.so.13";
    std::ofstream(fake) << "no library";
    const Environment given("QENG_CUBLASLT", fake);
    CHECK(contains(error_of(refuse), fake + " ("));
  }
  const Environment given("QENG_CUBLASLT", ""), home("CUDA_HOME", "/nonexistent/cuda");
  const std::string text = error_of(refuse);  // none is good enough, whatever this machine has
  for (const char* part : {"libcublasLt.so.13 (", "libcublasLt.so.12 (", "/nonexistent/cuda/lib64/libcublasLt.so.13 (",
                           "/usr/local/cuda/lib64/libcublasLt.so.12 (", "Install", "QENG_CUBLASLT"})
    CHECK(contains(text, part));
  CHECK(!contains(text, "\n"));
}
