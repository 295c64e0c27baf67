// q.hub: files of a Hugging Face-compatible hub, one at a time; scripts/qeng/hub/init.lua chooses which.
#include "bindings/interrupt.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/hub/hub.h"

QENG_LUA_CLASS(qeng::Hub, "Hub")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
using lua::set_field;

int open(Call& call) {
  Options opt(call, 1,
              {"endpoint", "token", "cache", "offline", "attempts", "backoff", "connect_timeout", "stall_timeout"});
  HubSettings settings = hub_settings();
  settings.endpoint = opt.get("endpoint", settings.endpoint);
  settings.token = opt.get("token", settings.token);
  settings.cache = opt.get("cache", settings.cache);
  settings.offline = opt.get("offline", settings.offline);
  settings.attempts = opt.get("attempts", settings.attempts);
  settings.backoff = opt.get("backoff", settings.backoff);
  settings.connect_timeout = opt.get("connect_timeout", settings.connect_timeout);
  settings.stall_timeout = opt.get("stall_timeout", settings.stall_timeout);
  return call.push(std::make_shared<Hub>(std::move(settings)));
}

int settings(Call& call) {
  const HubSettings& found = call.self<Hub>()->settings();
  lua_newtable(call.L);
  set_field(call.L, "endpoint", found.endpoint);
  set_field(call.L, "cache", found.cache);
  set_field(call.L, "offline", found.offline);
  set_field(call.L, "has_token", !found.token.empty());
  return 1;
}

RepoKind kind(const Call& call) {
  const auto word = call.arg<std::string>(1);
  if (word == "model") return RepoKind::model;
  if (word != "dataset") call.bad_argument(1, "'model' or 'dataset' expected, got '" + word + "'");
  return RepoKind::dataset;
}

// Calls the Lua function watch(done, total, note), and ends the transfer at Ctrl-C.
HubWatch watch(const Call& call, int argument) {
  const lua::Ref function = call.has(argument) ? call.arg<lua::Ref>(argument) : lua::Ref();
  return [function, L = call.L](const HubProgress& progress) {
    if (interrupt_waiting()) {
      take_interrupt(L);
      fail("interrupted", "interrupted by ", interrupt_name(),
           "; what has come is kept, and the next run goes on from there");
    }
    if (function) function.call(progress.done, progress.total, progress.note);
  };
}

int push_listing(const Call& call, const HubListing& listing) {
  lua_State* L = call.L;
  lua_newtable(L);
  set_field(L, "commit", listing.commit);
  set_field(L, "folder", listing.folder);
  lua_createtable(L, static_cast<int>(listing.files.size()), 0);
  int i = 0;
  for (const HubFile& file : listing.files) {
    lua_newtable(L);
    set_field(L, "path", file.path);
    set_field(L, "size", file.size);
    if (!file.hash.empty()) set_field(L, "hash", file.hash);
    lua_rawseti(L, -2, ++i);
  }
  lua_setfield(L, -2, "files");
  return 1;
}

int list(Call& call) {
  return push_listing(
      call, call.self<Hub>()->list(kind(call), call.arg<std::string>(2), call.arg<std::string>(3), watch(call, 4)));
}

int cached(Call& call) {
  const auto found = call.self<Hub>()->cached(kind(call), call.arg<std::string>(2), call.arg<std::string>(3));
  return found ? push_listing(call, *found) : 0;
}

int fetch(Call& call) {
  Options file(call, 4, {"path", "size", "hash"});
  bool unverified = false;
  const std::string path = call.self<Hub>()->fetch(
      kind(call), call.arg<std::string>(2), call.arg<std::string>(3),
      {file.get<std::string>("path"), file.has("size") ? std::optional(file.get<uint64_t>("size")) : std::nullopt,
       file.get<std::string>("hash", "")},
      watch(call, 5), &unverified);
  return call.push(path, !unverified);
}

int pin(Call& call) {
  call.self<Hub>()->pin(kind(call), call.arg<std::string>(2), call.arg<std::string>(3), call.arg<std::string>(4));
  return 0;
}

int room(Call& call) { return call.push(static_cast<double>(free_bytes(call.self<Hub>()->settings().cache))); }
}  // namespace

void register_hub(lua_State* L) {
  using lua::fn;
  lua::functions(L, "hub", {{"open", fn<open>}});
  lua::methods<Hub>(L, {{"settings", fn<settings>},
                        {"list", fn<list>},
                        {"cached", fn<cached>},
                        {"fetch", fn<fetch>},
                        {"pin", fn<pin>},
                        {"room", fn<room>}});
}

}  // namespace qeng
