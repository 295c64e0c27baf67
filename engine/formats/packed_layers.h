// Hugging Face folders whose linear layers are packed: several tensors of model.safetensors are one weight, and
// quantization_config of config.json says how. They are read as folders of ordinary layers: LAYER.weight, [out, in], is
// listed in place of its parts. The other tensors are those of the file.
//
// A packing is a function that joins parts, and a Packing. Both stand in engine/formats/NAME_read.cpp, and nothing else
// names it. What a file says is checked before memory is asked for: the parts are there, and their shapes fit each
// other. Values are looked at when the weight is decoded.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "engine/formats/weight_file.h"

namespace qeng {

// The weights of a folder, over its tensors as they are stored.
class PackedLayers : public WeightFile {
 public:
  // settings: what quantization_of gives. Error("unsupported") for a quant_method of no Packing, and what that throws.
  static std::shared_ptr<const WeightFile> open(std::shared_ptr<const WeightFile> stored, const std::string& config,
                                                const nlohmann::json& settings);
  // Opens the folder's safetensors and its config.json.
  static std::shared_ptr<const WeightFile> open(const std::string& folder);
  std::string readable_types() const override { return stored_->readable_types(); }

  // ---- for packings
  const WeightFile& stored() const { return *stored_; }
  const nlohmann::json* setting(const std::string& key) const;  // null where it is absent, or null
  // Error("unsupported"): the key, its value, and what is supported.
  [[noreturn]] void refuse(const std::string& key, const std::string& supported) const;
  void allow(const std::string& key, const nlohmann::json& value) const;    // refuses another value; it may be absent
  void require(const std::string& key, const nlohmann::json& value) const;  // refuses another one, and none
  const std::string& file_of(const StoredTensor& stored) const;             // its path, for messages
  // Lists weight `name`, [out, in], where parts[0] stands, and no part. Its name may be that of a part. ways: how many
  // weights are made of these parts, which share their bytes.
  void join(std::string name, std::vector<int64_t> shape, std::vector<const StoredTensor*> parts, Decoder decoder,
            int64_t ways = 1);
  void remark(std::string text) { remarks_.push_back(path_ + ": " + std::move(text)); }

 private:
  PackedLayers(std::shared_ptr<const WeightFile> stored, std::string config, nlohmann::json settings);
  void list();
  std::shared_ptr<const WeightFile> stored_;
  std::string config_;
  nlohmann::json settings_;
  std::unordered_map<const StoredTensor*, std::vector<StoredTensor>> joined_;  // by the first part
  std::unordered_set<const StoredTensor*> parts_;
};

// A packing that folders may have, from its definition at namespace scope on.
struct Packing {
  using Join = void (*)(PackedLayers& layers);  // joins the parts of every packed layer
  Packing(const char* method, Join join);
  const char* method;  // quantization_config.quant_method: "awq"
  Join join;
};

// quantization_config in the text of a config.json, or in that of the text model there; null if it has none.
// Error("format") names the path where the text is no JSON object.
nlohmann::json quantization_of(const std::string& path, std::string_view text);

// Of a part, for messages: "i32 [2, 8]".
std::string described(const StoredTensor& stored);
// Error("shape") unless the part, "qzeros", is of this dtype and shape.
void check_part(const std::string& where, const char* part, const StoredTensor& stored, DType dtype,
                const std::vector<int64_t>& shape);

}  // namespace qeng
