// q.safetensors: opening a file, a sharded set or a folder as safetensors, and writing one.
#include <filesystem>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "bindings/weights_class.h"
#include "engine/formats/safetensors.h"
#include "engine/formats/safetensors_dtype.h"
#include "engine/stream/spilled_file.h"

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

int open(Call& call) { return call.push(std::make_shared<Weights>(SafeTensors::open(call.arg<std::string>(1)))); }

// Tensors of an open file that are written as they are there: several for one that was made of several.
std::map<std::string, const StoredTensor*> copied(Options& opt) {
  std::map<std::string, const StoredTensor*> list;
  if (!opt.has("copied")) return list;
  const auto file = opt.get<std::shared_ptr<Weights>>("from", nullptr);
  if (!file) fail("value", "safetensors.save: copied are tensors of a file: give from too");
  for (const std::string& name : opt.get<std::vector<std::string>>("copied", {})) {
    const StoredTensor& tensor = file->file().get(name);
    for (const StoredTensor* part : tensor.parts) list[part->name] = part;
    if (tensor.parts.empty()) list[name] = &tensor;
  }
  return list;
}

// Passes the tensors through host memory, one at a time.
template <class Writer>
void write_all(Writer& writer, const std::vector<NamedTensor>& tensors,
               const std::map<std::string, const StoredTensor*>& copies) {
  std::map<std::string, const Tensor*> by_name;
  for (const NamedTensor& named : tensors) by_name[named.name] = named.tensor.get();
  for (const TensorSpec& spec : std::vector<TensorSpec>(writer.order())) {
    if (spec.stored_as) {
      const StoredTensor& copy = *copies.at(spec.name);
      writer.write(spec.name, copy.data, copy.bytes);
      continue;
    }
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
  const auto tensors = call.arg<std::vector<NamedTensor>>(2);
  Options opt(call, 3, {"metadata", "max_shard_bytes", "dtype", "from", "copied"});
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
  const auto copies = copied(opt);
  for (const auto& [name, tensor] : copies) {
    const SafeTensorsType* type = find_safetensors_type(tensor->type_name);
    if (!type || (!tensor->data && tensor->bytes))
      fail("dtype", "safetensors.save: tensor ", name, " is no safetensors file's");
    specs.push_back({name, DType::f32, tensor->shape, type});
  }
  if (std::filesystem::path(path).extension() == ".safetensors") {
    if (opt.has("max_shard_bytes")) fail("value", "safetensors.save: ", path, " is one file: shards need a folder");
    SafeTensorsWriter writer(path, specs, notes);
    write_all(writer, tensors, copies);
  } else {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail("io", path, ": ", error.message());
    ShardedWriter writer(path, specs, opt.get<size_t>("max_shard_bytes", size_t{5} << 30), notes);
    write_all(writer, tensors, copies);
  }
  return 0;
}
}  // namespace

void register_safetensors(lua_State* L) {
  using lua::fn;
  lua::functions(L, "safetensors", {{"open", fn<open>}, {"save", fn<save>}});
}

}  // namespace qeng
