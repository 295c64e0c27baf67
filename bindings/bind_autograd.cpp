// The differentiable functions and what controls their tape: backward, no_grad, scope, checkpoint, block.
#include <list>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/autograd/functions.h"
#include "kernels/math/rope.h"

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

// ---------------------------------------------------------------- functions

Lora read_lora(Call& call, int table) {
  lua_State* L = call.L;
  if (!lua_istable(L, table))
    fail("value", call.name, ": lora: table {a=, b=, scale=} expected, got ", lua::type_text(L, table));
  const auto field = [&](const char* key, auto fallback) {
    using T = decltype(fallback);
    lua_getfield(L, table, key);
    T value = fallback;
    try {
      if (!lua_isnil(L, -1)) value = lua::Value<T>::read(L, lua_gettop(L));
    } catch (const lua::Problem& problem) {
      fail("value", call.name, ": lora.", key, ": ", problem.text);
    }
    lua_pop(L, 1);
    return value;
  };
  Lora lora{field("a", TensorPtr()), field("b", TensorPtr()), field("scale", 1.0f), field("dropout", 0.0f)};
  if (!lora.a || !lora.b) fail("value", call.name, ": lora needs a and b");
  return lora;
}

// Option lora, which may be absent.
Lora lora_of(Call& call, const Options& opt) {
  if (!opt.has("lora")) return {};
  opt.push("lora");
  Lora lora = read_lora(call, lua_gettop(call.L));
  lua_pop(call.L, 1);
  return lora;
}

int linear(Call& call) {
  TensorPtr x = call.arg<TensorPtr>(1), w = call.arg<TensorPtr>(2);
  Options opt(call, 3, {"bias", "lora", "fp8", "out"});
  const LinearLayer layer{w, opt.get<TensorPtr>("bias", nullptr), lora_of(call, opt), opt.get("fp8", false)};
  return call.push(linears(tape_of(call, x, w, layer.bias, layer.lora.a, layer.lora.b), x, {layer},
                           opt.get<DType>("out", x->view.dtype))[0]);
}

int linears(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1);
  if (!lua_istable(call.L, 2)) call.bad_argument(2, "a list of {weight=, bias=, lora=, fp8=} expected");
  const Options opt(call, 3, {"out"});
  std::vector<LinearLayer> layers;
  std::vector<TensorPtr> tensors = {x};
  for (int i = 1; i <= static_cast<int>(lua_objlen(call.L, 2)); ++i) {
    lua_rawgeti(call.L, 2, i);
    const Options layer(call, lua_gettop(call.L), {"weight", "bias", "lora", "fp8"});
    layers.push_back({layer.get<TensorPtr>("weight"), layer.get<TensorPtr>("bias", nullptr), lora_of(call, layer),
                      layer.get("fp8", false)});
    const auto& [w, bias, lora, fp8] = layers.back();
    tensors.insert(tensors.end(), {w, bias, lora.a, lora.b});
    lua_pop(call.L, 1);
  }
  Tape& tape = device_of(call, tensors).runtime()->tape();
  return call.push(linears(tape, x, layers, opt.get<DType>("out", x->view.dtype)));
}

int grouped_linear(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), w = call.arg<TensorPtr>(2), first = call.arg<TensorPtr>(3);
  Options opt(call, 4, {"bias", "lora", "out", "apart"});
  const Grouped options{opt.get<TensorPtr>("bias", nullptr), lora_of(call, opt), opt.get<DType>("out", x->view.dtype),
                        opt.get("apart", false)};
  Tape& tape = tape_of(call, x, w, first, options.bias, options.lora.a, options.lora.b);
  return call.push(grouped_linear(tape, x, w, first, options));
}

int route(Call& call) {
  const TensorPtr scores = call.arg<TensorPtr>(1);
  Options opt(call, 3, {"bias"});
  const TensorPtr bias = opt.get<TensorPtr>("bias", nullptr);
  const Routed routed = route(device_of(call, scores, bias), scores, call.arg<int64_t>(2), bias);
  return call.push(routed.choice, routed.order, routed.first, routed.place);
}
int dispatch(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), place = call.arg<TensorPtr>(2);
  return call.push(dispatch(tape_of(call, x, place), x, place));
}
int combine(Call& call) {
  const TensorPtr rows = call.arg<TensorPtr>(1), place = call.arg<TensorPtr>(2),
                  weight = call.arg<TensorPtr>(3, nullptr);
  return call.push(combine(tape_of(call, rows, place, weight), rows, place, weight));
}

