// q.blocks: files as blocks that are verified one by one, on their way between peers.
#include "bindings/interrupt.h"
#include "bindings/peer_frame.h"
#include "bindings/register.h"
#include "engine/blocks/partial_file.h"
#include "engine/hub/cache.h"

QENG_LUA_CLASS(qeng::Manifest, "Manifest")
QENG_LUA_CLASS(qeng::PartialFile, "PartialFile")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
using lua::set_field;

// Calls the Lua function of an option, and ends the reading at Ctrl-C.
BlockWatch watch(const Call& call, const Options& opt) {
  const lua::Ref function = opt.get("watch", lua::Ref());
  return [function, L = call.L](uint64_t done, uint64_t total) {
    if (interrupt_waiting()) {
      take_interrupt(L);
      fail("interrupted", "interrupted by ", interrupt_name());
    }
    if (function) function.call(done, total);
  };
}

int manifest(Call& call) {
  const Options opt(call, 2, {"cache", "watch"});
  return call.push(std::make_shared<Manifest>(
      manifest_of(call.arg<std::string>(1), opt.get("cache", std::string()), watch(call, opt))));
}

int read_manifest(Call& call) {
  return call.push(std::make_shared<Manifest>(parse_manifest(call.arg<std::string>(1), call.arg<std::string>(2))));
}

int hash(Call& call) { return call.push(call.self<Manifest>()->hash); }
int size(Call& call) { return call.push(call.self<Manifest>()->size); }
int count(Call& call) { return call.push(call.self<Manifest>()->blocks.size()); }
int text(Call& call) { return call.push(call.self<Manifest>()->text()); }

int block(Call& call) {
  std::shared_ptr<PeerData> data;
  read_block(call.arg<std::string>(1), call.arg<uint64_t>(2), [&](size_t size) {
    data = PeerData::of(size);
    return reinterpret_cast<char*>(data->bytes.get());
  });
  return call.push(std::make_shared<HeldFrame>(HeldFrame{std::move(data)}));
}

int folder(Call& call) {
  const auto paths = call.arg<std::vector<std::string>>(1);
  const auto manifests = call.arg<std::vector<std::shared_ptr<Manifest>>>(2);
  if (paths.size() != manifests.size())
    call.bad_argument(2, "as many manifests as paths expected, got " + std::to_string(manifests.size()));
  std::vector<ListedFile> files;
  for (size_t i = 0; i < paths.size(); ++i) files.push_back({paths[i], manifests[i]->hash, manifests[i]->size});
  const std::string text = folder_text(std::move(files));
  return call.push(text, hex(sha256(text)));
}

int read_folder(Call& call) {
  lua_newtable(call.L);
  int i = 0;
  for (const ListedFile& file : parse_folder(call.arg<std::string>(1), call.arg<std::string>(2))) {
    lua_newtable(call.L);
    set_field(call.L, "path", file.path);
    set_field(call.L, "hash", file.hash);
    set_field(call.L, "size", file.size);
    lua_rawseti(call.L, -2, ++i);
  }
  return 1;
}

int check_path(Call& call) {
  check_listed_path(call.arg<std::string>(1));
  return 0;
}

int room(Call& call) { return call.push(free_bytes(call.arg<std::string>(1))); }

int partial(Call& call) {
  const Options opt(call, 3, {"verify", "watch"});
  return call.push(std::make_shared<PartialFile>(call.arg<std::string>(1), *call.arg<std::shared_ptr<Manifest>>(2),
                                                 opt.get("verify", false), watch(call, opt)));
}

int put(Call& call) {
  const auto bytes = call.arg<std::shared_ptr<HeldFrame>>(2)->bytes(call.name);
  return call.push(call.self<PartialFile>()->put(call.arg<uint64_t>(1),
                                                 {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

int missing(Call& call) {
  const auto file = call.self<PartialFile>();
  const uint64_t size = file->manifest().size;
  return call.push(file->missing(call.arg<uint64_t>(1, 0), call.arg<uint64_t>(2, size > 0 ? size - 1 : 0)));
}

int has(Call& call) { return call.push(call.self<PartialFile>()->has(call.arg<uint64_t>(1))); }
int here(Call& call) { return call.push(call.self<PartialFile>()->here()); }
int complete(Call& call) { return call.push(call.self<PartialFile>()->complete()); }
int path(Call& call) { return call.push(call.self<PartialFile>()->path()); }

int sync(Call& call) {
  call.self<PartialFile>()->sync();
  return 0;
}

int close(Call& call) {
  call.self<PartialFile>()->close();
  return 0;
}

int finish(Call& call) {
  call.self<PartialFile>()->finish(call.arg<std::string>(1));
  return 0;
}
}  // namespace

void register_blocks(lua_State* L) {
  using lua::fn;
  lua::functions(L, "blocks",
                 {{"manifest", fn<manifest>},
                  {"read_manifest", fn<read_manifest>},
                  {"block", fn<block>},
                  {"folder", fn<folder>},
                  {"read_folder", fn<read_folder>},
                  {"check_path", fn<check_path>},
                  {"room", fn<room>},
                  {"partial", fn<partial>}});
  lua::methods<Manifest>(L, {{"hash", fn<hash>}, {"size", fn<size>}, {"count", fn<count>}, {"text", fn<text>}});
  lua::methods<PartialFile>(L, {{"put", fn<put>},
                                {"missing", fn<missing>},
                                {"has", fn<has>},
                                {"here", fn<here>},
                                {"complete", fn<complete>},
                                {"sync", fn<sync>},
                                {"close", fn<close>},
                                {"finish", fn<finish>},
                                {"path", fn<path>}});
}

}  // namespace qeng
