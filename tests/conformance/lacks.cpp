// What backends do not have yet. An operation that is added is had by all, or stands here.
#include <set>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/conformance/runner.h"

namespace qeng::conformance {

namespace {

const std::set<std::string> kOpenClLacks = {
    "fp8_round",   "fp8_matmul",       "hadamard",    "grouped_matmul",     "grouped_matmul_grad", "route",
    "dispatch",    "combine",          "dora_scale",  "scale_columns_grad", "layer_norm",          "layer_norm_grad",
    "causal_conv", "causal_conv_grad", "head_linear", "gated_delta",        "gated_delta_grad",    "pulse_grad",
    "inertia",     "count_levels",     "pack_signs",  "clip_to_grid",
};

// Whole documents of f32 whose heads are large take more shared memory than GPUs of 7.5 have.
bool too_large(const GatedDelta& op) { return !op.state && op.x.dtype == DType::f32 && op.shape.key_dim > 128; }
bool too_large(const GatedDeltaGrad& op) { return op.x.dtype == DType::f32 && op.shape.key_dim > 128; }
template <class AnyOp>
bool too_large(const AnyOp&) {
  return false;
}

}  // namespace

bool lacks(const Named& target, const Op& op) {
  if (target.name == "cuda" && target.backend->description().ends_with("capability 7.5"))
    return std::visit([](const auto& concrete) { return too_large(concrete); }, op);
  if (target.name != "opencl") return false;
  const auto codes = [](const auto& concrete) {
    if constexpr (requires { concrete.k_levels; }) return concrete.k_levels || concrete.v_levels;
    return false;
  };
  return kOpenClLacks.count(op_name(op)) || std::visit(codes, op);
}

TEST_CASE("a backend lacks the operations that are listed and no others") {
  for (Named& target : backends()) {
    std::string names;
    for (const OpTest& test : op_tests()) {
      INFO(target.name << ": " << test.name);
      bool listed = false, refused = false;
      for (uint64_t round = 0; round < 6; ++round) {
        Draw draw(base_seed() + round);
        const Op op = test.make(draw);
        listed = listed || lacks(target, op);
        std::string code = "none";
        try {
          run_on(*target.backend, op, draw.buffers());
        } catch (const Error& error) {
          code = error.code;
        }
        refused = refused || code == "unsupported";
        CHECK((code == "unsupported") == lacks(target, op));
      }
      if (listed) names += std::string(names.empty() ? "" : ", ") + test.name;
    }
    if (!names.empty()) std::fprintf(stderr, "%s LACKS, some or all of: %s\n", target.name.c_str(), names.c_str());
  }
}

}  // namespace qeng::conformance
