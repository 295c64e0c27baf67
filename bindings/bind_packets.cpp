// q.ndp: packet datasets and bare frames, written and read. Their batches are bind_batches.cpp.
#include "bindings/json.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/blocks/arriving_file.h"
#include "engine/packets/frame_writer.h"
#include "engine/packets/packet_file.h"
#include "engine/packets/packet_writer.h"
#include "engine/packets/payload.h"
#include "engine/packets/scanner.h"

QENG_LUA_CLASS(qeng::PacketWriter, "PacketWriter")
QENG_LUA_CLASS(const qeng::PacketFile, "PacketFile")
QENG_LUA_CLASS(qeng::FrameWriter, "FrameWriter")
QENG_LUA_CLASS(qeng::RecordScanner, "RecordScanner")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
using lua::set_field;

// ---------------------------------------------------------------- writing

CrcVariant crc_option(const Options& opt) {
  const auto name = opt.get<std::string>("crc", "ccitt");
  if (name != "ccitt" && name != "xmodem") fail("value", "bad option 'crc': ", name, " is none of ccitt, xmodem");
  return name == "xmodem" ? CrcVariant::xmodem : CrcVariant::ccitt_false;
}

int create(Call& call) {
  const auto path = call.arg<std::string>(1);
  Options opt(call, 2, {"meta", "crc"});
  auto meta = nlohmann::json::object();
  if (opt.has("meta")) {
    opt.push("meta");
    meta = nlohmann::json::parse(json_text(call.L, lua_gettop(call.L)));
    if (!meta.is_object()) fail("value", "bad option 'meta' of 'ndp.create': a table with string keys expected");
  }
  return call.push(std::make_shared<PacketWriter>(path, std::move(meta), crc_option(opt)));
}

