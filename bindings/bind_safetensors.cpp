// q.safetensors: reading maps the file; a tensor is that mapping wherever dtype, alignment and device allow.
#include <cstring>
#include <filesystem>
#include <optional>

#include "bindings/loaded_file.h"
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/formats/safetensors.h"
#include "engine/formats/safetensors_dtype.h"
#include "engine/stream/pages.h"
#include "engine/stream/spilled_file.h"

namespace qeng {
namespace {

// An open file or set of shards; tensors of it stay valid after close().
struct SafetensorsFile {
  std::shared_ptr<const SafeTensors> file;
  const SafeTensors& open() const {
    if (!file) fail("closed", "this SafetensorsFile is closed");
    return *file;
  }
};

}  // namespace
}  // namespace qeng

QENG_LUA_CLASS(qeng::SafetensorsFile, "SafetensorsFile")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

int open(Call& call) {
  return call.push(std::make_shared<SafetensorsFile>(SafetensorsFile{SafeTensors::open(call.arg<std::string>(1))}));
}

int names(Call& call) {
  std::vector<std::string> all;
  for (const StoredTensor& tensor : call.self<SafetensorsFile>()->open().tensors()) all.push_back(tensor.name);
  return call.push(all);
}

int info(Call& call) {
  const auto self = call.self<SafetensorsFile>();
  const StoredTensor* tensor = self->open().find(call.arg<std::string>(1));
  if (!tensor) return 0;
  lua_newtable(call.L);
  lua::set_field(call.L, "dtype", tensor->dtype ? std::string(dtype_name(*tensor->dtype)) : tensor->dtype_name);
  lua::set_field(call.L, "shape", tensor->shape);
  return 1;
}

const StoredTensor& find(const SafeTensors& file, const std::string& name) {
  if (const StoredTensor* tensor = file.find(name)) return *tensor;
  std::vector<std::string> known;
  for (const StoredTensor& tensor : file.tensors()) known.push_back(tensor.name);
  fail("value", file.path(), ": has no tensor ", name, lua::did_you_mean(name, known));
}

