// q.weights: files of weights, whatever their format (engine/weights/weights.h says where a tensor of one lies).
#include <cmath>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "bindings/weights_class.h"
#include "engine/weights/weights.h"

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

int open(Call& call) { return call.push(std::make_shared<Weights>(open_weights(call.arg<std::string>(1)))); }

template <class Item, class Of>
int push_names(Call& call, const std::vector<Item>& items, Of of) {
  std::vector<std::string> all;
  for (const Item& item : items) all.push_back(of(item));
  return call.push(all);
}

// ---------------------------------------------------------------- metadata

// Integers that a Lua number does not hold exactly become decimal text.
void push_value(lua_State* L, const MetadataValue& value) {
  const auto integer = [L](auto number) {
    if (std::abs(static_cast<double>(number)) <= lua::kMaxInteger)
      return lua_pushnumber(L, static_cast<double>(number));
    lua::Value<std::string>::push(L, std::to_string(number));
  };
  if (const auto* flag = std::get_if<bool>(&value)) return lua_pushboolean(L, *flag);
  if (const auto* real = std::get_if<double>(&value)) return lua_pushnumber(L, *real);
  if (const auto* text = std::get_if<std::string_view>(&value)) return lua_pushlstring(L, text->data(), text->size());
  if (const auto* number = std::get_if<uint64_t>(&value)) return integer(*number);
  if (const auto* number = std::get_if<int64_t>(&value)) return integer(*number);
  const MetadataArray& array = *std::get<std::shared_ptr<const MetadataArray>>(value);
  luaL_checkstack(L, 4, "nested arrays");
  lua_createtable(L, static_cast<int>(std::min<uint64_t>(array.count, INT32_MAX)), 0);
  for (uint64_t i = 0; i < array.count; ++i) {
    push_value(L, array.at(i));
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
}

// "u32", "string", or "[string]" for an array.
std::string type_of(const MetadataEntry& entry) {
  const auto* array = std::get_if<std::shared_ptr<const MetadataArray>>(&entry.value);
  return array ? std::string("[") + metadata_type_name((*array)->type) + "]" : metadata_type_name(entry.type);
}

int get(Call& call) {
  const auto self = call.self<Weights>();
  const MetadataEntry* entry = self->file().find_entry(call.arg<std::string>(1));
  if (!entry) return 0;
  push_value(call.L, entry->value);
  return 1 + call.push(type_of(*entry));
}

int keys(Call& call) {
  const auto self = call.self<Weights>();
  return push_names(call, self->file().entries(), [](const MetadataEntry& entry) { return entry.key; });
}

int metadata(Call& call) {
  const auto self = call.self<Weights>();
  lua_newtable(call.L);
  for (const MetadataEntry& entry : self->file().entries()) {
    lua_pushlstring(call.L, entry.key.data(), entry.key.size());
    push_value(call.L, entry.value);
    lua_rawset(call.L, -3);
  }
  return 1;
}

// ---------------------------------------------------------------- tensors

int names(Call& call) {
  const auto self = call.self<Weights>();
  return push_names(call, self->file().tensors(), [](const StoredTensor& tensor) { return tensor.name; });
}

int files(Call& call) {
  const auto self = call.self<Weights>();
  return push_names(call, self->file().files(), [](const auto& file) { return file->path(); });
}

int info(Call& call) {
  const auto self = call.self<Weights>();
  const StoredTensor* tensor = self->file().find(call.arg<std::string>(1));
  if (!tensor) return 0;
  lua_newtable(call.L);
  lua::set_field(call.L, "dtype",
                 tensor->dtype     ? std::string(dtype_name(*tensor->dtype))
                 : tensor->decoder ? tensor->decoder->name
                                   : tensor->type_name);
  lua::set_field(call.L, "readable", tensor->readable());
  lua::set_field(call.L, "keep", tensor->keeps_dtype());
  lua::set_field(call.L, "shape", tensor->shape);
  lua::set_field(call.L, "bytes", tensor->bytes);
  return 1;
}

int tensor(Call& call) {
  const auto self = call.self<Weights>();
  const auto name = call.arg<std::string>(1);
  Options opt(call, 2, {"dtype", "shape", "copy", "label", "heads", "interleave", "stream"});
  WeightOptions options;
  options.dtype = opt.get("dtype", options.dtype);
  options.shape = opt.get("shape", options.shape);
  options.copy = opt.get("copy", options.copy);
  options.account = opt.get("label", options.account);
  options.heads = opt.get("heads", options.heads);
  options.interleave = opt.get("interleave", options.interleave);
  options.stream = opt.get("stream", options.stream);
  return call.push(self->tensor(device(), name, options));
}

int same(Call& call) {
  const auto self = call.self<Weights>();
  return call.push(same_data(self->file().get(call.arg<std::string>(1)), self->file().get(call.arg<std::string>(2))));
}

int remarks(Call& call) { return call.push(call.self<Weights>()->file().remarks()); }

int load(Call& call) {
  Options opt(call, 1, {"if_room", "only"});
  const auto only = opt.get("only", std::vector<std::string>());
  return call.push(call.self<Weights>()->load(device(), opt.get("if_room", false), opt.has("only") ? &only : nullptr));
}

int spans(Call& call) {
  const auto self = call.self<Weights>();
  const auto found = self->spans(call.arg<std::vector<std::string>>(1));
  lua_createtable(call.L, static_cast<int>(found.size()), 0);
  for (size_t i = 0; i < found.size(); ++i) {
    std::vector<int64_t> ends;
    for (const MappedFile::Span& span : found[i])
      ends.push_back(static_cast<int64_t>(span.begin)), ends.push_back(static_cast<int64_t>(span.end) - 1);
    lua_newtable(call.L);
    lua::set_field(call.L, "path", self->file().files()[i]->path());
    call.push(ends);
    lua_setfield(call.L, -2, "spans");
    lua_rawseti(call.L, -2, static_cast<int>(i) + 1);
  }
  return 1;
}

int close(Call& call) {
  call.self<Weights>()->close();
  return 0;
}
}  // namespace

void register_weights(lua_State* L) {
  using lua::fn;
  lua::functions(L, "weights", {{"open", fn<open>}});
  lua::methods<Weights>(L, {{"get", fn<get>},
                            {"keys", fn<keys>},
                            {"metadata", fn<metadata>},
                            {"names", fn<names>},
                            {"files", fn<files>},
                            {"info", fn<info>},
                            {"tensor", fn<tensor>},
                            {"same", fn<same>},
                            {"remarks", fn<remarks>},
                            {"load", fn<load>},
                            {"spans", fn<spans>},
                            {"close", fn<close>}});
}

}  // namespace qeng
