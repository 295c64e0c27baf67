// Rotary frequencies for the context extensions that model configurations name.
//
// The figures are those of transformers (modeling_rope_utils): exponents and frequencies are f32 there, so the same
// roundings are made here; a double would differ by 4e-7, which at position 32768 is 0.01 radians.
//   linear   every frequency divided by factor
//   dynamic  NTK: theta grows with the sequence past max_positions
//   longrope Ding et al. 2024, arXiv 2402.13753: each frequency divided by a factor of its own, of one list up to the
//   original length and of another beyond it; scales cos and sin
//   yarn     Peng et al. 2023, arXiv 2309.00071: low frequencies divided, high ones kept, a ramp between; scales cos
//   and sin llama3   the same idea by wavelengths: kept below original / high_freq_factor, divided above original /
//   low_freq_factor
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/error.h"

namespace qeng {

enum class RopeScaling : uint8_t { none, linear, dynamic, yarn, llama3, longrope };

// "default", "linear", "dynamic", "yarn", "llama3", "longrope": rope_type of a config.json; else Error("unsupported").
inline RopeScaling rope_scaling_from_name(const std::string& name) {
  if (name == "default") return RopeScaling::none;
  if (name == "linear") return RopeScaling::linear;
  if (name == "dynamic") return RopeScaling::dynamic;
  if (name == "yarn") return RopeScaling::yarn;
  if (name == "llama3") return RopeScaling::llama3;
  if (name == "longrope") return RopeScaling::longrope;
  fail("unsupported", "rope_type '", name, "': one of default, linear, dynamic, yarn, llama3, longrope");
}

struct RopeConfig {
  int64_t rotary = 0;  // rotated elements of a head: int(head_dim * partial_rotary_factor), even
  double theta = 10000;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  int64_t max_positions = 0;           // max_position_embeddings (dynamic)
  int64_t original_max_positions = 0;  // original_max_position_embeddings (yarn, llama3, longrope)
  double attention_factor = 0;         // yarn, longrope; 0: from factor, or from the next two where both are given
  double mscale = 0, mscale_all_dim = 0;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  std::vector<double> short_factor, long_factor;     // [rotary / 2] each (longrope)
};

struct RopeTable {
  std::vector<float> inv_freq;  // [rotary / 2], as the Rope op takes them
  float attention_factor = 1;   // Rope's scale
};

namespace rope_detail {

// theta^(2i / rotary) for i < rotary / 2
inline std::vector<float> wave_numbers(double theta, int64_t rotary) {
  std::vector<float> powers;
  for (int64_t i = 0; i < rotary; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary);
    powers.push_back(static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), double{exponent})));
  }
  return powers;
}

// The pair that turns `rotations` times within the original context.
inline double correction(double rotations, const RopeConfig& config) {
  const double turns = static_cast<double>(config.original_max_positions) / (rotations * 2 * M_PI);
  return static_cast<double>(config.rotary) * std::log(turns) / (2 * std::log(config.theta));
}

inline double yarn_scale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

inline void yarn(const RopeConfig& config, RopeTable& table) {
  double low = correction(config.beta_fast, config), high = correction(config.beta_slow, config);
  if (config.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(config.rotary - 1));
  if (low == high) high += 0.001;  // no division by zero
  const auto powers = wave_numbers(config.theta, config.rotary);
  for (size_t i = 0; i < powers.size(); ++i) {
    const float kept = 1.0f / powers[i], divided = 1.0f / (static_cast<float>(config.factor) * powers[i]);
    const float place = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1.0f - std::clamp(place, 0.0f, 1.0f);
    table.inv_freq[i] = divided * (1.0f - keep) + kept * keep;
  }
  if (config.attention_factor > 0)
    table.attention_factor = static_cast<float>(config.attention_factor);
  else if (config.mscale > 0 && config.mscale_all_dim > 0)
    table.attention_factor =
        static_cast<float>(yarn_scale(config.factor, config.mscale) / yarn_scale(config.factor, config.mscale_all_dim));
  else
    table.attention_factor = static_cast<float>(yarn_scale(config.factor, 1));
}

