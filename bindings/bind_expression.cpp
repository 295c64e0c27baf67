// Arithmetic on tensors: each function gives a pending tensor, computed with what it is part of (engine/autograd/
// expression.h). qeng.algebra, in Lua, has what is made of these.
#include <algorithm>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/autograd/expression.h"
#include "engine/autograd/functions.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

using lua::Call;

TensorPtr self(const Call& call, int index = 1) {
  try {
    return lua::pending_tensor(call.L, index);
  } catch (const lua::Problem& problem) {
    fail("value", call.name, ": ", problem.text);
  }
}

// Argument `index` of the stack, a tensor as it is or a number.
Operand operand(const Call& call, int index) {
  if (lua_type(call.L, index) == LUA_TNUMBER) return {nullptr, static_cast<float>(lua_tonumber(call.L, index))};
  if (lua_isboolean(call.L, index)) return {nullptr, lua_toboolean(call.L, index) ? 1.0f : 0.0f};
  if (!lua::is_class(call.L, index, "Tensor"))
    fail("value", call.name, ": Tensor or number expected, got ", lua::type_text(call.L, index));
  return {self(call, index)};
}

template <Fn fn>
int function(Call& call) {
  constexpr int kOperands = operands_of(fn);
  std::vector<Operand> operands;
  for (int i = 1; i <= kOperands; ++i) operands.push_back(operand(call, i));
  const Tensor* tensors[3] = {};
  for (int i = 0; i < kOperands; ++i) tensors[i] = operands[static_cast<size_t>(i)].tensor.get();
  Device& device = device_of(call, {tensors[0], tensors[1], tensors[2]});
  return call.push(pointwise(device.runtime()->tape(), fn, operands));
}

// a > b is b < a.
template <Fn fn>
int turned(Call& call) {
  lua_settop(call.L, 2);
  lua_insert(call.L, 1);
  return function<fn>(call);
}

// Tensor:_sum(dims): dimensions from 0; they stay, as 1.
int sum_dims(Call& call) {
  const TensorPtr x = self(call);
  const auto dims = call.arg<std::vector<int>>(1);
  for (const int d : dims)
    if (d < 0 || d >= x->view.rank) fail("shape", "sum: there is no dimension ", d + 1, " of ", shape_text(x->view));
  return call.push(sum(tape_of(call, x), x, dims));
}

bool has_shape(const View& a, const View& b) {
  return std::equal(a.shape, a.shape + a.rank, b.shape, b.shape + b.rank);
}
bool broadcasts(const View& from, const View& to) {
  if (from.rank > to.rank) return false;
  return std::equal(from.shape, from.shape + from.rank, to.shape + (to.rank - from.rank),
                    [](int64_t a, int64_t b) { return a == b || a == 1; });
}

int set_first(Call& call, const TensorPtr& x) {
  const auto values = call.arg<std::vector<double>>(1);
  const auto count = static_cast<int64_t>(values.size());
  if (count > x->view.elements()) fail("shape", "set: ", count, " values for ", shape_text(x->view));
  if (count) {
    const TensorPtr written = row_range(reshape_view(x, {x->view.elements()}), 0, count);
    from_host(*written, values.data(), values.size());
    tape_of(call, x).wrote(written);
  }
  lua_settop(call.L, 1);
  return 1;
}

// Tensor:set(values): the first elements from a list; or all, from a number or a tensor that broadcasts to the shape.
int set(Call& call) {
  const TensorPtr x = lua::self_tensor(call);
  require_writable(*x, "set");
  if (lua_istable(call.L, 2)) return set_first(call, x);
  const auto [values, number] = operand(call, 2);
  Tape& tape = tape_of(call, x);
  if (tape.recording() &&
      (tape.flows(*x) || (values && (values->pending ? values->pending->records : values->needs_grad()))))
    fail("state",
         "set: gradients flow through this tensor or its new values, and would be lost: make them, and call set, in a "
         "function given to q.no_grad");
  const Tape::Recording off(tape, false);
  if (!values) {
    fill(*x, lua_isboolean(call.L, 2) ? number : lua_tonumber(call.L, 2));
  } else if (has_shape(values->view, x->view)) {
    if (!settle_into(values, x)) copy_into(*x, *settled(values));
  } else {
    if (!broadcasts(values->view, x->view))
      fail("shape", "set of ", shape_text(x->view), " to ", shape_text(values->view),
           ": from the last dimension on they have to agree, or the new values' to be 1");
    copy_into(*x, *settled(pointwise(tape, Fn::where, {{nullptr, 1}, {values}, {x}})));
  }
  tape.wrote(x);
  lua_settop(call.L, 1);
  return 1;
}

int compute(Call& call) {
  lua::self_tensor(call);
  lua_settop(call.L, 1);
  return 1;
}

int is_pending(Call& call) { return call.push(self(call)->pending != nullptr); }

}  // namespace

void register_expression(lua_State* L) {
  using namespace lua;
  methods<Tensor>(L, {{"__unm", fn<function<Fn::neg>>},
                      {"__add", fn<function<Fn::add>>},
                      {"__sub", fn<function<Fn::sub>>},
                      {"__mul", fn<function<Fn::mul>>},
                      {"__div", fn<function<Fn::div>>},
                      {"__pow", fn<function<Fn::pow>>},
                      {"abs", fn<function<Fn::abs>>},
                      {"sign", fn<function<Fn::sign>>},
                      {"exp", fn<function<Fn::exp>>},
                      {"expm1", fn<function<Fn::expm1>>},
                      {"log", fn<function<Fn::log>>},
                      {"log1p", fn<function<Fn::log1p>>},
                      {"sqrt", fn<function<Fn::sqrt>>},
                      {"rsqrt", fn<function<Fn::rsqrt>>},
                      {"sin", fn<function<Fn::sin>>},
                      {"cos", fn<function<Fn::cos>>},
                      {"tanh", fn<function<Fn::tanh>>},
                      {"erf", fn<function<Fn::erf>>},
                      {"sigmoid", fn<function<Fn::sigmoid>>},
                      {"minimum", fn<function<Fn::min>>},
                      {"maximum", fn<function<Fn::max>>},
                      {"lt", fn<function<Fn::less>>},
                      {"le", fn<function<Fn::less_equal>>},
                      {"gt", fn<turned<Fn::less>>},
                      {"ge", fn<turned<Fn::less_equal>>},
                      {"eq", fn<function<Fn::equal>>},
                      {"ne", fn<function<Fn::not_equal>>},
                      {"_where", fn<function<Fn::where>>},
                      {"_row_max", fn<function<Fn::row_max>>},
                      {"_row_min", fn<function<Fn::row_min>>},
                      {"_sum", fn<sum_dims>},
                      {"set", fn<set>},
                      {"compute", fn<compute>},
                      {"is_pending", fn<is_pending>}});
  push_core(L);
  push_class(L, ClassName<Tensor>::value, &collect<Tensor>);
  lua_getfield(L, -1, "__methods");
  lua_setfield(L, -3, "Tensor");
  lua_pop(L, 2);
}

}  // namespace qeng
