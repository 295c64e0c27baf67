// q.sampler. Logits on another device than the host's memory are downloaded first.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/generate/sampler.h"

QENG_LUA_CLASS(qeng::TokenSampler, "Sampler")

namespace qeng {
namespace {
using lua::Call;

int sampler(Call& call) {
  lua::Options opt(call, 1, {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"});
  SamplingOptions options;
  options.temperature = opt.get("temperature", options.temperature);
  options.top_k = opt.get("top_k", options.top_k);
  options.top_p = opt.get("top_p", options.top_p);
  options.min_p = opt.get("min_p", options.min_p);
  options.repetition_penalty = opt.get("repetition_penalty", options.repetition_penalty);
  options.seed = opt.get("seed", options.seed);
  return call.push(std::make_shared<TokenSampler>(options));
}

int next(Call& call) {
  const auto self = call.self<TokenSampler>();
  const auto logits = call.arg<TensorPtr>(1);
  View last = logits->view;  // only its last row is needed
  if (last.rank == 2 && last.shape[0] > 0) {
    last.data = last.as<std::byte>() + (last.bytes() - last.bytes() / static_cast<size_t>(last.shape[0]));
    last.shape[0] = 1;
  }
  std::vector<std::byte> host(last.bytes());
  logits->device().backend().download(host.data(), last.data, host.size());
  last.data = host.data();
  return call.push(self->next(last));
}

int accept(Call& call) {
  call.self<TokenSampler>()->accept(call.arg<int32_t>(1));
  return 0;
}
}  // namespace

void register_sampler(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"sampler", fn<sampler>}});
  lua::methods<TokenSampler>(L, {{"next", fn<next>}, {"accept", fn<accept>}});
}

}  // namespace qeng