int frame_writer(Call& call) {
  const auto path = call.arg<std::string>(1);
  Options opt(call, 2, {"crc"});
  return call.push(std::make_shared<FrameWriter>(path, crc_option(opt)));
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

template <class Writer>
int add(Call& call) {
  const auto self = call.self<Writer>();
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

// The bytes of a payload: a string, any value as JSON, or numbers from a list or a tensor.
std::vector<uint8_t> payload_bytes(const Call& call, FrameType type, int argument) {
  const auto bytes = [](const std::string& text) { return std::vector<uint8_t>(text.begin(), text.end()); };
  if (type == FrameType::utf8) return bytes(call.arg<std::string>(argument));
  if (type == FrameType::meta) return bytes(json_text(call.L, call.index(argument)));
  if (lua_istable(call.L, call.index(argument))) return pack_values(type, call.arg<std::vector<double>>(argument));
  return pack_values(type, to_host(*call.arg<TensorPtr>(argument)));
}

template <class Writer>
int payload(Call& call) {
  const auto self = call.self<Writer>();
  const auto name = call.arg<std::string>(1);
  const auto type = payload_type_from_name(name);
  if (!type) call.bad_argument(1, name + " is none of " + payload_type_names());
  Options opt(call, 3, {"src", "dst"});
  self->payload(*type, payload_bytes(call, *type, 2), opt.get("src", packet_source::text_corpus),
                opt.get("dst", packet_destination::all));
  return 0;
}

template <class Writer>
int copy(Call& call) {
  const auto self = call.self<Writer>();
  return call.push(self->copy(*call.arg<std::shared_ptr<const PacketFile>>(1), call.arg<uint64_t>(2)));
}
template <class Writer>
int finish(Call& call) {
  return call.self<Writer>()->finish(), 0;
}
template <class Writer>
int abandon(Call& call) {
  return call.self<Writer>()->abandon(), 0;
}

// ---------------------------------------------------------------- reading

int open(Call& call) {
  const auto path = call.arg<std::string>(1);
  return call.push(PacketFile::open(path, arriving_file(path)));
}
int records(Call& call) { return call.push(call.self<const PacketFile>()->records()); }

int totals(Call& call) {
  const auto self = call.self<const PacketFile>();
  lua_newtable(call.L);
  set_field(call.L, "records", self->records());
  set_field(call.L, "payloads", self->payloads());
  set_field(call.L, "frames", self->frames());
  set_field(call.L, "tokens", self->tokens());
  set_field(call.L, "loss_tokens", self->loss_tokens());
  set_field(call.L, "bytes", self->frames_bytes());
  return 1;
}

int info(Call& call) {
  const auto self = call.self<const PacketFile>();
  const RecordInfo record = self->info(call.arg<uint64_t>(1));
  const auto type = self->type(call.arg<uint64_t>(1));
  lua_newtable(call.L);
  set_field(call.L, "type", type ? frame_type_name(*type) : "damaged");
  set_field(call.L, "tokens", record.tokens);
  set_field(call.L, "loss_tokens", record.loss_tokens);
  set_field(call.L, "src", record.src);
  set_field(call.L, "dst", record.dst);
  set_field(call.L, "frames", record.frames);
  set_field(call.L, "bytes", self->bytes(call.arg<uint64_t>(1)));
  return 1;
}

int expect(Call& call) {
  call.self<const PacketFile>()->expect(call.arg<uint64_t>(1), true);
  return 0;
}

// Pushes a payload as Lua has it.
void push_payload(lua_State* L, FrameType type, const std::vector<uint8_t>& bytes, bool tensor) {
  const std::string text(bytes.begin(), bytes.end());
  if (type == FrameType::utf8) return lua::Value<std::string>::push(L, text);
  if (type == FrameType::meta) return push_json(L, text);
  const std::vector<double> values = unpack_values(type, bytes);
  if (!tensor) return lua::Value<std::vector<double>>::push(L, values);
  const DType dtype = type == FrameType::float32    ? DType::f32
                      : type == FrameType::float16  ? DType::f16
                      : type == FrameType::bfloat16 ? DType::bf16
                                                    : DType::i32;
  lua::Value<TensorPtr>::push(L, make_constant(device(), {static_cast<int64_t>(values.size())}, dtype, values));
}

int read_payload(Call& call) {
  const auto self = call.self<const PacketFile>();
  Options opt(call, 2, {"tensor"});
  const bool tensor = opt.get("tensor", false);
  FrameType type;
  std::vector<uint8_t> bytes;
  if (!self->read_payload(call.arg<uint64_t>(1), type, bytes)) return 0;
  push_payload(call.L, type, bytes, tensor);
  return 1 + call.push(frame_type_name(type));
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

int crc(Call& call) {
  return call.push(call.self<const PacketFile>()->variant() == CrcVariant::xmodem ? "xmodem" : "ccitt");
}

// {[0x03] = 2, ...} as a field of the table on top.
void set_sources(lua_State* L, const FrameErrors& errors) {
  lua_newtable(L);
  for (int src = 0; src < 256; ++src) {
    if (errors.by_source[static_cast<size_t>(src)] == 0) continue;
    lua::Value<uint64_t>::push(L, errors.by_source[static_cast<size_t>(src)]);
    lua_rawseti(L, -2, src);
  }
  lua_setfield(L, -2, "by_source");
}

int errors(Call& call) {
  const FrameErrors found = call.self<const PacketFile>()->errors();
  lua_newtable(call.L);
  set_field(call.L, "total", found.total);
  set_sources(call.L, found);
  return 1;
}

int verify(Call& call) {
  const auto self = call.self<const PacketFile>();
  Options opt(call, 1, {"progress", "first", "blocks"});
  std::function<void(uint64_t)> progress;
  if (opt.has("progress")) {
    const auto told = opt.get<lua::Ref>("progress");
    progress = [told, self](uint64_t done) { told.call(done, self->frames_bytes()); };
  }
  const PacketReport report =
      self->verify(progress, opt.get<uint64_t>("first", 0), opt.get<uint64_t>("blocks", UINT64_MAX));
  lua_State* L = call.L;
  lua_newtable(L);
  set_field(L, "ok", report.ok());
  set_field(L, "records", report.records);
  set_field(L, "bad_records", report.bad_records);
  set_field(L, "blocks", report.blocks);
  set_field(L, "bad_blocks", report.bad_blocks);
  set_field(L, "bytes", self->frames_bytes());
  set_field(L, "block_offsets", report.bad_offsets);
  set_sources(L, report.errors);
  lua_createtable(L, static_cast<int>(report.damage.size()), 0);
  for (size_t i = 0; i < report.damage.size(); ++i) {
    lua_newtable(L);
    set_field(L, "record", report.damage[i].record);
    set_field(L, "offset", report.damage[i].offset);
    set_field(L, "src", report.damage[i].src);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  lua_setfield(L, -2, "damaged");
  return 1;
}

// ---------------------------------------------------------------- bare frames

int scan(Call& call) {
  const auto path = call.arg<std::string>(1);
  Options opt(call, 2, {"crc"});
  return call.push(std::make_shared<RecordScanner>(ByteSource::open(path), crc_option(opt)));
}

int scanner_next(Call& call) {
  const auto self = call.self<RecordScanner>();
  Record record;
  if (!self->next(record)) return 0;
  lua_newtable(call.L);
  set_field(call.L, "type", frame_type_name(record.type));
  set_field(call.L, "src", record.src);
  set_field(call.L, "dst", record.dst);
  if (record.type != FrameType::token_ids) {
    push_payload(call.L, record.type, record.payload, false);
    lua_setfield(call.L, -2, "payload");
    return 1;
  }
  set_field(call.L, "tokens", record.tokens);
  if (!record.mask.empty()) set_field(call.L, "mask", record.mask);
  return 1;
}

int scanner_errors(Call& call) {
  const auto self = call.self<RecordScanner>();
  lua_newtable(call.L);
  set_field(call.L, "total", self->errors().total);
  set_field(call.L, "lost", self->lost());
  set_field(call.L, "skipped_bytes", self->skipped_bytes());
  set_sources(call.L, self->errors());
  return 1;
}

}  // namespace

void register_packets(lua_State* L) {
  using lua::fn;
  lua::functions(L, "ndp",
                 {{"create", fn<create>}, {"open", fn<open>}, {"frame_writer", fn<frame_writer>}, {"scan", fn<scan>}});
  lua::methods<PacketWriter>(L, {{"add", fn<add<PacketWriter>>},
                                 {"payload", fn<payload<PacketWriter>>},
                                 {"copy", fn<copy<PacketWriter>>},
                                 {"finish", fn<finish<PacketWriter>>},
                                 {"abandon", fn<abandon<PacketWriter>>}});
  lua::methods<FrameWriter>(L, {{"add", fn<add<FrameWriter>>},
                                {"payload", fn<payload<FrameWriter>>},
                                {"copy", fn<copy<FrameWriter>>},
                                {"finish", fn<finish<FrameWriter>>},
                                {"abandon", fn<abandon<FrameWriter>>}});
  lua::methods<const PacketFile>(L, {{"records", fn<records>},
                                     {"totals", fn<totals>},
                                     {"expect", fn<expect>},
                                     {"info", fn<info>},
                                     {"read", fn<read>},
                                     {"payload", fn<read_payload>},
                                     {"meta", fn<meta>},
                                     {"crc", fn<crc>},
                                     {"errors", fn<errors>},
                                     {"verify", fn<verify>}});
  lua::methods<RecordScanner>(L, {{"next", fn<scanner_next>}, {"errors", fn<scanner_errors>}});
}

}  // namespace qeng
