// q.sampler, and q.logits: what is read from logits. Those that the host cannot read are downloaded first.
#include <algorithm>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "bindings/sampling.h"
#include "engine/generate/logprobs.h"
#include "engine/generate/sampler.h"
#include "kernels/view_text.h"

QENG_LUA_CLASS(qeng::TokenSampler, "Sampler")
QENG_LUA_CLASS(const qeng::Tokenizer, "Tokenizer")

namespace qeng {
namespace {
using lua::Call;

// Rows first .. first + rows - 1 of a tensor (all of a vector) in host memory.
View downloaded(const TensorPtr& tensor, int64_t first, int64_t rows, std::vector<std::byte>& host) {
  View part = tensor->view;
  if (part.rank == 2 && part.shape[0] > 0) {
    const size_t row_bytes = part.bytes() / static_cast<size_t>(part.shape[0]);
    part.data = part.as<std::byte>() + static_cast<size_t>(first) * row_bytes;
    part.shape[0] = rows;
  }
  host.resize(part.bytes());
  tensor->device().backend().download(host.data(), part.data, host.size());
  part.data = host.data();
  return part;
}

// on_host(logits): a copy in host memory, by one read, for samplers that take a row each; nil where the host reads the
// device's memory.
int on_host(Call& call) {
  const TensorPtr logits = call.arg<TensorPtr>(1);
  if (logits->device().backend().host_memory()) return 0;
  static const std::shared_ptr<Runtime> host = make_runtime({.device = "cpu", .threads = 1});
  const View& view = logits->view;
  const TensorPtr copy = make_tensor(host->device(), Shape(view.shape, view.shape + view.rank), view.dtype, "logits");
  logits->device().backend().download(copy->view.data, view.data, view.bytes());
  return call.push(copy);
}

// {[token] = bias}; tokens may be strings of digits, as JSON's keys are.
std::vector<std::pair<int32_t, double>> biases(const Call& call, const lua::Options& opt) {
  std::vector<std::pair<int32_t, double>> all;
  if (!opt.has("logit_bias")) return all;
  lua_State* L = call.L;
  opt.push("logit_bias");
  const int table = lua_gettop(L);
  if (!lua_istable(L, table))
    fail("value", "sampler: logit_bias is a ", lua::type_text(L, table), ", expected a table {[token] = bias}");
  for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
    lua_pushvalue(L, -2);  // lua_tonumber on the key itself would confuse lua_next
    const double token = lua_isnumber(L, -1) ? lua_tonumber(L, -1) : -1;
    lua_pop(L, 1);
    if (token < 0 || token > INT32_MAX || token != static_cast<double>(static_cast<int32_t>(token)) ||
        lua_type(L, -1) != LUA_TNUMBER) {
      fail("value", "sampler: logit_bias has to be {[token] = bias}, a token's number and a number");
    }
    all.emplace_back(static_cast<int32_t>(token), lua_tonumber(L, -1));
  }
  lua_pop(L, 1);
  std::sort(all.begin(), all.end());
  return all;
}

int sampler(Call& call) {
  lua::Options opt(call, 1,
                   {"temperature",
                    "top_k",
                    "top_p",
                    "min_p",
                    "typical_p",
                    "repetition_penalty",
                    "presence_penalty",
                    "frequency_penalty",
                    "penalty_window",
                    "logit_bias",
                    "seed",
                    "dry_multiplier",
                    "dry_base",
                    "dry_allowed_length",
                    "dry_penalty_last_n",
                    "dry_sequence_breakers",
                    "tokenizer",
                    "top_n_sigma",
                    "xtc_probability",
                    "xtc_threshold",
                    "mirostat",
                    "mirostat_tau",
                    "mirostat_eta"});
  SamplingOptions options;
  options.temperature = opt.get("temperature", options.temperature);
  options.top_k = opt.get("top_k", options.top_k);
  options.top_p = opt.get("top_p", options.top_p);
  options.min_p = opt.get("min_p", options.min_p);
  options.typical_p = opt.get("typical_p", options.typical_p);
  options.repetition_penalty = opt.get("repetition_penalty", options.repetition_penalty);
  options.presence_penalty = opt.get("presence_penalty", options.presence_penalty);
  options.frequency_penalty = opt.get("frequency_penalty", options.frequency_penalty);
  options.penalty_window = opt.get("penalty_window", options.penalty_window);
  options.logit_bias = biases(call, opt);
  options.seed = opt.get("seed", options.seed);
  options.dry.multiplier = opt.get("dry_multiplier", options.dry.multiplier);
  options.dry.base = opt.get("dry_base", options.dry.base);
  options.dry.allowed_length = opt.get("dry_allowed_length", options.dry.allowed_length);
  options.dry.last_n = opt.get("dry_penalty_last_n", options.dry.last_n);
  const auto tokenizer = opt.get("tokenizer", std::shared_ptr<const Tokenizer>{});
  const auto breakers = opt.get("dry_sequence_breakers", std::vector<std::string>{});
  if (!breakers.empty() && !tokenizer)
    fail("value", "sampler: dry_sequence_breakers are texts: give the tokenizer that has tokens for them");
  if (!breakers.empty() && options.dry.multiplier > 0) options.dry.breakers = sequence_breakers(*tokenizer, breakers);
  options.top_n_sigma = opt.get("top_n_sigma", options.top_n_sigma);
  options.xtc_probability = opt.get("xtc_probability", options.xtc_probability);
  options.xtc_threshold = opt.get("xtc_threshold", options.xtc_threshold);
  options.mirostat = opt.get("mirostat", options.mirostat);
  options.mirostat_tau = opt.get("mirostat_tau", options.mirostat_tau);
  options.mirostat_eta = opt.get("mirostat_eta", options.mirostat_eta);
  return call.push(std::make_shared<TokenSampler>(options));
}

// The largest logits of a row, as on_host() copied them.
TopLogits top_logits(const lua::Options& opt, const TensorPtr& logits) {
  const auto values = opt.get("top", TensorPtr{}), tokens = opt.get("top_ids", TensorPtr{});
  if (!values || !tokens) return {};
  const View &v = values->view, &t = tokens->view;
  if (v.dtype != DType::f32 || t.dtype != DType::i32 || v.elements() != t.elements() ||
      !values->device().backend().host_memory() || !tokens->device().backend().host_memory())
    fail("value", "sampler: top is ", shape_text(v), " and top_ids ", shape_text(t),
         "; expected f32 and i32 of one length, in the host's memory");
  const auto count = static_cast<size_t>(v.elements());
  const int64_t vocab = logits->view.columns();
  const TopLogits top{{v.as<float>(), count}, {t.as<int32_t>(), count}, vocab};
  for (const int32_t token : top.tokens)
    if (token < 0 || token >= vocab)
      fail("value", "sampler: top_ids has ", token, ", and there are ", vocab, " logits");
  return top;
}

int next(Call& call) {
  const auto self = call.self<TokenSampler>();
  const auto logits = call.arg<TensorPtr>(1);
  const lua::Options opt(call, 2, {"mask", "top", "top_ids"});
  const auto mask = opt.get("mask", std::shared_ptr<const TokenMask>{});
  if (const auto token = self->next_of_top(top_logits(opt, logits), mask.get())) return call.push(*token);
  std::vector<std::byte> host;
  const View last = downloaded(logits, logits->view.rank == 2 ? logits->view.shape[0] - 1 : 0, 1, host);
  return call.push(self->next(last, mask.get()));
}

int distribution(Call& call) {
  const auto self = call.self<TokenSampler>();
  const auto logits = call.arg<TensorPtr>(1);
  const auto mask = lua::Options(call, 2, {"mask"}).get("mask", std::shared_ptr<const TokenMask>{});
  std::vector<std::byte> host;
  const auto all = self->distribution(
      downloaded(logits, logits->view.rank == 2 ? logits->view.shape[0] - 1 : 0, 1, host), mask.get());
  lua_State* L = call.L;
  lua_createtable(L, static_cast<int>(all.size()), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    lua_createtable(L, 0, 2);
    lua::set_field(L, "id", all[i].first);
    lua::set_field(L, "p", all[i].second);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  return 1;
}

int needs_all(Call& call) { return call.push(call.self<TokenSampler>()->needs_all()); }

int accept(Call& call) {
  call.self<TokenSampler>()->accept(call.arg<int32_t>(1));
  return 0;
}

int prompt(Call& call) {
  const auto self = call.self<TokenSampler>();
  for (const int32_t token : call.arg<std::vector<int32_t>>(1)) self->accept_prompt(token);
  return 0;
}

int clone(Call& call) { return call.push(std::make_shared<TokenSampler>(*call.self<TokenSampler>())); }

int token_logprobs(Call& call) {
  const auto logits = call.arg<TensorPtr>(1);
  auto tokens = call.arg<std::vector<int32_t>>(2);
  const int64_t k = lua::Options(call, 3, {"top"}).get("top", int64_t{0});
  std::vector<std::byte> host;
  const std::vector<RowLogprobs> rows =
      logprobs(downloaded(logits, 0, logits->view.rank == 2 ? logits->view.shape[0] : 1, host), tokens, k);
  lua_State* L = call.L;
  lua_createtable(L, static_cast<int>(rows.size()), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    lua_createtable(L, 0, 3);
    if (tokens[i] >= 0) lua::set_field(L, "id", tokens[i]), lua::set_field(L, "logprob", rows[i].logprob);
    if (k > 0) {
      lua_createtable(L, static_cast<int>(rows[i].top.size()), 0);
      for (size_t j = 0; j < rows[i].top.size(); ++j) {
        lua_createtable(L, 0, 2);
        lua::set_field(L, "id", rows[i].top[j].token);
        lua::set_field(L, "logprob", rows[i].top[j].logprob);
        lua_rawseti(L, -2, static_cast<int>(j) + 1);
      }
      lua_setfield(L, -2, "top");
    }
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  return 1;
}

int compare(Call& call) {
  const auto reference = call.arg<TensorPtr>(1), logits = call.arg<TensorPtr>(2);
  const auto all = [](const TensorPtr& tensor) { return tensor->view.rank == 2 ? tensor->view.shape[0] : 1; };
  std::vector<std::byte> host_a, host_b;
  const std::vector<RowDifference> rows =
      compare_logits(downloaded(reference, 0, all(reference), host_a), downloaded(logits, 0, all(logits), host_b));
  std::vector<double> divergence;
  int64_t same = 0;
  for (const RowDifference& row : rows) divergence.push_back(row.divergence), same += row.same_top;
  return call.push(divergence, same);
}
}  // namespace

void register_sampler(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"sampler", fn<sampler>}});
  lua::functions(L, "logits", {{"logprobs", fn<token_logprobs>}, {"compare", fn<compare>}, {"on_host", fn<on_host>}});
  lua::methods<TokenSampler>(L, {{"next", fn<next>},
                                 {"distribution", fn<distribution>},
                                 {"_needs_all", fn<needs_all>},
                                 {"accept", fn<accept>},
                                 {"prompt", fn<prompt>},
                                 {"clone", fn<clone>}});
}

}  // namespace qeng
