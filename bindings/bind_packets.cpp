// q.ndp: packet datasets, written and read. Their batches are bind_batches.cpp.
#include "bindings/json.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/packets/packet_file.h"
#include "engine/packets/packet_writer.h"

QENG_LUA_CLASS(qeng::PacketWriter, "PacketWriter")
QENG_LUA_CLASS(const qeng::PacketFile, "PacketFile")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
using lua::set_field;

// ---------------------------------------------------------------- writing

int create(Call& call) {
  const auto path = call.arg<std::string>(1);
  Options opt(call, 2, {"meta"});
  auto meta = nlohmann::json::object();
  if (opt.has("meta")) {
    opt.push("meta");
    meta = nlohmann::json::parse(json_text(call.L, lua_gettop(call.L)));
    if (!meta.is_object()) fail("value", "bad option 'meta' of 'ndp.create': a table with string keys expected");
  }
  return call.push(std::make_shared<PacketWriter>(path, std::move(meta)));
}

// A mask of booleans or of 0 and 1.
std::vector<uint8_t> read_mask(const Call& call, int argument) {
  if (!call.has(argument)) return {};
  lua_State* L = call.L;
  const int list = call.index(argument);
  if (!lua_istable(L, list)) call.bad_argument(argument, "table expected, got " + lua::type_text(L, list));
  std::vector<uint8_t> mask(lua_objlen(L, list));
  for (size_t i = 0; i < mask.size(); ++i) {
    lua_rawgeti(L, list, static_cast<int>(i) + 1);
    const bool one = lua_isnumber(L, -1) && lua_tonumber(L, -1) == 1,
               zero = lua_isnumber(L, -1) && lua_tonumber(L, -1) == 0;
    if (!lua_isboolean(L, -1) && !one && !zero) {
      call.bad_argument(
          argument, "element " + std::to_string(i + 1) + ": boolean, 0 or 1 expected, got " + lua::type_text(L, -1));
    }
    mask[i] = one || (!zero && lua_toboolean(L, -1));
    lua_pop(L, 1);
  }
  return mask;
}

int add(Call& call) {
  const auto self = call.self<PacketWriter>();
  const auto tokens = call.arg<std::vector<int32_t>>(1);
  const std::vector<uint8_t> mask = read_mask(call, 2);
  if (call.has(2) && mask.size() != tokens.size()) {
    call.bad_argument(2, "the mask has " + std::to_string(mask.size()) + " elements for " +
                             std::to_string(tokens.size()) + " tokens");
  }
  Options opt(call, 3, {"src", "dst"});
  self->add(tokens, mask, opt.get("src", packet_source::text_corpus), opt.get("dst", packet_destination::all));
  return 0;
}
int finish(Call& call) { return call.self<PacketWriter>()->finish(), 0; }
int abandon(Call& call) { return call.self<PacketWriter>()->abandon(), 0; }

// ---------------------------------------------------------------- reading

int open(Call& call) { return call.push(PacketFile::open(call.arg<std::string>(1))); }
int records(Call& call) { return call.push(call.self<const PacketFile>()->records()); }

int info(Call& call) {
  const RecordInfo record = call.self<const PacketFile>()->info(call.arg<uint64_t>(1));
  lua_newtable(call.L);
  set_field(call.L, "tokens", record.tokens);
  set_field(call.L, "loss_tokens", record.loss_tokens);
  set_field(call.L, "src", record.src);
  set_field(call.L, "dst", record.dst);
  set_field(call.L, "frames", record.frames);
  return 1;
}

int read(Call& call) {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  if (!call.self<const PacketFile>()->read(call.arg<uint64_t>(1), tokens, mask)) return 0;
  if (mask.empty()) mask.assign(tokens.size(), 1);
  return call.push(tokens, mask);
}

int meta(Call& call) {
  push_json(call.L, call.self<const PacketFile>()->meta().dump());
  return 1;
}

int verify(Call& call) {
  const PacketReport report = call.self<const PacketFile>()->verify();
  lua_newtable(call.L);
  set_field(call.L, "ok", report.ok());
  set_field(call.L, "damaged", report.first_bad_records);
  set_field(call.L, "records", report.records);
  set_field(call.L, "bad_records", report.bad_records);
  set_field(call.L, "blocks", report.blocks);
  set_field(call.L, "bad_blocks", report.bad_blocks);
  return 1;
}

}  // namespace

void register_packets(lua_State* L) {
  using lua::fn;
  lua::functions(L, "ndp", {{"create", fn<create>}, {"open", fn<open>}});
  lua::methods<PacketWriter>(L, {{"add", fn<add>}, {"finish", fn<finish>}, {"abandon", fn<abandon>}});
  lua::methods<const PacketFile>(L, {{"records", fn<records>},
                                     {"info", fn<info>},
                                     {"read", fn<read>},
                                     {"meta", fn<meta>},
                                     {"verify", fn<verify>}});
}

}  // namespace qeng