std::string dims_text(const Shape& shape) {
  std::string text;
  for (int64_t dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

int tensor(Call& call) {
  const auto self = call.self<SafetensorsFile>();
  const SafeTensors& file = self->open();
  const auto name = call.arg<std::string>(1);  // named, or g++ 13 takes the result for a reference to it
  const StoredTensor& stored = find(file, name);
  Options opt(call, 2, {"dtype", "shape", "copy", "label", "stream"});
  if (opt.has("shape") && opt.get<Shape>("shape") != stored.shape) {
    fail("shape", file.path(), ": tensor ", stored.name, " is ", dims_text(stored.shape), ", expected ",
         dims_text(opt.get<Shape>("shape")), ": the file belongs to another model or configuration");
  }
  const View view = file.view(stored.name);
  const DType wanted = opt.get("dtype", view.dtype);
  const auto label = opt.get<std::string>("label", "weights");

  Device& target = device();
  const bool aligned = reinterpret_cast<uintptr_t>(view.data) % stored_width(view.dtype) == 0;
  const bool mappable = aligned && target.backend().host_memory();
  const bool as_is = wanted == view.dtype && !opt.get("copy", false);
  if (mappable && as_is) {
    return call.push(adopt_tensor(target, view.data, stored.shape, view.dtype, label,
                                  std::const_pointer_cast<SafeTensors>(self->file)));
  }
  // A matrix to be streamed lies in a file, its own or another.
  const bool streams = opt.get("stream", false) && stored.shape.size() > 1;
  if (streams && !target.backend().host_memory()) {  // in the host's memory until q.weight_stream brings it
    if (wanted != view.dtype)
      fail("unsupported", "weights = stream: tensor ", name, " is ", dtype_name(view.dtype), " in the file, not ", dtype_name(wanted),
           ": to a GPU weights are streamed as they are stored; give no dtype");
    return call.push(adopt_tensor(target, view.data, stored.shape, view.dtype, label, std::const_pointer_cast<SafeTensors>(self->file)));
  }
  const auto make = [&](DType dtype) {
    return streams ? make_spilled(target, stored.shape, dtype, label, name) : make_tensor(target, stored.shape, dtype, label);
  };
  TensorPtr raw;
  if (mappable) {
    raw = adopt_tensor(target, view.data, stored.shape, view.dtype, label,
                       std::const_pointer_cast<SafeTensors>(self->file));
  } else {
    raw = make(view.dtype);
    if (view.bytes()) target.backend().upload(raw->view.data, view.data, view.bytes());
    if (streams) drop_pages(view.data, view.bytes()), drop_pages(raw->view.data, view.bytes());
    if (wanted == view.dtype) return call.push(raw);
  }
  TensorPtr result = make(wanted);
  copy_into(*result, *raw);
  if (streams) drop_pages(view.data, view.bytes()), drop_pages(result->view.data, result->view.bytes());
  return call.push(result);
}

int same(Call& call) {
  const auto self = call.self<SafetensorsFile>();
  const auto first = call.arg<std::string>(1), second = call.arg<std::string>(2);
  const StoredTensor &a = find(self->open(), first), &b = find(self->open(), second);
  const bool alike = a.dtype_name == b.dtype_name && a.shape == b.shape && a.bytes == b.bytes;
  return call.push(alike && std::memcmp(a.data, b.data, a.bytes) == 0);
}

int metadata(Call& call) { return call.push(call.self<SafetensorsFile>()->open().metadata()); }

int load(Call& call) {
  const auto self = call.self<SafetensorsFile>();
  const bool if_room = Options(call, 1, {"if_room"}).get("if_room", false);
  self->open();
  return call.push(load_within_budget(self->file, if_room));
}

int close(Call& call) {
  call.self<SafetensorsFile>()->file.reset();
  return 0;
}

// ---------------------------------------------------------------- writing

struct NamedTensor {
  std::string name;
  TensorPtr tensor;
  std::optional<DType> dtype;  // of its own
};

std::vector<NamedTensor> read_tensors(Call& call, int argument) {
  lua_State* L = call.L;
  const int list = call.index(argument);
  if (!lua_istable(L, list))
    call.bad_argument(argument, "table of {name, Tensor, [dtype]} expected, got " + lua::type_text(L, list));
  std::vector<NamedTensor> tensors;
  for (int i = 1, n = static_cast<int>(lua_objlen(L, list)); i <= n; ++i) {
    lua_rawgeti(L, list, i);
    try {
      if (!lua_istable(L, -1)) lua::expected(L, -1, "{name, Tensor}");
      const int pair = lua_gettop(L);
      lua_rawgeti(L, pair, 1);
      lua_rawgeti(L, pair, 2);
      lua_rawgeti(L, pair, 3);
      tensors.push_back({lua::Value<std::string>::read(L, pair + 1), lua::Value<TensorPtr>::read(L, pair + 2), {}});
      if (!lua_isnil(L, pair + 3)) tensors.back().dtype = lua::Value<DType>::read(L, pair + 3);
    } catch (const lua::Problem& problem) {
      call.bad_argument(argument, "element " + std::to_string(i) + ": " + problem.text);
    }
    lua_settop(L, lua_gettop(L) - 4);
  }
  return tensors;
}

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

// Streams the tensors through host memory, one at a time.
template <class Writer>
void write_all(Writer& writer, const std::vector<NamedTensor>& tensors) {
  std::map<std::string, const Tensor*> by_name;
  for (const NamedTensor& named : tensors) by_name[named.name] = named.tensor.get();
  for (const TensorSpec& spec : std::vector<TensorSpec>(writer.order())) {
    const Tensor& stored = *by_name.at(spec.name);
    const Tensor* source = &stored;
    TensorPtr converted;
    if (spec.dtype != source->view.dtype) {
      converted = make_tensor(source->device(), spec.shape, spec.dtype, "workspace");
      copy_into(*converted, *source);
      source = converted.get();
    }
    std::vector<std::byte> host(source->view.bytes());
    read_bytes(*source, host.data());
    drop_spilled(stored);
    writer.write(spec.name, host.data(), host.size());
  }
  writer.commit();
}

int save(Call& call) {
  const auto path = call.arg<std::string>(1);
  const std::vector<NamedTensor> tensors = read_tensors(call, 2);
  Options opt(call, 3, {"metadata", "max_shard_bytes", "dtype"});
  Metadata notes = opt.get<Metadata>("metadata", {});
  notes.emplace("format", "pt");
  std::vector<TensorSpec> specs;
  for (const NamedTensor& named : tensors) {
    const View& view = named.tensor->view;
    const bool converts = is_float(view.dtype) || (is_block(view.dtype) && !is_packed_words(view.dtype));
    const DType dtype = named.dtype ? *named.dtype : converts ? opt.get("dtype", view.dtype) : view.dtype;
    if (is_block(dtype) && !is_packed_words(dtype))
      fail("dtype", "safetensors.save: tensor ", named.name, " is ", dtype_name(dtype),
           ", which the format lacks; give a dtype: f32, bf16 or f16");
    specs.push_back({named.name, dtype, Shape(view.shape, view.shape + view.rank)});
  }
  if (std::filesystem::path(path).extension() == ".safetensors") {
    if (opt.has("max_shard_bytes")) fail("value", "safetensors.save: ", path, " is one file: shards need a folder");
    SafeTensorsWriter writer(path, specs, notes);
    write_all(writer, tensors);
  } else {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail("io", path, ": ", error.message());
    ShardedWriter writer(path, specs, opt.get<size_t>("max_shard_bytes", size_t{5} << 30), notes);
    write_all(writer, tensors);
  }
  return 0;
}
}  // namespace

void register_safetensors(lua_State* L) {
  using lua::fn;
  lua::functions(L, "safetensors", {{"open", fn<open>}, {"save", fn<save>}});
  lua::methods<SafetensorsFile>(L, {{"names", fn<names>},
                                    {"info", fn<info>},
                                    {"tensor", fn<tensor>},
                                    {"same", fn<same>},
                                    {"metadata", fn<metadata>},
                                    {"load", fn<load>},
                                    {"close", fn<close>}});
}

}  // namespace qeng
