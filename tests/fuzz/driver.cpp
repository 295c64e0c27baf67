// The main() of every fuzz target: replays inputs, then mutates them.
//
//   fuzz_NAME [--rounds N | --seconds N] [--seed N] [--keep FOLDER] [file or folder]...
//
// Replays each file; then makes N mutated inputs, or as many as fit N seconds, which are the same for the same seed and
// files. Where the code is built with -fsanitize-coverage=trace-pc (the fuzz preset), an input that reaches new code
// joins those that are mutated, and is written to FOLDER. A target returns 0 and lets no exception out; a crash, a
// sanitizer's report or an input that takes over kMaxSeconds ends the run with the input in fuzz-crash-NAME.
#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/coverage.h"
#include "tests/fuzz/mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kMaxSeconds = 30;  // of the processor's time for one input: far over any honest one, sanitizers included
constexpr size_t kMaxInput = 1 << 20;

std::vector<uint8_t> current;  // what is being tried, for the handlers below
std::string crash_name;

void keep_current() {
  const int fd = ::open(crash_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (fd < 0) return;
  const ssize_t written = ::write(fd, current.data(), current.size());
  ::close(fd);
  if (written == static_cast<ssize_t>(current.size()))
    std::fprintf(stderr, "the input that did it is in %s\n", crash_name.c_str());
}

void on_signal(int number) {
  if (number == SIGPROF) std::fprintf(stderr, "an input takes over %d seconds\n", kMaxSeconds);
  keep_current();
  ::signal(number == SIGPROF ? SIGABRT : number, SIG_DFL);
  ::raise(number == SIGPROF ? SIGABRT : number);
}

void limit_seconds(int seconds) {  // 0: no more
  const itimerval timer = {{0, 0}, {seconds, 0}};
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

void try_input(const std::vector<uint8_t>& input) {
  current = input;
  limit_seconds(kMaxSeconds);
  // A copy of exactly this size, so that the sanitizer sees a read past its end.
  const std::vector<uint8_t> exact(input.begin(), input.end());
  if (LLVMFuzzerTestOneInput(exact.data(), exact.size()) != 0) std::abort();
  limit_seconds(0);
}

std::vector<uint8_t> read_input(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s: cannot read\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_input(const std::string& folder, const std::vector<uint8_t>& input) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, a name only
  for (uint8_t byte : input) hash = (hash ^ byte) * 0x100000001b3;
  char name[24];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hash));
  std::ofstream(fs::path(folder) / name, std::ios::binary)
      .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t rounds = 0, seed = 1;
  double seconds = 0;
  std::string keep;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool option = word == "--rounds" || word == "--seconds" || word == "--seed" || word == "--keep";
    if (option && i + 1 == argc) return std::fprintf(stderr, "%s needs a value\n", word.c_str()), 2;
    if (word == "--rounds") {
      rounds = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seconds") {
      seconds = std::strtod(argv[++i], nullptr);
    } else if (word == "--seed") {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--keep") {
      fs::create_directories(keep = argv[++i]);
    } else if (fs::is_directory(word)) {
      for (const fs::directory_entry& entry : fs::directory_iterator(word))
        if (entry.is_regular_file()) files.push_back(entry.path());
    } else {
      files.emplace_back(word);
    }
  }
  std::sort(files.begin(), files.end());  // a folder's order is not the same everywhere
  crash_name = "fuzz-crash-" + fs::path(argv[0]).filename().string();
  for (int number : {SIGABRT, SIGFPE, SIGILL, SIGPROF}) ::signal(number, on_signal);
  if (__sanitizer_set_death_callback) {
    __sanitizer_set_death_callback(keep_current);
  } else {
    for (int number : {SIGSEGV, SIGBUS}) ::signal(number, on_signal);
  }

  std::vector<std::vector<uint8_t>> corpus = {{}};
  for (const fs::path& path : files) corpus.push_back(read_input(path));
  for (const std::vector<uint8_t>& input : corpus) try_input(input), qeng::fuzz::new_coverage();

  qeng::fuzz::Mutator mutator(seed, kMaxInput);
  const Clock::time_point begin = Clock::now();
  uint64_t done = 0, kept = 0;
  std::vector<uint8_t> input;
  const auto time_left = [&] {
    return done % 64 != 0 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds;
  };
  for (; done < rounds || (seconds > 0 && time_left()); ++done) {
    mutator.mutate(corpus, input);
    try_input(input);
    if (!qeng::fuzz::new_coverage()) continue;
    corpus.push_back(input), ++kept;
    if (!keep.empty()) write_input(keep, input);
  }
  const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%zu inputs replayed, %llu mutated in %.1f s, %llu of them reached new code (%zu places%s): no finding\n",
              files.size(), static_cast<unsigned long long>(done), spent, static_cast<unsigned long long>(kept),
              qeng::fuzz::covered(), qeng::fuzz::covered() == 0 ? ", built without coverage" : "");
  return 0;
}
