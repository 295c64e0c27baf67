// One-bit and ternary weights: their scale a row, their packing, what learns a weight from its gradient, and the steps
// that baselines take.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/autograd/functions.h"
#include "engine/quantize/binarize.h"
#include "engine/quantize/one_bit.h"
#include "engine/stream/spilled_file.h"
#include "engine/train/counter_levels.h"
#include "engine/train/learner.h"

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

int scaled(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), scale = call.arg<TensorPtr>(2), bias = call.arg<TensorPtr>(3, nullptr);
  return call.push(scale_columns(tape_of(call, x, scale, bias), x, scale, bias));
}

int by_pulses(Call& call) {
  const TensorPtr weight = call.arg<TensorPtr>(1);
  require_writable(*weight, "learn_by_pulses");
  Options opt(call, 2, {"state", "hyper", "counts", "first", "subsequence", "bop"});
  PulseOptions options;
  options.state = opt.get<TensorPtr>("state"), options.hyper = opt.get<TensorPtr>("hyper"),
  options.counts = opt.get<TensorPtr>("counts");
  options.first = opt.get<int64_t>("first", 0),
  options.subsequence = static_cast<uint32_t>(opt.get<int64_t>("subsequence", 0));
  options.bop = opt.get<bool>("bop", false);
  device_of(call, weight, options.state, options.hyper, options.counts);
  weight->learner = learn_by_pulses(weight, options);
  return 0;
}

int by_latent(Call& call) {
  const TensorPtr weight = call.arg<TensorPtr>(1), latent = call.arg<TensorPtr>(2);
  require_writable(*weight, "learn_latent");
  device_of(call, weight, latent);
  weight->learner = learn_latent(weight, latent);
  return 0;
}

int not_at_all(Call& call) {
  call.arg<TensorPtr>(1)->learner.reset();
  return 0;
}

int signs(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), y = call.arg<TensorPtr>(2);
  require_writable(*y, "pack_signs");
  device_of(call, x, y).run(PackSigns{x->view, y->view});
  drop_spilled(*y);
  return 0;
}

int random_signs(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1);
  Options opt(call, 2, {"seed", "subsequence"});
  require_writable(*x, "random_signs");
  fill_signs(*x, opt.get<uint64_t>("seed", tape_of(call, x).seed()), opt.get<uint64_t>("subsequence", 0));
  return 0;
}

int to_grid(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1);
  Options opt(call, 2, {"levels", "subsequence"});
  require_writable(*x, "clip_to_grid");
  Tape& tape = tape_of(call, x);
  tape.device().run(ClipToGrid{x->view, x->view, tape.rng()->view, opt.get<int>("levels", 0),
                               static_cast<uint32_t>(opt.get<int64_t>("subsequence", 0))});
  return 0;
}

int to_signs(Call& call) {
  const RowScaled result = binarize(call.arg<TensorPtr>(1));
  return call.push(result.w, result.scale);
}

int join_scale(Call& call) {
  return call.push(join_row_scale(call.arg<TensorPtr>(1), call.arg<TensorPtr>(2), call.arg<DType>(3)));
}

int split_scale(Call& call) {
  const RowScaled parts = split_row_scale(call.arg<TensorPtr>(1));
  return call.push(parts.w, parts.scale);
}

int count(Call& call) {
  const auto x = call.arg<TensorPtr>(1);
  return call.push(call.has(2) ? count_differing_bits(*x, *call.arg<TensorPtr>(2)) : count_set_bits(*x));
}

int levels(Call& call) { return call.push(counter_levels(*call.arg<TensorPtr>(1))); }

}  // namespace

void register_onebit(lua_State* L) {
  using namespace lua;
  functions(L, "", {{"scale_columns", fn<scaled>}});
  functions(L, "onebit",
            {{"learn_by_pulses", fn<by_pulses>},
             {"learn_latent", fn<by_latent>},
             {"stop_learning", fn<not_at_all>},
             {"pack_signs", fn<signs>},
             {"random_signs", fn<random_signs>},
             {"clip_to_grid", fn<to_grid>},
             {"count_levels", fn<levels>},
             {"binarize", fn<to_signs>},
             {"join_row_scale", fn<join_scale>},
             {"split_row_scale", fn<split_scale>},
             {"count_bits", fn<count>}});
}

}  // namespace qeng
