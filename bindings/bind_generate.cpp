// The operations of inference, which record no gradient, and the page pool of a KV cache.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/generate/carried_step.h"
#include "engine/generate/logprobs.h"
#include "engine/generate/page_pool.h"
#include "kernels/view_text.h"

QENG_LUA_CLASS(qeng::PagePool, "PagePool")
QENG_LUA_CLASS(qeng::CarriedStep, "CarriedStep")

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

// ---------------------------------------------------------------- operations

// The tensors of option `key`, a list that may have holes, as views, of the runtime of x; they are alive as long as
// Lua's are.
std::vector<View> views_of(Call& call, const TensorPtr& x, const Options& opt, const char* key, size_t count) {
  std::vector<View> views;
  if (!opt.has(key)) return views;
  opt.push(key);
  const int table = lua_gettop(call.L);
  if (!lua_istable(call.L, table))
    fail("value", call.name, ": ", key, ": list of tensors expected, got ", lua::type_text(call.L, table));
  bool any = false;
  for (size_t i = 1; i <= count; ++i) {
    lua_rawgeti(call.L, table, static_cast<int>(i));
    try {
      const bool present = !lua_isnil(call.L, -1) && !(lua_isboolean(call.L, -1) && !lua_toboolean(call.L, -1));
      const TensorPtr tensor = present ? lua::Value<TensorPtr>::read(call.L, lua_gettop(call.L)) : nullptr;
      device_of(call, x, tensor);
      views.push_back(present ? tensor->view : View());
      any = any || present;
    } catch (const lua::Problem& problem) {
      fail("value", call.name, ": ", key, ": element ", i, ": ", problem.text);
    }
    lua_pop(call.L, 1);
  }
  lua_pop(call.L, 1);
  return any ? views : std::vector<View>();
}

int row_linear(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1);
  const std::vector<TensorPtr> weights = call.arg<std::vector<TensorPtr>>(2);
  Options opt(call, 3, {"bias", "scale", "out", "alpha", "into"});
  const DType out = opt.get<DType>("out", x->view.dtype);
  Device& device = device_of(call, x);
  RowLinear op{.x = x->view,
               .scale = views_of(call, x, opt, "scale", weights.size()),
               .bias = views_of(call, x, opt, "bias", weights.size()),
               .alpha = opt.get<float>("alpha", 1)};
  std::vector<TensorPtr> results;
  if (opt.has("into")) {
    results = opt.get<std::vector<TensorPtr>>("into");
    op.acc = true;
  }
  for (const TensorPtr& w : weights) {
    device_of(call, x, w);
    op.w.push_back(w->view);
    if (op.acc) continue;
    Shape shape(x->view.shape, x->view.shape + x->view.rank);
    if (shape.empty() || w->view.rank != 2)
      fail("shape", call.name, ": x is ", shape_text(x->view), ", w is ", shape_text(w->view),
           "; expected rows and [out, in]");
    shape.back() = w->view.shape[0];
    results.push_back(make_tensor(device, shape, out));
  }
  for (const TensorPtr& y : results) device_of(call, x, y), op.y.push_back(y->view);
  device.run(op);
  return call.push(results);
}

View view_of(const TensorPtr& tensor) { return tensor ? tensor->view : View(); }

int kv_store(Call& call) {
  const TensorPtr keys = call.arg<TensorPtr>(1), values = call.arg<TensorPtr>(2, nullptr),
                  slots = call.arg<TensorPtr>(3), key_pool = call.arg<TensorPtr>(4),
                  value_pool = call.arg<TensorPtr>(5, nullptr), key_levels = call.arg<TensorPtr>(6, nullptr),
                  value_levels = call.arg<TensorPtr>(7, nullptr);
  device_of(call, keys, values, slots, key_pool, value_pool, key_levels, value_levels)
      .run(KvStore{keys->view, view_of(values), slots->view, key_pool->view, view_of(value_pool), view_of(key_levels),
                   view_of(value_levels)});
  return 0;
}

int copy_pages(Call& call) {
  const TensorPtr pool = call.arg<TensorPtr>(1), pairs = call.arg<TensorPtr>(2);
  device_of(call, pool, pairs).run(CopyPages{pool->view, pairs->view, call.arg<int>(3)});
  return 0;
}

