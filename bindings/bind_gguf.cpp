// q.gguf: opening a file as GGUF, and writing one.
#include <cerrno>
#include <cstdlib>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "bindings/weights_class.h"
#include "engine/formats/gguf.h"
#include "engine/formats/gguf_rows.h"
#include "kernels/parallel.h"

QENG_LUA_CLASS(qeng::GgufWriter, "GgufWriter")

namespace qeng {

template <>
struct lua::Value<GgufSpec> {
  static GgufSpec read(lua_State* L, int index) {
    if (!lua_istable(L, index)) expected(L, index, "{name=, dtype=, shape=}");
    const int top = lua_gettop(L);
    for (const char* field : {"name", "dtype", "shape"}) lua_getfield(L, index, field);
    GgufSpec spec{Value<std::string>::read(L, top + 1), Value<DType>::read(L, top + 2), Value<Shape>::read(L, top + 3)};
    lua_settop(L, top);
    return spec;
  }
};

namespace {
using lua::Call;
using lua::Options;

int open(Call& call) { return call.push(std::make_shared<Weights>(Gguf::open(call.arg<std::string>(1)))); }

GgufMetadata::Scalar read_scalar(lua_State* L, int index, const std::string& key, MetadataType type) {
  switch (lua_type(L, index)) {
    case LUA_TBOOLEAN: return lua_toboolean(L, index) != 0;
    case LUA_TNUMBER: return static_cast<double>(lua_tonumber(L, index));
    case LUA_TSTRING: break;
    default: fail("value", "GGUF entry ", key, ": a ", lua::type_text(L, index), " is no value of it");
  }
  const auto text = lua::Value<std::string>::read(L, index);
  if (type != MetadataType::u64 && type != MetadataType::i64) return text;
  const bool negative = text.starts_with('-');  // what push_value wrote
  char* end = nullptr;
  errno = 0;
  const unsigned long long whole = negative ? 0 : std::strtoull(text.c_str(), &end, 10);
  const long long below = negative ? std::strtoll(text.c_str(), &end, 10) : 0;
  if (text.empty() || *end || errno) fail("value", "GGUF entry ", key, ": \"", text, "\" is not a 64-bit integer");
  if (negative) return int64_t{below};
  return uint64_t{whole};
}

// {{key, "u32", value}, {key, "[string]", {...}}, ...}
GgufMetadata read_metadata(const Call& call, int argument) {
  lua_State* L = call.L;
  const int list = call.index(argument);
  if (!lua_istable(L, list)) call.bad_argument(argument, "table of {key, type, value} expected");
  GgufMetadata entries;
  for (int i = 1, n = static_cast<int>(lua_objlen(L, list)); i <= n; ++i) {
    const int base = lua_gettop(L);
    lua_rawgeti(L, list, i);
    if (!lua_istable(L, -1)) call.bad_argument(argument, "element " + std::to_string(i) + " is not {key, type, value}");
    for (int k = 1; k <= 3; ++k) lua_rawgeti(L, base + 1, k);
    if (lua_type(L, base + 2) != LUA_TSTRING || lua_type(L, base + 3) != LUA_TSTRING)
      call.bad_argument(argument, "element " + std::to_string(i) + " is not {key, type, value}");
    const auto key = lua::Value<std::string>::read(L, base + 2);
    auto name = lua::Value<std::string>::read(L, base + 3);
    const bool is_array = name.size() > 2 && name.front() == '[' && name.back() == ']';
    if (is_array) name = name.substr(1, name.size() - 2);
    const std::optional<MetadataType> type = metadata_type_from_name(name);
    if (!type)
      fail("value", "GGUF entry ", key, ": there is no type ", name, "; there are u8 to i64, f32, f64, bool, string");
    if (!is_array) {
      entries.add(key, *type, read_scalar(L, base + 4, key, *type));
    } else {
      if (!lua_istable(L, base + 4)) fail("value", "GGUF entry ", key, ": expected a list of values");
      std::vector<GgufMetadata::Scalar> values;
      for (int k = 1, count = static_cast<int>(lua_objlen(L, base + 4)); k <= count; ++k) {
        lua_rawgeti(L, base + 4, k);
        values.push_back(read_scalar(L, -1, key, *type));
        lua_pop(L, 1);
      }
      entries.add(key, *type, values);
    }
    lua_settop(L, base);
  }
  return entries;
}

void write_tensor(GgufWriter& writer, const std::string& name, const Tensor& source, int64_t heads) {
  const View& view = source.view;
  std::vector<std::byte> host(view.bytes());
  read_bytes(source, host.data());
  if (heads) {
    View on_host = view;
    on_host.data = host.data(), on_host.interleaved = false;
    std::vector<std::byte> ordered(host.size());
    rows_to_pairs(on_host, heads, ordered.data());
    host.swap(ordered);
  }
  writer.write(name, host.data(), host.size());
}

// q.gguf.writer(path, {{name=, dtype=, shape=}...}, metadata)
int writer(Call& call) {
  const auto path = call.arg<std::string>(1);
  auto specs = call.arg<std::vector<GgufSpec>>(2);
  const auto part_bytes = Options(call, 4, {"part_bytes"}).get<size_t>("part_bytes", 0);
  return call.push(std::make_shared<GgufWriter>(path, std::move(specs), read_metadata(call, 3), part_bytes));
}

int write(Call& call) {
  const auto self = call.self<GgufWriter>();
  const auto name = call.arg<std::string>(1);
  const auto source = call.arg<TensorPtr>(2);
  write_tensor(*self, name, *source, Options(call, 3, {"heads"}).get<int64_t>("heads", 0));
  return call.push(source->view.bytes());
}

int commit(Call& call) {
  const auto self = call.self<GgufWriter>();
  self->commit();
  return call.push(self->paths());
}

// q.gguf.save(path, {{name, Tensor}...}, metadata)
int save(Call& call) {
  const auto path = call.arg<std::string>(1);
  const auto tensors = call.arg<std::vector<NamedTensor>>(2);
  std::vector<GgufSpec> specs;
  for (const NamedTensor& named : tensors) {
    const View& view = named.tensor->view;
    specs.push_back({named.name, view.dtype, Shape(view.shape, view.shape + view.rank)});
  }
  GgufWriter out(path, specs, read_metadata(call, 3));
  for (const NamedTensor& named : tensors) write_tensor(out, named.name, *named.tensor, 0);
  out.commit();
  return 0;
}
}  // namespace

void register_gguf(lua_State* L) {
  using lua::fn;
  lua::functions(L, "gguf", {{"open", fn<open>}, {"save", fn<save>}, {"writer", fn<writer>}});
  lua::methods<GgufWriter>(L, {{"write", fn<write>}, {"commit", fn<commit>}});
}

}  // namespace qeng
