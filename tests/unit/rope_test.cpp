#include "kernels/math/rope.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/catch.h"

using namespace qeng;

namespace {

RopeConfig config_of(const nlohmann::json& golden) {
  const auto& parameters = golden["parameters"];
  RopeConfig config;
  config.rotary =
      static_cast<int64_t>(golden["head_dim"].get<double>() * parameters.value("partial_rotary_factor", 1.0));
  config.theta = parameters["rope_theta"];
  config.scaling = rope_scaling_from_name(parameters["rope_type"]);
  config.factor = parameters.value("factor", 1.0);
  config.max_positions = golden["max_position_embeddings"];
  config.original_max_positions = parameters.value("original_max_position_embeddings", 0);
  config.attention_factor = parameters.value("attention_factor", 0.0);
  config.mscale = parameters.value("mscale", 0.0);
  config.mscale_all_dim = parameters.value("mscale_all_dim", 0.0);
  config.beta_fast = parameters.value("beta_fast", 32.0);
  config.beta_slow = parameters.value("beta_slow", 1.0);
  config.truncate = parameters.value("truncate", true);
  config.low_freq_factor = parameters.value("low_freq_factor", 1.0);
  config.high_freq_factor = parameters.value("high_freq_factor", 4.0);
  config.short_factor = parameters.value("short_factor", std::vector<double>());
  config.long_factor = parameters.value("long_factor", std::vector<double>());
  return config;
}

}  // namespace

TEST_CASE("rotary frequencies of every scaling are those of transformers") {
  std::ifstream file(QENG_SOURCE_DIR "/tests/golden/rope.json");
  REQUIRE(file);
  for (const auto& golden : nlohmann::json::parse(file)) {
    INFO(golden["parameters"].dump());
    const RopeTable table = rope_table(config_of(golden), golden["sequence"]);
    CHECK(table.attention_factor == Approx(golden["attention_factor"].get<double>()).epsilon(1e-7));
    const auto expected = golden["inv_freq"].get<std::vector<double>>();
    REQUIRE(table.inv_freq.size() == expected.size());
    // A few f32 roundings apart: the power function, then up to five operations.
    for (size_t i = 0; i < expected.size(); ++i)
      CHECK(std::fabs(table.inv_freq[i] - expected[i]) <= 4e-7 * expected[i]);
  }
}

TEST_CASE("a rope configuration that lacks something is refused") {
  RopeConfig config;
  CHECK_THROWS_AS(rope_table(config), Error);  // no rotary dimension
  config.rotary = 64;
  CHECK(rope_table(config).inv_freq.size() == 32);
  config.scaling = RopeScaling::yarn;  // no original context
  CHECK_THROWS_AS(rope_table(config), Error);
  CHECK_THROWS_AS(rope_scaling_from_name("su"), Error);
}