int merge_lora(Call& call) {
  const TensorPtr w = call.arg<TensorPtr>(1);
  const Lora lora = read_lora(call, 2);
  device_of(call, w, lora.a, lora.b);
  return call.push(merge_lora(w, lora));
}
int dora_scale(Call& call) {
  const TensorPtr w = call.arg<TensorPtr>(1), magnitude = call.arg<TensorPtr>(3), squares = call.arg<TensorPtr>(4);
  const Lora lora = read_lora(call, 2);
  return call.push(dora_scale(tape_of(call, w, lora.a, lora.b, magnitude, squares), w, lora, magnitude, squares));
}
int row_squares(Call& call) { return call.push(row_squares(call.arg<TensorPtr>(1))); }
int merge_dora(Call& call) {
  const TensorPtr w = call.arg<TensorPtr>(1), magnitude = call.arg<TensorPtr>(3);
  const Lora lora = read_lora(call, 2);
  device_of(call, w, lora.a, lora.b, magnitude);
  return call.push(merge_dora(w, lora, magnitude));
}
int embedding_noise(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), cu = call.arg<TensorPtr>(2);
  return call.push(embedding_noise(tape_of(call, x, cu), x, cu, call.arg<float>(3)));
}
int embedding(Call& call) {
  const TensorPtr table = call.arg<TensorPtr>(1), tokens = call.arg<TensorPtr>(2);
  const DType own = table->view.dtype;  // a stored dtype is none to compute in
  const DType out = call.arg<DType>(3, own == DType::bf16 ? own : DType::f32);
  return call.push(embedding(tape_of(call, table, tokens), table, tokens, out));
}
int hadamard(Call& call) {
  TensorPtr x = call.arg<TensorPtr>(1);
  Options opt(call, 2, {"signs", "block", "inverse"});
  const int block = opt.get<int>("block", static_cast<int>(x->view.columns()));
  const TensorPtr signs = opt.get<TensorPtr>("signs", nullptr);
  return call.push(hadamard(tape_of(call, x, signs), x, signs, block, opt.get<bool>("inverse", false)));
}
int rmsnorm(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), w = call.arg<TensorPtr>(2);
  return call.push(rmsnorm(tape_of(call, x, w), x, w, call.arg<float>(3), call.arg<bool>(4, false)));
}
int layer_norm(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), w = call.arg<TensorPtr>(2), b = call.arg<TensorPtr>(3, nullptr);
  return call.push(layer_norm(tape_of(call, x, w, b), x, w, b, call.arg<float>(4)));
}
int causal_conv(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), w = call.arg<TensorPtr>(2), bias = call.arg<TensorPtr>(3, nullptr),
                  cu = call.arg<TensorPtr>(4);
  Options opt(call, 5, {"state", "pages", "lengths", "page_tokens"});
  const ConvPages kept{opt.get<TensorPtr>("state", nullptr), opt.get<TensorPtr>("pages", nullptr),
                       opt.get<TensorPtr>("lengths", nullptr), opt.get<int64_t>("page_tokens", 0)};
  return call.push(
      causal_conv(tape_of(call, x, w, bias, cu, kept.state, kept.pages, kept.lengths), x, w, bias, cu, kept));
}
int gated_delta(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), g = call.arg<TensorPtr>(2), beta = call.arg<TensorPtr>(3),
                  cu = call.arg<TensorPtr>(4);
  Options opt(call, 5, {"key_heads", "key_dim", "value_heads", "state", "rows", "pages", "lengths", "page_tokens"});
  DeltaShape shape{.key_heads = opt.get<int64_t>("key_heads"),
                   .value_heads = opt.get<int64_t>("value_heads"),
                   .key_dim = opt.get<int64_t>("key_dim")};
  const int64_t values = x->view.columns() - 2 * shape.key_heads * shape.key_dim;
  shape.value_dim = shape.value_heads > 0 ? values / shape.value_heads : 0;
  const DeltaPages kept{opt.get<TensorPtr>("state", nullptr), opt.get<TensorPtr>("rows", nullptr),
                        opt.get<TensorPtr>("pages", nullptr), opt.get<TensorPtr>("lengths", nullptr),
                        opt.get<int64_t>("page_tokens", 0)};
  return call.push(gated_delta(tape_of(call, x, g, beta, cu, kept.state, kept.rows, kept.pages, kept.lengths), x, g,
                               beta, cu, shape, kept));
}
int add_rmsnorm(Call& call) {
  const TensorPtr a = call.arg<TensorPtr>(1), b = call.arg<TensorPtr>(2), w = call.arg<TensorPtr>(3);
  const NormedSum result = add_rmsnorm(tape_of(call, a, b, w), a, b, w, call.arg<float>(4), call.arg<bool>(5, false));
  return call.push(result.sum, result.y);
}
int swiglu(Call& call) {
  Options opt(call, 3, {"gelu"});
  const TensorPtr gate = call.arg<TensorPtr>(1), up = call.arg<TensorPtr>(2);
  return call.push(swiglu(tape_of(call, gate, up), gate, up, opt.get<bool>("gelu", false)));
}
int dropout(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1);
  return call.push(dropout(tape_of(call, x), x, call.arg<float>(2)));
}

