// q.ndp.convert: text data to packet datasets, in threads of their own.
#include "bindings/interrupt.h"
#include "bindings/json.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "bindings/state.h"
#include "engine/convert/convert.h"
#include "engine/convert/open_input.h"
#include "engine/convert/worker.h"
#include "engine/formats/atomic_file.h"
#include "engine/formats/input_source.h"

QENG_LUA_CLASS(const qeng::Tokenizer, "Tokenizer")
QENG_LUA_CLASS(qeng::Conversion, "Conversion")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
using lua::set_field;

// The general way of rendering: chat.lua in a Lua state of the worker's own.
class LuaRenderer final : public RecordRenderer {
 public:
  LuaRenderer(std::shared_ptr<const Tokenizer> tokenizer, const std::string& options) {
    lua::background_thread();
    lua_State* L = state_;
    lua_getglobal(L, "require");
    lua_pushstring(L, "qeng.chat");
    run(1, 1);
    lua_getfield(L, -1, "renderer");
    lua::Value<std::shared_ptr<const Tokenizer>>::push(L, tokenizer);
    push_json(L, options);
    run(2, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "qeng.renderer");
    lua_settop(L, 0);
  }

  void render(std::string_view json, std::vector<RenderPiece>& pieces) override {
    lua_State* L = state_;
    lua_settop(L, 0);
    lua_getfield(L, LUA_REGISTRYINDEX, "qeng.renderer");
    lua_pushlstring(L, json.data(), json.size());
    run(1, 1);
    const size_t count = lua_objlen(L, 1);
    for (size_t i = 1; i <= count; ++i) {
      lua_rawgeti(L, 1, static_cast<int>(i));
      RenderPiece& piece = pieces.emplace_back();
      size_t size = 0;
      lua_getfield(L, 2, "text");
      if (const char* text = lua_tolstring(L, -1, &size)) piece.text.assign(text, size);
      lua_getfield(L, 2, "id");
      if (lua_isnumber(L, -1)) piece.id = static_cast<int32_t>(lua_tonumber(L, -1));
      lua_getfield(L, 2, "target");
      piece.target = lua_toboolean(L, -1) != 0;
      lua_getfield(L, 2, "special");
      piece.special = lua_toboolean(L, -1) != 0;
      lua_settop(L, 1);
    }
  }

 private:
  // Errors leave this thread, so they must not hold on to its Lua state.
  void run(int arguments, int results) {
    if (protected_call(state_, arguments, results)) return;
    std::string code;
    {
      const lua::LuaError error(state_);
      code = error.code;
      message_ = error.what();
    }
    throw Error(code, message_);
  }
  LuaState state_;
  std::string message_;
};

