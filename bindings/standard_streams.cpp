#include "bindings/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/error.h"

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

std::string speaker;   // who prints errors only; empty: this process prints all
int error_output = 2;  // where those go

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

void speak_of_errors_only(const std::string& who) {
  if (!speaker.empty()) return;
  std::fflush(stdout), std::fflush(stderr);
  error_output = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (error_output < 0 || nowhere < 0) fail("io", "cannot keep quiet: ", std::strerror(errno));
  ::dup2(nowhere, STDOUT_FILENO), ::dup2(nowhere, STDERR_FILENO);
  ::close(nowhere);
  speaker = who;
}

void print_error(const std::string& text) {
  std::fflush(stdout);
  if (speaker.empty()) {
    std::fprintf(stderr, "%s\n", text.c_str());
    return;
  }
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) std::signal(signal, SIG_DFL);
  ::sleep(3);  // Open MPI ends the others a second after one has failed
  ::dprintf(error_output, "%s (%s)\n", text.c_str(), speaker.c_str());
}

}  // namespace qeng
