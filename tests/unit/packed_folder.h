// For tests of packings: a folder of safetensors with a config.json, which is opened as whatever reader takes it.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/formats/safetensors.h"
#include "engine/weights/weights.h"
#include "kernels/error.h"

namespace qeng::packed {

namespace fs = std::filesystem;

// Tensors with their data, by name.
struct Parts {
  struct Part {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> data;
  };
  std::map<std::string, Part> all;

  template <class T>
  void set(const std::string& name, DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    const auto* data = reinterpret_cast<const std::byte*>(values.data());
    all[name] = {dtype, std::move(shape), {data, data + values.size() * sizeof(T)}};
  }
};

inline void write(const fs::path& folder, const std::string& config, Parts parts) {
  std::vector<NamedView> views;
  for (auto& [name, part] : parts.all) {
    View view(part.data.data(), part.dtype, {});
    for (const int64_t dim : part.shape) view.shape[view.rank++] = dim;
    views.push_back({name, view});
  }
  save_safetensors((folder / kWholeName).string(), views);
  std::ofstream(folder / "config.json") << config;
}

class Folder {
 public:
  Folder() { fs::remove_all(path_), fs::create_directories(path_); }
  ~Folder() { fs::remove_all(path_); }
  std::shared_ptr<const WeightFile> open(const std::string& config, const Parts& parts) const {
    write(path_, config, parts);
    return open_weights(path_.string());
  }
  // What is said against it, when it is opened or tensor `name` is read.
  std::string refusal(const std::string& config, const Parts& parts, const std::string& name = "") const {
    try {
      Weights weights(open(config, parts));
      Device device(make_cpu_backend(1));
      if (!name.empty()) static_cast<void>(weights.tensor(device, name));
    } catch (const Error& error) {
      return error.code + ": " + error.what();
    }
    return "nothing thrown";
  }

 private:
  fs::path path_ = fs::temp_directory_path() / ("qeng_packed_" + std::to_string(::getpid()));
};

inline std::vector<std::string> names_of(const WeightFile& file) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : file.tensors()) names.push_back(tensor.name);
  return names;
}

}  // namespace qeng::packed
