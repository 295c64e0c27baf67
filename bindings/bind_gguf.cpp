// q.gguf: reading maps the file; a tensor is that mapping wherever type, order of rows and device allow.
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <map>

#include "bindings/loaded_file.h"
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/formats/gguf.h"
#include "engine/formats/gguf_rows.h"
#include "engine/formats/gguf_types.h"
#include "engine/quantize/nvfp4.h"
#include "engine/stream/pages.h"
#include "engine/stream/spilled_file.h"
#include "kernels/interleave.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {

// An open file or set of parts; tensors of it stay valid after close().
struct GgufFile {
  std::shared_ptr<const Gguf> file;
  // Tensors that are the file's own memory, and the dtype they lie there in: the first to be given out decides.
  std::map<std::string, DType> given = {};
  const Gguf& open() const {
    if (!file) fail("closed", "this GgufFile is closed");
    return *file;
  }
};

}  // namespace
}  // namespace qeng

QENG_LUA_CLASS(qeng::GgufFile, "GgufFile")
QENG_LUA_CLASS(qeng::GgufWriter, "GgufWriter")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

// ---------------------------------------------------------------- reading

int open(Call& call) { return call.push(std::make_shared<GgufFile>(GgufFile{Gguf::open(call.arg<std::string>(1))})); }