int head_linear(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1), w = call.arg<TensorPtr>(2), bias = call.arg<TensorPtr>(3, nullptr),
                  signs = call.arg<TensorPtr>(4, nullptr);
  Device& device = device_of(call, x, w, bias, signs);
  if (x->view.rank != 3) fail("shape", call.name, ": x is ", shape_text(x->view), ", expected [tokens, heads, dim]");
  const TensorPtr y = make_tensor(device, {x->view.shape[0], x->view.shape[1], w->view.columns()}, x->view.dtype);
  device.run(HeadLinear{x->view, w->view, view_of(bias), y->view, view_of(signs)});
  return call.push(y);
}

int bytes(Call& call) { return call.push(byte_view(call.arg<TensorPtr>(1))); }

int paged_attention(Call& call) {
  const TensorPtr query = call.arg<TensorPtr>(1), keys = call.arg<TensorPtr>(2), values = call.arg<TensorPtr>(3);
  Options opt(call, 4,
              {"pages", "cu_q", "lengths", "page_tokens", "scale", "window", "softcap", "sinks", "value_dim",
               "key_levels", "value_levels", "exact"});
  const auto tensor = [&](Options& from, const char* key) { return from.get<TensorPtr>(key, nullptr); };
  const auto pages = opt.get<TensorPtr>("pages"), cu_q = opt.get<TensorPtr>("cu_q"),
             lengths = opt.get<TensorPtr>("lengths"), sinks = tensor(opt, "sinks"),
             key_levels = tensor(opt, "key_levels"), value_levels = tensor(opt, "value_levels");
  Device& device = device_of(call, query, keys, values, pages, cu_q, lengths, sinks, key_levels, value_levels);
  if (query->view.rank != 3)
    fail("shape", call.name, ": query is ", shape_text(query->view), ", expected [tokens, heads, head_dim]");
  const int64_t value_dim = opt.get<int64_t>("value_dim", values->view.columns());
  const TensorPtr mixed =
      make_tensor(device, {query->view.shape[0], query->view.shape[1], value_dim}, query->view.dtype);
  PagedAttention op{query->view,
                    keys->view,
                    values->view,
                    pages->view,
                    cu_q->view,
                    lengths->view,
                    mixed->view,
                    opt.get<float>("scale", 1.0f / std::sqrt(static_cast<float>(query->view.columns()))),
                    opt.get<int>("window", 0),
                    opt.get<int>("page_tokens"),
                    view_of(sinks),
                    opt.get<float>("softcap", 0),
                    view_of(key_levels),
                    view_of(value_levels)};
  TensorPtr exact_keys, exact_values, exact_pages;
  if (opt.has("exact")) {
    opt.push("exact");
    Options exact(call, lua_gettop(call.L), {"keys", "values", "pages", "first", "last"});
    exact_keys = tensor(exact, "keys"), exact_values = tensor(exact, "values");
    exact_pages = exact.get<TensorPtr>("pages");
    device_of(call, query, exact_keys, exact_values, exact_pages);
    op.k_exact = view_of(exact_keys), op.v_exact = view_of(exact_values), op.exact = exact_pages->view;
    op.exact_first = exact.get<int>("first"), op.exact_last = exact.get<int>("last");
  }
  device.run(op);
  return call.push(mixed);
}

// token_logprobs(logits, id, k): the log-probability of the token under the last row, and {{id =, logprob =}...} of the
// k likeliest.
int one_logprob(Call& call) {
  const TensorPtr logits = call.arg<TensorPtr>(1);
  const int64_t rows = logits->view.rows();
  const std::vector<float> row =
      to_host_f32(*row_range(reshape_view(logits, {rows, logits->view.columns()}), rows - 1, 1));
  const View view(const_cast<float*>(row.data()), DType::f32, {logits->view.columns()});
  const auto token = call.arg<int32_t>(2);
  if (token < 0) fail("value", call.name, ": token ", token, " is outside the ", view.columns(), " logits");
  const RowLogprobs result = logprobs(view, std::vector<int32_t>{token}, call.arg<int64_t>(3, 0))[0];
  call.push(result.logprob);
  lua_createtable(call.L, static_cast<int>(result.top.size()), 0);
  for (size_t i = 0; i < result.top.size(); ++i) {
    lua_newtable(call.L);
    lua::set_field(call.L, "id", result.top[i].token);
    lua::set_field(call.L, "logprob", result.top[i].logprob);
    lua_rawseti(call.L, -2, static_cast<int>(i) + 1);
  }
  return 2;
}