int rope_table(Call& call) {
  Options opt(call, 1,
              {"dim", "theta", "length", "type", "factor", "max_position_embeddings",
               "original_max_position_embeddings", "attention_factor", "mscale", "mscale_all_dim", "beta_fast",
               "beta_slow", "truncate", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor"});
  RopeConfig config;
  config.rotary = opt.get<int64_t>("dim");
  config.theta = opt.get<double>("theta");
  config.scaling = rope_scaling_from_name(opt.get<std::string>("type", "default"));
  config.max_positions = opt.get<int64_t>("max_position_embeddings", 0);
  config.original_max_positions = opt.get<int64_t>("original_max_position_embeddings", config.max_positions);
  config.factor = opt.get<double>("factor", config.factor);
  config.attention_factor = opt.get<double>("attention_factor", config.attention_factor);
  config.mscale = opt.get<double>("mscale", config.mscale);
  config.mscale_all_dim = opt.get<double>("mscale_all_dim", config.mscale_all_dim);
  config.beta_fast = opt.get<double>("beta_fast", config.beta_fast);
  config.beta_slow = opt.get<double>("beta_slow", config.beta_slow);
  config.truncate = opt.get<bool>("truncate", config.truncate);
  config.low_freq_factor = opt.get<double>("low_freq_factor", config.low_freq_factor);
  config.high_freq_factor = opt.get<double>("high_freq_factor", config.high_freq_factor);
  config.short_factor = opt.get<std::vector<double>>("short_factor", {});
  config.long_factor = opt.get<std::vector<double>>("long_factor", {});
  const RopeTable made = qeng::rope_table(config, opt.get<int64_t>("length", 0));
  const std::vector<double> values(made.inv_freq.begin(), made.inv_freq.end());
  lua_newtable(call.L);
  lua::set_field(call.L, "inv_freq",
                 make_constant(device(), {static_cast<int64_t>(values.size())}, DType::f32, values));
  lua::set_field(call.L, "scale", static_cast<double>(made.attention_factor));
  return 1;
}

int rope(Call& call) {
  Options table(call, 4, {"inv_freq", "scale", "interleaved"});
  const TensorPtr query = call.arg<TensorPtr>(1), key = call.arg<TensorPtr>(2, nullptr),
                  positions = call.arg<TensorPtr>(3), inv_freq = table.get<TensorPtr>("inv_freq");
  const Rotated rotated = rope(tape_of(call, query, key, positions, inv_freq), query, key, positions, inv_freq,
                               table.get<float>("scale", 1), table.get<bool>("interleaved", false));
  return rotated.key ? call.push(rotated.query, rotated.key) : call.push(rotated.query);
}

int attention(Call& call) {
  TensorPtr q = call.arg<TensorPtr>(1), k = call.arg<TensorPtr>(2), v = call.arg<TensorPtr>(3);
  if (!lua_istable(call.L, 4)) call.bad_argument(4, "table with cu_q expected, got " + lua::type_text(call.L, 4));
  const auto boundary = [&](const char* key) {
    lua_getfield(call.L, 4, key);
    TensorPtr cu = lua_isnil(call.L, -1) ? nullptr : lua::Value<TensorPtr>::read(call.L, lua_gettop(call.L));
    lua_pop(call.L, 1);
    return cu;
  };
  Documents documents{boundary("cu_q"), boundary("cu_k")};
  if (!documents.cu_q) call.bad_argument(4, "cu_q is missing");
  if (!documents.cu_k) documents.cu_k = documents.cu_q;
  Options opt(call, 5, {"scale", "window", "softcap", "sinks"});
  AttentionOptions options;
  options.scale = opt.get<float>("scale", 1.0f / std::sqrt(static_cast<float>(q->view.columns())));
  options.window = opt.get<int>("window", 0), options.softcap = opt.get<float>("softcap", 0);
  options.sinks = opt.get<TensorPtr>("sinks", nullptr);
  Tape& tape = tape_of(call, q, k, v, documents.cu_q, documents.cu_k, options.sinks);
  return call.push(attention(tape, q, k, v, documents, options));
}

HeadOptions head_options(const Call& call, int argument) {
  Options opt(call, argument, {"softcap", "trained"});
  return {opt.get<float>("softcap", 0), opt.get<int64_t>("trained", -1)};
}

int lm_head_loss(Call& call) {
  const TensorPtr h = call.arg<TensorPtr>(1), w = call.arg<TensorPtr>(2), targets = call.arg<TensorPtr>(3),
                  scale = call.arg<TensorPtr>(4);
  const HeadLoss result =
      lm_head_loss(tape_of(call, h, w, targets, scale), h, w, targets, scale, head_options(call, 5));
  return call.push(result.loss, result.nll);
}

int token_nll(Call& call) {
  const TensorPtr h = call.arg<TensorPtr>(1), w = call.arg<TensorPtr>(2), targets = call.arg<TensorPtr>(3);
  return call.push(token_nll(tape_of(call, h, w, targets), h, w, targets, head_options(call, 4)));
}

int reshape(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  Shape shape = call.arg<Shape>(1);
  int64_t others = 1;
  int64_t* open = nullptr;  // one size may be -1: what is left
  for (int64_t& size : shape) size == -1 && !open ? void(open = &size) : void(others *= size);
  if (open) *open = others > 0 ? x->view.elements() / others : 0;
  return call.push(reshape(tape_of(call, x), x, shape));
}
int to(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  return call.push(cast(tape_of(call, x), x, call.arg<DType>(1)));
}
int backward(Call& call) {
  std::vector<TensorPtr> losses{lua::self_tensor(call)};
  for (int i = 1, others = call.arguments(); i <= others; ++i)
    if (call.has(i)) losses.push_back(call.arg<TensorPtr>(i));
  Tape& tape = device_of(call, losses).runtime()->tape();
  const Using used(tape.device().runtime()->shared_from_this());  // checkpoints run functions of Lua again
  tape.backward(losses);
  return 0;
}

// ---------------------------------------------------------------- control

int no_grad(Call& call) {
  runtime();
  std::list<std::shared_ptr<Runtime>> held;  // one may be collected while the function runs
  std::list<Tape::NoGrad> guards;            // the function may use tensors of any runtime
  for (Runtime* each : Runtime::all()) held.push_back(each->shared_from_this()), guards.emplace_back(each->tape());
  return lua::call_rest(call, 1);
}

int freeze(Call& call) {
  const auto parameters = call.arg<std::vector<TensorPtr>>(1);
  std::list<std::shared_ptr<Runtime>> held;
  std::list<Tape::Frozen> frozen;
  for (Runtime* each : Runtime::all()) {
    auto its = std::make_shared<std::vector<TensorPtr>>();
    for (const TensorPtr& parameter : parameters)
      if (&parameter->device() == &each->device()) its->push_back(parameter);
    if (its->empty()) continue;
    held.push_back(each->shared_from_this());
    frozen.emplace_back(each->tape(), each->tape().frozen_and(its));
  }
  return lua::call_rest(call, 2);
}

int scope(Call& call) {
  scopes::enter(call.L);
  try {
    const int results = lua::call_rest(call, 1);
    scopes::leave(call.L, results);
    return results;
  } catch (...) {
    scopes::leave(call.L, 0);
    throw;
  }
}

int keep(Call& call) {
  lua::push_kept(call.L, call.arg<TensorPtr>(1));
  return 1;
}

int block(Call& call) {
  Block named(device(), call.arg<std::string>(1));
  return lua::call_rest(call, 2);
}

// The function runs inside a scope of its own, so that Lua's handles do not keep the dropped activations alive.
int checkpoint(Call& call) {
  const std::string label = call.arg<std::string>(1);
  const lua::Ref fn = call.arg<lua::Ref>(2);
  std::vector<TensorPtr> inputs;
  for (int i = 3, n = call.arguments(); i <= n; ++i) inputs.push_back(call.arg<TensorPtr>(i));
  const auto run = [fn](const std::vector<TensorPtr>& given) {
    lua_State* L = lua::current();
    luaL_checkstack(L, static_cast<int>(given.size()) + 10, "checkpoint");
    const int base = lua_gettop(L);
    std::vector<TensorPtr> results;
    scopes::enter(L);
    try {
      fn.push(L);
      for (const TensorPtr& tensor : given) lua::Value<TensorPtr>::push(L, tensor);
      lua::call(L, static_cast<int>(given.size()), LUA_MULTRET);
      for (int i = base + 1; i <= lua_gettop(L); ++i) results.push_back(lua::Value<TensorPtr>::read(L, i));
    } catch (const lua::Problem& problem) {
      scopes::leave(L, 0);
      fail("value", "a result of the checkpointed function: ", problem.text);
    } catch (...) {
      scopes::leave(L, 0);
      throw;
    }
    scopes::leave(L, 0);
    lua_settop(L, base);
    return results;
  };
  const std::vector<TensorPtr> results = device_of(call, inputs).runtime()->tape().checkpoint(label, run, inputs);
  for (const TensorPtr& result : results) call.push(result);
  return static_cast<int>(results.size());
}

}  // namespace

void register_autograd(lua_State* L) {
  using namespace lua;
  functions(L, "",
            {{"linear", fn<linear>},
             {"linears", fn<linears>},
             {"grouped_linear", fn<grouped_linear>},
             {"route", fn<route>},
             {"dispatch", fn<dispatch>},
             {"combine", fn<combine>},
             {"embedding_noise", fn<embedding_noise>},
             {"embedding", fn<embedding>},
             {"hadamard", fn<hadamard>},
             {"rmsnorm", fn<rmsnorm>},
             {"add_rmsnorm", fn<add_rmsnorm>},
             {"layer_norm", fn<layer_norm>},
             {"causal_conv", fn<causal_conv>},
             {"gated_delta", fn<gated_delta>},
             {"swiglu", fn<swiglu>},
             {"dropout", fn<dropout>},
             {"rope_table", fn<rope_table>},
             {"rope", fn<rope>},
             {"attention", fn<attention>},
             {"lm_head_loss", fn<lm_head_loss>},
             {"token_nll", fn<token_nll>},
             {"no_grad", fn<no_grad>},
             {"freeze", fn<freeze>},
             {"scope", fn<scope>},
             {"keep", fn<keep>},
             {"block", fn<block>},
             {"checkpoint", fn<checkpoint>}});
  functions(L, "adapters",
            {{"merge_lora", fn<merge_lora>},
             {"merge_dora", fn<merge_dora>},
             {"dora_scale", fn<dora_scale>},
             {"row_squares", fn<row_squares>}});
  methods<Tensor>(L, {{"reshape", fn<reshape>}, {"to", fn<to>}, {"backward", fn<backward>}});
}

}  // namespace qeng