template <class T>
T choice(const Options& opt, const char* key, T fallback, std::initializer_list<std::pair<const char*, T>> values) {
  if (!opt.has(key)) return fallback;
  const auto word = opt.get<std::string>(key);
  std::string known;
  for (const auto& [name, value] : values) {
    if (word == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  fail("value", "bad option '", key, "' of 'ndp.convert': ", word, " is none of ", known);
}

std::string json_option(const Call& call, const Options& opt, const char* key) {
  opt.push(key);
  const std::string text = lua_isnil(call.L, -1) ? "{}" : json_text(call.L, lua_gettop(call.L));
  lua_pop(call.L, 1);
  return text;
}

// The formats' names, and the endings of files' names: of text, and of what else is read.
int formats(Call& call) {
  std::vector<std::string> names, endings;
  for (const DataFormat* format : data_formats()) {
    names.push_back(format->is.name);
    endings.insert(endings.end(), format->is.endings.begin(), format->is.endings.end());
  }
  for (const SourceFormat* format : source_formats())
    endings.insert(endings.end(), format->endings.begin(), format->endings.end());
  return call.push(names, endings);
}

int unpack(Call& call) {
  const auto from = open_input(call.arg<std::string>(1));
  AtomicFile to(call.arg<std::string>(2));
  std::vector<char> buffer(1 << 16);
  while (const size_t bytes = from->read(buffer.data(), buffer.size())) {
    to.write(buffer.data(), bytes);
    if (!interrupt_waiting()) continue;
    take_interrupt(call.L);
    fail("interrupted", "interrupted by ", interrupt_name());
  }
  to.commit();
  return 0;
}

int convert(Call& call) {
  const Options opt(call, 1,
                    {"inputs",  "output",       "tokenizer",    "format",      "documents", "chatml",  "system",
                     "turns",   "renderer",     "max_tokens",   "long",        "dedupe",    "max_bad", "max_record",
                     "source",  "source_field", "source_names", "destination", "meta",      "resume",  "checkpoint",
                     "threads", "special",      "text_begin",   "text_end"});
  ConvertOptions options;
  options.inputs = opt.get<std::vector<std::string>>("inputs");
  options.output = opt.get<std::string>("output");
  options.tokenizer = opt.get<std::shared_ptr<const Tokenizer>>("tokenizer");
  if (const auto format = opt.get<std::string>("format", "auto"); format != "auto")
    options.format = &data_format(format);
  options.documents =
      choice(opt, "documents", DocumentUnit::paragraph,
             {{"file", DocumentUnit::file}, {"paragraph", DocumentUnit::paragraph}, {"line", DocumentUnit::line}});
  options.render.chatml = opt.get("chatml", false);
  if (opt.has("system")) options.render.default_system = opt.get<std::string>("system");
  options.render.turns = choice(opt, "turns", Turns::all, {{"all", Turns::all}, {"last", Turns::last}});
  if (opt.has("text_begin")) options.render.text_begin = opt.get<int32_t>("text_begin");
  if (opt.has("text_end")) options.render.text_end = opt.get<int32_t>("text_end");
  options.render.text_special = choice(opt, "special", true, {{"parse", true}, {"text", false}});
  const std::string renderer = json_option(call, opt, "renderer");
  options.renderer = [tokenizer = options.tokenizer, renderer] {
    return std::make_unique<LuaRenderer>(tokenizer, renderer);
  };
  options.settings = {{"renderer", nlohmann::json::parse(renderer)},
                      {"chat_template", std::hash<std::string>()(options.tokenizer->chat_template())}};
  options.max_tokens = opt.get<size_t>("max_tokens", 0);
  options.longer = choice(opt, "long", LongRecords::keep,
                          {{"keep", LongRecords::keep},
                           {"drop", LongRecords::drop},
                           {"split", LongRecords::split},
                           {"end", LongRecords::end},
                           {"truncate", LongRecords::truncate}});
  options.dedupe = opt.get("dedupe", false);
  options.max_bad = opt.get("max_bad", options.max_bad);
  options.max_record_bytes = static_cast<size_t>(opt.get("max_record", 16.0) * (1 << 20));
  options.source_names = opt.get("source_names", options.source_names);
  if (opt.has("source")) {
    const auto source = opt.get<std::string>("source");
    options.source = source_id(source, options.source_names);
    if (!options.source)
      fail("value", "source ", source, ": neither a number of 0 to 255, nor a name of the protocol or of source_names");
  }
  options.source_field = opt.get<std::string>("source_field", "");
  options.destination = opt.get<uint8_t>("destination", 0);
  options.meta = nlohmann::json::parse(json_option(call, opt, "meta"));
  options.resume = opt.get("resume", false);
  options.checkpoint_seconds = opt.get("checkpoint", options.checkpoint_seconds);
  options.threads = opt.get("threads", 0);
  return call.push(std::make_shared<Conversion>(std::move(options)));
}

int wait(Call& call) {
  const ConvertStatus status = call.self<Conversion>()->wait(call.arg<double>(1));
  lua_State* L = call.L;
  const ConvertCounts& counts = status.counts;
  lua_newtable(L);
  set_field(L, "done", status.done);
  set_field(L, "seen", counts.seen);
  set_field(L, "records", counts.records);
  set_field(L, "tokens", counts.tokens);
  set_field(L, "targets", counts.targets);
  set_field(L, "bad", counts.bad);
  set_field(L, "longer", counts.longer);
  set_field(L, "duplicates", counts.duplicates);
  set_field(L, "repaired", counts.repaired);
  set_field(L, "bytes_read", status.bytes_read);
  set_field(L, "bytes_total", status.bytes_total);
  set_field(L, "bytes_text", status.bytes_text);
  set_field(L, "bytes_skipped", status.bytes_skipped);
  set_field(L, "notes", status.notes);
  lua_newtable(L);
  for (const auto& [reason, count] : counts.bad_by_reason) set_field(L, reason.c_str(), count);
  lua_setfield(L, -2, "bad_by_reason");
  std::vector<std::string> told;
  for (const BadRecord& record : status.bad) told.push_back(record.place + ": " + record.reason);
  set_field(L, "told", told);
  return 1;
}

int stop(Call& call) { return call.self<Conversion>()->stop(), 0; }
int abandon(Call& call) { return call.self<Conversion>()->abandon(), 0; }
}  // namespace

void register_convert(lua_State* L) {
  using lua::fn;
  lua::functions(L, "ndp", {{"convert", fn<convert>}, {"formats", fn<formats>}, {"unpack", fn<unpack>}});
  lua::methods<Conversion>(L, {{"wait", fn<wait>}, {"stop", fn<stop>}, {"abandon", fn<abandon>}});
}

}  // namespace qeng
