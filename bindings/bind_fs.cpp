// q.fs: files and folders.
#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bindings/host.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/formats/atomic_file.h"
#include "engine/formats/folder_lock.h"
#include "engine/formats/mapped_file.h"

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::error_code& error) {
  fail("io", path, ": ", error.message());
}

// "" where nothing is there; mends a folder whose replacement was cut short (AtomicFolder).
std::string kind_of(const std::string& path) {
  recover_folder(path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::is_directory(status) ? "dir" : fs::exists(status) ? "file" : "";
}

int read(Call& call) {
  const auto path = call.arg<std::string>(1);
  const std::string kind = kind_of(path);
  if (kind.empty()) fail("io", path, ": no such file");
  if (kind == "dir") fail("io", path, ": is a folder, not a file");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) refuse(path, std::error_code(errno, std::generic_category()));
  return call.push(text.str());
}

int write(Call& call) {
  write_file_atomically(call.arg<std::string>(1), call.arg<std::string>(2));
  return 0;
}

int append(Call& call) {
  const auto path = call.arg<std::string>(1), text = call.arg<std::string>(2);
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file << text << std::flush;
  if (!file) refuse(path, std::error_code(errno, std::generic_category()));
  return 0;
}

int kind(Call& call) {
  const std::string found = kind_of(call.arg<std::string>(1));
  if (found.empty()) return 0;
  return call.push(found);
}

int list(Call& call) {
  const auto path = call.arg<std::string>(1);
  if (kind_of(path) != "dir") fail("io", path, ": no such folder");
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path, error)) names.push_back(entry.path().filename().string());
  if (error) refuse(path, error);
  std::sort(names.begin(), names.end());
  return call.push(names);
}

int mkdir(Call& call) {
  const auto path = call.arg<std::string>(1);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) refuse(path, error);
  return 0;
}

int remove(Call& call) {
  const auto path = call.arg<std::string>(1);
  std::error_code error;
  fs::remove_all(path, error);
  if (error) refuse(path, error);
  return 0;
}

int copy(Call& call) {
  const auto from = call.arg<std::string>(1), to = call.arg<std::string>(2);
  if (kind_of(from).empty()) fail("io", from, ": no such file");
  std::error_code error;
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
  if (error) refuse(from + " to " + to, error);
  return 0;
}

// A link at `path` to another path, in place of one that is there.
int link(Call& call) {
  const auto to = call.arg<std::string>(1), path = call.arg<std::string>(2);
  const std::string fresh = path + ".tmp";
  std::error_code error;
  fs::remove(fresh, error);
  fs::create_symlink(fs::absolute(to), fresh, error);
  if (!error) fs::rename(fresh, path, error);
  if (error) refuse(path, error);
  return 0;
}

int replace_dir(Call& call) {
  const auto from = call.arg<std::string>(1), to = call.arg<std::string>(2);
  if (kind_of(from) != "dir") fail("io", from, ": no such folder");
  AtomicFolder folder(to);
  folder.take(from);
  folder.commit();
  return 0;
}

// q.fs.write_dir(path, function(folder) ... end)
int write_dir(Call& call) {
  AtomicFolder folder(call.arg<std::string>(1));
  call.arg<lua::Ref>(2).call(folder.folder());
  folder.commit();
  return 0;
}

int join(Call& call) {
  const auto paths = call.arg<std::vector<std::string>>(1);
  const bool lines = Options(call, 3, {"lines"}).get("lines", false);
  AtomicFile joined(call.arg<std::string>(2));
  for (const std::string& path : paths) {
    const auto file = MappedFile::open(path, OnShrink::zeros);
    joined.write(file->text());
    file->require_whole();
    if (lines && file->size() > 0 && file->text().back() != '\n') joined.write("\n");
  }
  joined.commit();
  return 0;
}

int same(Call& call) {
  std::error_code missing;
  return call.push(fs::equivalent(call.arg<std::string>(1), call.arg<std::string>(2), missing));
}

int holder(Call& call) {
  const std::string found = folder_holder(call.arg<std::string>(1));
  if (found.empty()) return 0;
  return call.push(found);
}

int hold(Call& call) { return call.push(hold_folder(call.arg<std::string>(1))); }

int sweep(Call& call) { return call.push(remove_strays(call.arg<std::string>(1))); }

// The system keeps pages that are mapped or not yet written, and may keep all.
int drop_cache(Call& call) {
  const auto path = call.arg<std::string>(1);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse(path, std::error_code(errno, std::generic_category()));
  const int failed = ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
  return call.push(failed == 0);
}

// What a shell would make of it, in order of the names; nothing where nothing matches.
int glob(Call& call) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(call.arg<std::string>(1).c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());
  return call.push(paths);
}

int real(Call& call) {
  std::error_code none;
  const auto path = std::filesystem::canonical(call.arg<std::string>(1), none);
  return none ? 0 : call.push(path.string());
}

int find(Call& call) {
  const std::string found = find_file(call.arg<std::string>(1));
  if (found.empty()) return 0;
  return call.push(found);
}
}  // namespace

void register_fs(lua_State* L) {
  using lua::fn;
  lua::functions(L, "fs", {{"read", fn<read>},           {"write", fn<write>},
                           {"append", fn<append>},       {"kind", fn<kind>},
                           {"list", fn<list>},           {"mkdir", fn<mkdir>},
                           {"remove", fn<remove>},       {"copy", fn<copy>},
                           {"link", fn<link>},           {"replace_dir", fn<replace_dir>},
                           {"write_dir", fn<write_dir>}, {"join", fn<join>},
                           {"same", fn<same>},           {"holder", fn<holder>},
                           {"hold", fn<hold>},           {"glob", fn<glob>},
                           {"sweep", fn<sweep>},         {"drop_cache", fn<drop_cache>},
                           {"real", fn<real>},           {"find", fn<find>}});
}

}  // namespace qeng
