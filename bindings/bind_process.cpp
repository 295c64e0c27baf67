// q.host.process: this executable once more, with other arguments, in a process group of its own and with its output in
// a file.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "bindings/interrupt.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "kernels/error.h"

extern char** environ;

namespace qeng {
namespace {

// A child, which is killed when nothing holds it any more.
class Process {
 public:
  explicit Process(pid_t pid) : pid_(pid) {}
  ~Process() {
    if (ended()) return;
    ::kill(-pid_, SIGKILL);
    wait(0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Whether it has ended; status() then says how.
  bool ended() {
    if (!over_) wait(WNOHANG);
    return over_;
  }
  int status() const { return status_; }
  void signal(int number) {
    if (!ended()) ::kill(-pid_, number);
  }

 private:
  void wait(int how) {
    pid_t got;
    do got = ::waitpid(pid_, &status_, how);
    while (got < 0 && errno == EINTR);
    over_ = got != 0;
  }
  pid_t pid_;
  int status_ = 0;
  bool over_ = false;
};

}  // namespace
}  // namespace qeng

QENG_LUA_CLASS(qeng::Process, "Process")

namespace qeng {
namespace {
using lua::Call;

struct Actions {
  Actions() { ::posix_spawn_file_actions_init(&value); }
  ~Actions() { ::posix_spawn_file_actions_destroy(&value); }
  posix_spawn_file_actions_t value;
};
struct Attributes {
  Attributes() { ::posix_spawnattr_init(&value); }
  ~Attributes() { ::posix_spawnattr_destroy(&value); }
  posix_spawnattr_t value;
};

const std::string kParent = "QENG_PARENT=";  // bindings/host.cpp reads it

// This executable with other arguments.
int process(Call& call) {
  auto arguments = call.arg<std::vector<std::string>>(1);
  lua::Options opt(call, 2, {"output", "folder"});
  const auto output = opt.get("output", std::string("/dev/null")), folder = opt.get("folder", std::string());
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0) fail("io", "process: /proc/self/exe: ", std::strerror(errno));
  path[length] = 0;
  std::vector<char*> list = {path};
  for (std::string& each : arguments) {
    if (each.find('\0') != std::string::npos) fail("value", "process: an argument has a zero byte");
    list.push_back(each.data());
  }
  list.push_back(nullptr);
  std::string parent = kParent + std::to_string(::getpid());
  std::vector<char*> environment;
  for (char** each = environ; *each; ++each)
    if (std::strncmp(*each, kParent.c_str(), kParent.size()) != 0) environment.push_back(*each);
  environment.push_back(parent.data());
  environment.push_back(nullptr);
  Actions actions;
  ::posix_spawn_file_actions_addopen(&actions.value, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions.value, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&actions.value, 1, 2);
  if (!folder.empty()) ::posix_spawn_file_actions_addchdir_np(&actions.value, folder.c_str());
  Attributes attributes;
  sigset_t all, none;
  ::sigfillset(&all), ::sigemptyset(&none);
  ::sigdelset(&all, SIGKILL), ::sigdelset(&all, SIGSTOP);
  ::posix_spawnattr_setsigdefault(&attributes.value, &all);
  ::posix_spawnattr_setsigmask(&attributes.value, &none);
  ::posix_spawnattr_setflags(&attributes.value, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int failed = ::posix_spawn(&pid, path, &actions.value, &attributes.value, list.data(), environment.data());
  if (failed != 0) fail("io", "process: ", path, " with its output in ", output, ": ", std::strerror(failed));
  return call.push(std::make_shared<Process>(pid));
}

int pid(Call& call) { return call.push(static_cast<int64_t>(call.self<Process>()->pid())); }

// nil while it runs; then its exit status, or 128 and the number of the signal that ended it.
int status(Call& call) {
  const auto self = call.self<Process>();
  if (!self->ended()) return 0;
  const int how = self->status();
  return call.push(static_cast<int64_t>(WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how)));
}

// Waits at most so many seconds for its end.
int wait(Call& call) {
  const auto self = call.self<Process>();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(call.arg<double>(1));
  while (!self->ended() && std::chrono::steady_clock::now() < end && !interrupt_came())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return status(call);
}

int stop(Call& call) {
  call.self<Process>()->signal(call.arg<bool>(1, false) ? SIGKILL : SIGTERM);
  return 0;
}
}  // namespace

void register_process(lua_State* L) {
  using lua::fn;
  lua::functions(L, "host", {{"process", fn<process>}});
  lua::methods<Process>(L, {{"pid", fn<pid>}, {"status", fn<status>}, {"wait", fn<wait>}, {"stop", fn<stop>}});
}

}  // namespace qeng