// ---------------------------------------------------------------- page pool

int page_pool(Call& call) {
  Options opt(call, 1, {"pages", "page_tokens", "remember", "exact_pages", "exact_first", "exact_last"});
  const ExactTokens exact{opt.get<int64_t>("exact_first", 0), opt.get<int64_t>("exact_last", 0)};
  return call.push(std::make_shared<PagePool>(opt.get<int64_t>("pages"), opt.get<int>("page_tokens", 16),
                                              opt.get("remember", true), exact, opt.get<int64_t>("exact_pages", 0)));
}

// Elements first .. last of the array of ids at an argument, 1 .. its length by default.
std::vector<int32_t> ids_of(Call& call, int argument) {
  const int table = call.index(argument);
  if (!lua_istable(call.L, table))
    call.bad_argument(argument, "list of token ids expected, got " + lua::type_text(call.L, table));
  const int first = call.arg<int>(argument + 1, 1),
            last = call.arg<int>(argument + 2, static_cast<int>(lua_objlen(call.L, table)));
  std::vector<int32_t> ids;
  for (int i = first; i <= last; ++i) {
    lua_rawgeti(call.L, table, i);
    try {
      ids.push_back(lua::Value<int32_t>::read(call.L, lua_gettop(call.L)));
    } catch (const lua::Problem& problem) {
      call.bad_argument(argument, "element " + std::to_string(i) + ": " + problem.text);
    }
    lua_pop(call.L, 1);
  }
  return ids;
}

int open(Call& call) { return call.push(call.self<PagePool>()->open(call.arg<int64_t>(1, 0))); }
int reuse(Call& call) { return call.push(call.self<PagePool>()->reuse(call.arg<int64_t>(1), ids_of(call, 2))); }
int extend(Call& call) { return call.push(call.self<PagePool>()->extend(call.arg<int64_t>(1), ids_of(call, 2))); }
int length(Call& call) { return call.push(call.self<PagePool>()->length(call.arg<int64_t>(1))); }
int fork(Call& call) { return call.push(call.self<PagePool>()->fork(call.arg<int64_t>(1))); }
int commit(Call& call) { return call.self<PagePool>()->commit(call.arg<int64_t>(1)), 0; }
int truncate(Call& call) { return call.self<PagePool>()->truncate(call.arg<int64_t>(1), call.arg<int64_t>(2)), 0; }
int close(Call& call) { return call.self<PagePool>()->close(call.arg<int64_t>(1)), 0; }
int forget(Call& call) {
  if (call.has(1)) return call.push(call.self<PagePool>()->forget_of(call.arg<int64_t>(1)));
  return call.self<PagePool>()->forget(), 0;
}
int pages(Call& call) { return call.push(call.self<PagePool>()->pages_of(call.arg<int64_t>(1))); }

int exact_pages(Call& call) {
  const auto pool = call.self<PagePool>();
  std::vector<int32_t> list = pool->pages_of(call.arg<int64_t>(1));
  for (int32_t& page : list) page = pool->exact().of(page);
  return call.push(list);
}
int drop_exact(Call& call) {
  return call.self<PagePool>()->drop_exact(call.arg<int64_t>(1), call.arg<int64_t>(2) - 1), 0;
}

// The pairs of pages to copy, and those of exact pages; each nil where there are none.
int copies(Call& call) {
  for (const std::vector<int32_t>& pairs : {call.self<PagePool>()->copies(), call.self<PagePool>()->exact_copies()})
    pairs.empty() ? lua_pushnil(call.L) : static_cast<void>(call.push(pairs));
  return 2;
}
int reachable(Call& call) {
  return call.push(call.self<PagePool>()->reachable(call.arg<int64_t>(1), call.arg<int64_t>(2)));
}

