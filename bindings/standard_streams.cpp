#include "bindings/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace qeng {
namespace {

void check_output(int status, void*) {
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost || status != 0) return;
  std::fputs(
      "qeng: standard output: not all that was printed arrived; is its disk full, or nobody left who reads it?\n",
      stderr);
  ::_exit(1);
}

// stdio takes a write that a signal interrupts for a loss: Ctrl-C while a terminal is slower than what is printed.
ssize_t write_on(void*, const char* data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t written = ::write(STDOUT_FILENO, data + done, bytes - done);
    if (written < 0 && errno != EINTR) break;
    if (written > 0) done += static_cast<size_t>(written);
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

void guard_standard_streams() {
  // For reading only, so that writing fails. open() takes the lowest number that is free.
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) == -1) [[maybe_unused]]
      const int opened = ::open("/dev/null", O_RDONLY);
  if (FILE* const output = ::fopencookie(nullptr, "w", {.write = write_on})) {
    std::setvbuf(output, nullptr, ::isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    stdout = output;
  }
  ::on_exit(check_output, nullptr);  // first of all, so that it comes last
}

void outlive_readers() {
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = [](int) {};  // a handler, not SIG_IGN, which programs started from here would inherit
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace qeng