// Integers that a Lua number does not hold exactly become decimal text.
void push_value(lua_State* L, const GgufValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return lua_pushboolean(L, *flag);
  if (const auto* real = std::get_if<double>(&value)) return lua_pushnumber(L, *real);
  if (const auto* text = std::get_if<std::string_view>(&value)) return lua_pushlstring(L, text->data(), text->size());
  if (const auto* number = std::get_if<uint64_t>(&value)) {
    if (static_cast<double>(*number) <= lua::kMaxInteger) return lua_pushnumber(L, static_cast<double>(*number));
    return lua::Value<std::string>::push(L, std::to_string(*number));
  }
  if (const auto* number = std::get_if<int64_t>(&value)) {
    if (std::abs(static_cast<double>(*number)) <= lua::kMaxInteger)
      return lua_pushnumber(L, static_cast<double>(*number));
    return lua::Value<std::string>::push(L, std::to_string(*number));
  }
  const GgufArray& array = *std::get<std::shared_ptr<const GgufArray>>(value);
  luaL_checkstack(L, 4, "nested arrays");
  lua_createtable(L, static_cast<int>(std::min<uint64_t>(array.count, INT32_MAX)), 0);
  for (uint64_t i = 0; i < array.count; ++i) {
    push_value(L, array.at(i));
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
}

// "u32", "string", or "[string]" for an array.
std::string type_of(const GgufEntry& entry) {
  if (entry.type != GgufType::array) return gguf_type_name(entry.type);
  return std::string("[") + gguf_type_name(std::get<std::shared_ptr<const GgufArray>>(entry.value)->type) + "]";
}

int get(Call& call) {
  const auto self = call.self<GgufFile>();
  const GgufEntry* entry = self->open().find_entry(call.arg<std::string>(1));
  if (!entry) return 0;
  push_value(call.L, entry->value);
  return 1 + call.push(type_of(*entry));
}

int keys(Call& call) {
  const auto self = call.self<GgufFile>();
  std::vector<std::string> all;
  for (const GgufEntry& entry : self->open().entries()) all.push_back(entry.key);
  return call.push(all);
}

int metadata(Call& call) {
  const auto self = call.self<GgufFile>();
  lua_newtable(call.L);
  for (const GgufEntry& entry : self->open().entries()) {
    lua_pushlstring(call.L, entry.key.data(), entry.key.size());
    push_value(call.L, entry.value);
    lua_rawset(call.L, -3);
  }
  return 1;
}

int names(Call& call) {
  const auto self = call.self<GgufFile>();
  std::vector<std::string> all;
  for (const GgufTensor& tensor : self->open().tensors()) all.push_back(tensor.name);
  return call.push(all);
}

int files(Call& call) {
  const auto self = call.self<GgufFile>();
  std::vector<std::string> all;
  for (const auto& part : self->open().files()) all.push_back(part->path());
  return call.push(all);
}

int info(Call& call) {
  const auto self = call.self<GgufFile>();
  const GgufTensor* tensor = self->open().find(call.arg<std::string>(1));
  if (!tensor) return 0;
  lua_newtable(call.L);
  const bool decoded = tensor->type_id == kGgufNvfp4;
  lua::set_field(call.L, "dtype", decoded ? "nvfp4" : tensor->dtype ? std::string(dtype_name(*tensor->dtype)) : tensor->type_name);
  lua::set_field(call.L, "readable", tensor->dtype.has_value() || decoded);
  lua::set_field(call.L, "shape", tensor->shape);
  lua::set_field(call.L, "bytes", tensor->bytes);
  return 1;
}

std::string dims_text(const Shape& shape) {
  std::string text;
  for (int64_t dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

// A matrix in the host's memory that a device is to read later: as the file has it, or from a temporary file.
TensorPtr waiting_tensor(Device& target, const View& view, int64_t heads, DType wanted, const Shape& shape, const std::string& label,
                         const std::string& name, std::shared_ptr<void> file) {
  if (wanted != view.dtype)
    fail("unsupported", "weights = stream: tensor ", name, " is ", dtype_name(view.dtype), " in the file, not ", dtype_name(wanted),
         ": to a GPU weights are streamed as they are stored; give no dtype, or convert the file with recipes/quantize.lua");
  if (!heads) return adopt_tensor(target, view.data, shape, view.dtype, label, std::move(file));
  const TensorPtr ordered = make_spilled(target, shape, view.dtype, label, name);
  rows_to_halves(view, heads, static_cast<std::byte*>(ordered->view.data));
  return ordered;
}

// A tensor of NVFP4 in f16.
View decode(const GgufTensor& tensor, std::vector<f16>& values) {
  View view(nullptr, DType::f16, {});
  if (tensor.shape.size() > kMaxRank) fail("shape", "tensor ", tensor.name, " has over ", kMaxRank, " dimensions");
  for (int64_t dim : tensor.shape) view.shape[view.rank++] = dim;
  values.resize(static_cast<size_t>(view.elements()));
  decode_nvfp4(tensor.data, view.elements() / kNvfp4Elements, values.data());
  view.data = values.data();
  return view;
}

int tensor(Call& call) {
  const auto self = call.self<GgufFile>();
  const Gguf& file = self->open();
  const auto name = call.arg<std::string>(1);  // named, or g++ 13 takes the result for a reference to it
  const GgufTensor* stored = file.find(name);
  if (!stored) {
    std::vector<std::string> known;
    for (const GgufTensor& each : file.tensors()) known.push_back(each.name);
    fail("value", file.path(), ": has no tensor ", name, lua::did_you_mean(name, known));
  }
  Options opt(call, 2, {"dtype", "shape", "copy", "label", "heads", "interleave", "stream"});
  if (opt.has("shape") && opt.get<Shape>("shape") != stored->shape)
    fail("shape", file.path(), ": tensor ", name, " is ", dims_text(stored->shape), ", expected ",
         dims_text(opt.get<Shape>("shape")), ": the file contradicts its own metadata");
  std::vector<f16> decoded;
  View view = stored->type_id == kGgufNvfp4 ? decode(*stored, decoded) : file.view(name);
  const DType wanted = opt.get("dtype", view.dtype);
  const auto label = opt.get<std::string>("label", "weights");
  const auto heads = opt.get<int64_t>("heads", 0);

  Device& target = device();
  const auto found = self->given.find(name);
  if (found != self->given.end() && is_interleaved(found->second)) {
    if (heads) fail("value", file.path(), ": tensor ", name, " lies interleaved already; its rows stay in their order");
    view.dtype = found->second;
  }
  const bool interleaves = opt.get("interleave", false) && wanted == row_dtype(view.dtype) && !opt.get("copy", false) &&
                           target.backend().host_memory() && interleaved_dtype(view) != view.dtype;
  const size_t element = std::max<size_t>(dtype_size(view.dtype), 2);  // a block begins or ends with an f16
  const bool mappable =
      heads == 0 && decoded.empty() && target.backend().host_memory() && reinterpret_cast<uintptr_t>(view.data) % element == 0;
  // A matrix to be streamed lies in a file, its own or another; q.weight_stream brings it to a device that is not the host.
  const bool streams = opt.get("stream", false) && stored->shape.size() > 1;
  if (streams && !target.backend().host_memory() && !decoded.empty())
    fail("unsupported", "weights = stream: tensor ", name, " is nvfp4, which is decoded: convert the file with recipes/quantize.lua");
  if (streams && !target.backend().host_memory())
    return call.push(waiting_tensor(target, view, heads, wanted, stored->shape, label, name, std::const_pointer_cast<Gguf>(self->file)));
  const auto make = [&](DType dtype) {
    return streams ? make_spilled(target, stored->shape, dtype, label, name) : make_tensor(target, stored->shape, dtype, label);
  };
  TensorPtr raw;
  if (mappable) {
    if (interleaves && found == self->given.end()) view = interleave(view, available_threads());
    self->given[name] = view.dtype;
    raw = adopt_tensor(target, view.data, stored->shape, view.dtype, label, std::const_pointer_cast<Gguf>(self->file));
    if (wanted == row_dtype(view.dtype) && !opt.get("copy", false)) return call.push(raw);
  } else {
    raw = make(view.dtype);
    std::vector<std::byte> ordered;
    if (heads && target.backend().computes()) {
      ordered.resize(view.bytes());
      rows_to_halves(view, heads, ordered.data());
    }
    if (target.backend().computes())
      target.backend().upload(raw->view.data, heads ? ordered.data() : view.data, view.bytes());
    if (interleaves) raw->view = interleave(raw->view, available_threads());
    if (streams) drop_pages(stored->data, stored->bytes), drop_pages(raw->view.data, view.bytes());
    if (wanted == view.dtype) return call.push(raw);
  }
  if (is_interleaved(view.dtype) && wanted == row_dtype(view.dtype)) {  // a copy in the file's order
    TensorPtr plain = make_tensor(target, stored->shape, wanted, label);
    restore(view, plain->view.data);
    return call.push(plain);
  }
  TensorPtr result = make(wanted);
  copy_into(*result, *raw);
  if (streams) drop_pages(stored->data, stored->bytes), drop_pages(result->view.data, result->view.bytes());
  return call.push(result);
}

int load(Call& call) {
  const auto self = call.self<GgufFile>();
  const bool if_room = Options(call, 1, {"if_room"}).get("if_room", false);
  for (const auto& [name, dtype] : self->given)
    if (is_interleaved(dtype))
      fail("value", self->open().path(), ": tensor ", name, " lies interleaved in memory already; load the file before");
  self->open();
  return call.push(load_within_budget(self->file, if_room));
}

int close(Call& call) {
  call.self<GgufFile>()->file.reset();
  return 0;
}

// ---------------------------------------------------------------- writing

GgufMetadata::Scalar read_scalar(lua_State* L, int index, const std::string& key, GgufType type) {
  switch (lua_type(L, index)) {
    case LUA_TBOOLEAN: return lua_toboolean(L, index) != 0;
    case LUA_TNUMBER: return static_cast<double>(lua_tonumber(L, index));
    case LUA_TSTRING: break;
    default: fail("value", "GGUF entry ", key, ": a ", lua::type_text(L, index), " is no value of it");
  }
  const auto text = lua::Value<std::string>::read(L, index);
  if (type != GgufType::u64 && type != GgufType::i64) return text;
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
    const std::optional<GgufType> type = gguf_type_from_name(name);
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
  View on_host = view;
  on_host.data = host.data();
  std::vector<std::byte> plain(is_interleaved(view.dtype) ? host.size() : 0);
  if (!plain.empty()) {
    on_host = restore(on_host, plain.data());
    host.swap(plain);
  }
  if (heads) {
    std::vector<std::byte> ordered(host.size());
    rows_to_pairs(on_host, heads, ordered.data());
    host.swap(ordered);
  }
  writer.write(name, host.data(), host.size());
}

// q.gguf.writer(path, {{name=, dtype=, shape=}...}, metadata)
int writer(Call& call) {
  const auto path = call.arg<std::string>(1);
  lua_State* L = call.L;
  const int list = call.index(2);
  if (!lua_istable(L, list)) call.bad_argument(2, "table of {name=, dtype=, shape=} expected");
  std::vector<GgufSpec> specs;
  for (int i = 1, n = static_cast<int>(lua_objlen(L, list)); i <= n; ++i) {
    lua_rawgeti(L, list, i);
    if (!lua_istable(L, -1)) call.bad_argument(2, "element " + std::to_string(i) + " is not {name=, dtype=, shape=}");
    const int spec = lua_gettop(L);
    try {
      for (const char* field : {"name", "dtype", "shape"}) lua_getfield(L, spec, field);
      specs.push_back({lua::Value<std::string>::read(L, spec + 1), lua::Value<DType>::read(L, spec + 2),
                       lua::Value<Shape>::read(L, spec + 3)});
    } catch (const lua::Problem& problem) {
      call.bad_argument(2, "element " + std::to_string(i) + ": " + problem.text);
    }
    lua_settop(L, spec - 1);
  }
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
  lua_State* L = call.L;
  const int list = call.index(2);
  if (!lua_istable(L, list)) call.bad_argument(2, "table of {name, Tensor} expected");
  std::vector<GgufSpec> specs;
  std::vector<TensorPtr> tensors;
  for (int i = 1, n = static_cast<int>(lua_objlen(L, list)); i <= n; ++i) {
    lua_rawgeti(L, list, i);
    if (!lua_istable(L, -1)) call.bad_argument(2, "element " + std::to_string(i) + " is not {name, Tensor}");
    const int pair = lua_gettop(L);
    try {
      for (int k = 1; k <= 2; ++k) lua_rawgeti(L, pair, k);
      tensors.push_back(lua::Value<TensorPtr>::read(L, pair + 2));
      const View& view = tensors.back()->view;
      specs.push_back(
          {lua::Value<std::string>::read(L, pair + 1), row_dtype(view.dtype), Shape(view.shape, view.shape + view.rank)});
    } catch (const lua::Problem& problem) {
      call.bad_argument(2, "element " + std::to_string(i) + ": " + problem.text);
    }
    lua_settop(L, pair - 1);
  }
  GgufWriter out(path, specs, read_metadata(call, 3));
  for (size_t i = 0; i < specs.size(); ++i) write_tensor(out, specs[i].name, *tensors[i], 0);
  out.commit();
  return 0;
}
}  // namespace

void register_gguf(lua_State* L) {
  using lua::fn;
  lua::functions(L, "gguf", {{"open", fn<open>}, {"save", fn<save>}, {"writer", fn<writer>}});
  lua::methods<GgufFile>(L, {{"get", fn<get>},
                             {"keys", fn<keys>},
                             {"metadata", fn<metadata>},
                             {"names", fn<names>},
                             {"files", fn<files>},
                             {"info", fn<info>},
                             {"tensor", fn<tensor>},
                             {"load", fn<load>},
                             {"close", fn<close>}});
  lua::methods<GgufWriter>(L, {{"write", fn<write>}, {"commit", fn<commit>}});
}

}  // namespace qeng