inline void llama3(const RopeConfig& config, RopeTable& table) {
  const auto original = static_cast<float>(config.original_max_positions), factor = static_cast<float>(config.factor);
  const auto low = static_cast<float>(config.low_freq_factor), high = static_cast<float>(config.high_freq_factor);
  for (float& frequency : table.inv_freq) {
    const float length = static_cast<float>(2 * M_PI) / frequency;
    if (length > original / low) {
      frequency /= factor;
    } else if (length >= original / high) {
      const float smooth = (original / length - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

// factor: how much longer sequences may be than the original.
inline void longrope(const RopeConfig& config, int64_t sequence, RopeTable& table) {
  const auto& factors = sequence > config.original_max_positions ? config.long_factor : config.short_factor;
  if (factors.size() != table.inv_freq.size())
    fail("value", "rope: longrope has ", factors.size(), " factors, expected ", table.inv_freq.size());
  const auto powers = wave_numbers(config.theta, config.rotary);
  for (size_t i = 0; i < powers.size(); ++i) table.inv_freq[i] = 1.0f / (static_cast<float>(factors[i]) * powers[i]);
  if (config.attention_factor > 0)
    table.attention_factor = static_cast<float>(config.attention_factor);
  else if (config.factor > 1)
    table.attention_factor = static_cast<float>(
        std::sqrt(1 + std::log(config.factor) / std::log(static_cast<double>(config.original_max_positions))));
}

}  // namespace rope_detail

// The frequencies for sequences of `sequence` tokens (dynamic and longrope ask; 0: up to max_positions, or the
// original). Throws Error("value") where the configuration lacks what its scaling needs.
inline RopeTable rope_table(const RopeConfig& config, int64_t sequence = 0) {
  if (config.rotary <= 0 || config.rotary % 2 || !(config.theta > 0))
    fail("value", "rope: rotary dimension ", config.rotary, " and theta ", config.theta,
         "; expected even and positive");
  if (config.scaling != RopeScaling::none && !(config.factor > 0))
    fail("value", "rope: scaling factor ", config.factor, "; expected above 0");
  const bool by_original = config.scaling == RopeScaling::yarn || config.scaling == RopeScaling::llama3 ||
                           config.scaling == RopeScaling::longrope;
  if (by_original && config.original_max_positions <= 0)
    fail("value", "rope: this scaling needs original_max_position_embeddings");
  if (config.scaling == RopeScaling::llama3 &&
      !(config.high_freq_factor > config.low_freq_factor && config.low_freq_factor > 0))
    fail("value", "rope: high_freq_factor ", config.high_freq_factor, " must be above low_freq_factor ",
         config.low_freq_factor);
  double theta = config.theta;
  if (config.scaling == RopeScaling::dynamic) {
    if (config.max_positions <= 0 || config.rotary <= 2)
      fail("value", "rope: dynamic scaling needs max_position_embeddings and a rotary dimension above 2");
    const auto limit = static_cast<double>(config.max_positions),
               length = std::max(static_cast<double>(sequence), limit);
    const auto dim = static_cast<double>(config.rotary);
    theta *= std::pow(config.factor * length / limit - (config.factor - 1), dim / (dim - 2));
  }
  RopeTable table;
  for (float power : rope_detail::wave_numbers(theta, config.rotary)) table.inv_freq.push_back(1.0f / power);
  if (config.scaling == RopeScaling::linear)
    for (float& frequency : table.inv_freq) frequency /= static_cast<float>(config.factor);
  if (config.scaling == RopeScaling::yarn) rope_detail::yarn(config, table);
  if (config.scaling == RopeScaling::llama3) rope_detail::llama3(config, table);
  if (config.scaling == RopeScaling::longrope) rope_detail::longrope(config, sequence, table);
  return table;
}

}  // namespace qeng