int stats(Call& call) {
  const auto pool = call.self<PagePool>();
  lua_newtable(call.L);
  lua::set_field(call.L, "pages", pool->pages());
  lua::set_field(call.L, "page_tokens", pool->page_tokens());
  lua::set_field(call.L, "used", pool->pages() - pool->available());
  lua::set_field(call.L, "remembered", pool->remembered());
  lua::set_field(call.L, "sequences", pool->sequences());
  lua::set_field(call.L, "exact_pages", pool->exact().count());
  lua::set_field(call.L, "exact_used", pool->exact().used());
  return 1;
}

int beginnings(Call& call) {
  const std::vector<PagePool::Beginning> found = call.self<PagePool>()->beginnings();
  lua_createtable(call.L, static_cast<int>(found.size()), 0);
  for (size_t i = 0; i < found.size(); ++i) {
    lua_newtable(call.L);
    if (found[i].salt >= 0) lua::set_field(call.L, "salt", found[i].salt);
    lua::set_field(call.L, "pages", found[i].pages);
    lua::set_field(call.L, "longest", found[i].longest);
    lua::set_field(call.L, "used", found[i].used);
    lua::set_field(call.L, "reused", found[i].reused);
    lua_rawseti(call.L, -2, static_cast<int>(i) + 1);
  }
  return 1;
}

int available(Call& call) { return call.push(call.self<PagePool>()->available()); }

Options step_tensors(Call& call) {
  return Options(
      call, 1, {"tokens", "positions", "slots", "cu_q", "lengths", "pages", "before", "after", "exact_slots", "exact"});
}

// The last counts[i] tokens of sequence ids[i]: lists at this argument and the next.
std::vector<PagePool::Part> parts_of(Call& call, int argument) {
  const auto ids = call.arg<std::vector<int64_t>>(argument), counts = call.arg<std::vector<int64_t>>(argument + 1);
  if (ids.size() != counts.size())
    fail("value", call.name, ": ", ids.size(), " sequences and ", counts.size(), " counts");
  std::vector<PagePool::Part> parts;
  for (size_t i = 0; i < ids.size(); ++i) parts.push_back({ids[i], counts[i]});
  return parts;
}

void put_rows(Call& call, const Options& to, const PagePool::Rows& rows) {
  const auto put = [&](const char* key, const std::vector<int32_t>& values) {
    const TensorPtr tensor = to.get<TensorPtr>(key);
    if (tensor->view.dtype != DType::i32 || tensor->view.elements() != static_cast<int64_t>(values.size()))
      fail("shape", call.name, ": ", key, " is ", shape_text(tensor->view), ", expected ", values.size(),
           " elements of i32");
    if (!values.empty()) from_host_i32(*tensor, values.data(), values.size());
  };
  put("tokens", rows.tokens), put("positions", rows.positions), put("slots", rows.slots);
  put("cu_q", rows.cu_q), put("lengths", rows.lengths), put("pages", rows.pages);
  if (to.has("before")) put("before", rows.before), put("after", rows.after);
  if (to.has("exact")) put("exact", rows.exact), put("exact_slots", rows.exact_slots);
}

// Writes a step into its tensors, whose sizes say how much is padding: the last counts[i] tokens of sequence ids[i].
int fill(Call& call) {
  const auto pool = call.self<PagePool>();
  const Options to = step_tensors(call);
  const TensorPtr tokens = to.get<TensorPtr>("tokens"), lengths = to.get<TensorPtr>("lengths"),
                  pages = to.get<TensorPtr>("pages");
  const int64_t most = pages->view.rank == 2 ? pages->view.shape[1] : 0;
  put_rows(call, to, pool->rows(parts_of(call, 2), tokens->view.elements(), lengths->view.elements(), most));
  return 0;
}

// ---------------------------------------------------------------- a step for another process

// pack(ids, counts, {most =, ranges = {salt, first, count, ...}, copies =, exact_copies =})
int pack(Call& call) {
  const auto pool = call.self<PagePool>();
  const std::vector<PagePool::Part> parts = parts_of(call, 1);
  Options opt(call, 3, {"most", "ranges", "copies", "exact_copies"});
  CarriedStep step;
  step.most = opt.get<int64_t>("most");
  int64_t rows = 0;
  for (const PagePool::Part& part : parts) rows += part.count;
  step.rows = pool->rows(parts, rows, static_cast<int64_t>(parts.size()), step.most);
  const auto ranges = opt.get<std::vector<int32_t>>("ranges");
  for (size_t i = 0; i + 2 < ranges.size(); i += 3) step.ranges.push_back({ranges[i], ranges[i + 1], ranges[i + 2]});
  step.copies = opt.get("copies", step.copies), step.exact_copies = opt.get("exact_copies", step.exact_copies);
  return call.push(pack_step(step));
}

