// PacketFile:statistics: one pass over a dataset with all cores.
#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/packets/batches.h"
#include "engine/packets/statistics.h"

QENG_LUA_CLASS(const qeng::PacketFile, "PacketFile")
QENG_LUA_CLASS(qeng::Batch, "Batch")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
using lua::set_field;

void push_counts(lua_State* L, const SourceStatistics& counts) {
  lua_newtable(L);
  set_field(L, "records", counts.records);
  set_field(L, "damaged", counts.damaged);
  set_field(L, "tokens", counts.tokens);
  set_field(L, "trained", counts.trained);
  set_field(L, "untrained", counts.untrained);
  set_field(L, "answers", counts.answers);
  set_field(L, "empty_answers", counts.empty_answers);
  set_field(L, "truncated", counts.truncated);
  set_field(L, "duplicates", counts.duplicates);
  set_field(L, "duplicate_tokens", counts.duplicate_tokens);
  set_field(L, "shortest", counts.longest < counts.shortest ? 0 : counts.shortest);
  set_field(L, "longest", counts.longest);
}

// {{length, records}...}, by length
void push_lengths(lua_State* L, const std::map<uint32_t, uint64_t>& lengths) {
  lua_createtable(L, static_cast<int>(lengths.size()), 0);
  int i = 0;
  for (const auto& [length, records] : lengths) {
    lua::Value<std::vector<uint64_t>>::push(L, {length, records});
    lua_rawseti(L, -2, ++i);
  }
}

int statistics(Call& call) {
  const auto self = call.self<const PacketFile>();
  Options opt(call, 1, {"ends", "threads"});
  const PacketStatistics found =
      packet_statistics(*self, {opt.get<std::vector<int32_t>>("ends", {}), opt.get("threads", 0)});
  lua_State* L = call.L;
  push_counts(L, found.total);
  set_field(L, "highest_token", found.highest_token);
  lua_newtable(L);
  for (const auto& [source, counts] : found.sources) {
    push_counts(L, counts);
    lua_rawseti(L, -2, source);
  }
  lua_setfield(L, -2, "sources");
  push_lengths(L, found.lengths);
  lua_setfield(L, -2, "lengths");
  push_lengths(L, found.trained_lengths);
  lua_setfield(L, -2, "trained_lengths");
  lua_newtable(L);
  int i = 0;
  for (const DuplicateGroup& group : found.groups) {
    lua_newtable(L);
    set_field(L, "records", group.records);
    set_field(L, "first", group.first);
    set_field(L, "tokens", group.tokens);
    lua_rawseti(L, -2, ++i);
  }
  lua_setfield(L, -2, "groups");
  return 1;
}

int documents(Call& call) {
  const auto self = call.self<Batch>();
  lua_State* L = call.L;
  lua_createtable(L, static_cast<int>(self->segments.size()), 0);
  int i = 0;
  for (const Segment& segment : self->segments) {
    lua_newtable(L);
    set_field(L, "record", segment.piece.record);
    set_field(L, "begin", segment.piece.begin);
    set_field(L, "tokens", segment.piece.tokens);
    set_field(L, "slot", segment.slot);
    lua_rawseti(L, -2, ++i);
  }
  return 1;
}
}  // namespace

void register_statistics(lua_State* L) {
  lua::methods<const PacketFile>(L, {{"statistics", lua::fn<statistics>}});
  lua::methods<Batch>(L, {{"documents", lua::fn<documents>}});
}

}  // namespace qeng
