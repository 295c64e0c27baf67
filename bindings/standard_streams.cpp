#include "bindings/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

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

}  // namespace

void guard_standard_streams() {
  // For reading only, so that writing fails. open() takes the lowest number that is free.
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) == -1) [[maybe_unused]]
      const int opened = ::open("/dev/null", O_RDONLY);
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