// The shape of a step and its copies, as q.pages.unpack documents them; the step itself fills tensors.
int unpack(Call& call) {
  Options opt(call, 2, {"pages", "exact_pages", "page_tokens", "rows", "sequences", "positions"});
  const CarriedLimits limits{opt.get<int64_t>("pages"),       opt.get<int64_t>("exact_pages"),
                             opt.get<int64_t>("page_tokens"), opt.get<int64_t>("rows"),
                             opt.get<int64_t>("sequences"),   opt.get<int64_t>("positions")};
  const auto step = std::make_shared<CarriedStep>(unpack_step(call.arg<std::string>(1), limits));
  lua_State* L = call.L;
  call.push(step);
  lua_newtable(L);
  lua::set_field(L, "rows", static_cast<int64_t>(step->rows.slots.size()));
  lua::set_field(L, "count", static_cast<int64_t>(step->rows.lengths.size()));
  lua::set_field(L, "most", step->most);
  lua_createtable(L, static_cast<int>(step->ranges.size()), 0);
  for (size_t i = 0; i < step->ranges.size(); ++i) {
    lua_newtable(L);
    lua::set_field(L, "salt", step->ranges[i].salt);
    lua::set_field(L, "first", step->ranges[i].first);
    lua::set_field(L, "count", step->ranges[i].count);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  lua_setfield(L, -2, "ranges");
  lua_createtable(L, static_cast<int>(step->rows.lengths.size()), 0);
  for (size_t i = 0; i < step->rows.lengths.size(); ++i) {
    const int32_t first = step->rows.cu_q[i], count = step->rows.cu_q[i + 1] - first;
    lua_newtable(L);
    lua::set_field(L, "first", first);
    lua::set_field(L, "count", count);
    lua::set_field(L, "position", step->rows.lengths[i] - count);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  lua_setfield(L, -2, "spans");
  for (const auto& [key, pairs] : {std::pair{"copies", &step->copies}, std::pair{"exact_copies", &step->exact_copies}})
    if (!pairs->empty()) call.push(*pairs), lua_setfield(L, -2, key);
  return 2;
}

int fill_carried(Call& call) {
  const Options to = step_tensors(call);
  put_rows(call, to, call.self<CarriedStep>()->rows);
  return 0;
}

}  // namespace

void register_generate(lua_State* L) {
  using namespace lua;
  functions(L, "", {{"row_linear", fn<row_linear>}});
  functions(L, "pages",
            {{"kv_store", fn<kv_store>},
             {"copy_pages", fn<copy_pages>},
             {"bytes", fn<bytes>},
             {"head_linear", fn<head_linear>},
             {"paged_attention", fn<paged_attention>},
             {"pool", fn<page_pool>},
             {"unpack", fn<unpack>}});
  methods<CarriedStep>(L, {{"fill", fn<fill_carried>}});
  functions(L, "logits", {{"token_logprobs", fn<one_logprob>}});
  methods<PagePool>(L, {{"open", fn<open>},
                        {"reuse", fn<reuse>},
                        {"extend", fn<extend>},
                        {"length", fn<length>},
                        {"fork", fn<fork>},
                        {"commit", fn<commit>},
                        {"truncate", fn<truncate>},
                        {"close", fn<close>},
                        {"forget", fn<forget>},
                        {"pages", fn<pages>},
                        {"exact_pages", fn<exact_pages>},
                        {"drop_exact", fn<drop_exact>},
                        {"copies", fn<copies>},
                        {"reachable", fn<reachable>},
                        {"stats", fn<stats>},
                        {"beginnings", fn<beginnings>},
                        {"available", fn<available>},
                        {"fill", fn<fill>},
                        {"pack", fn<pack>}});
}

}  // namespace qeng
