// Tensor:view(): the values of a tensor in host memory, element by element, every index checked.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {
struct TensorView {
  TensorPtr tensor;  // keeps the memory
};
}  // namespace
}  // namespace qeng

QENG_LUA_CLASS(qeng::TensorView, "TensorView")

namespace qeng {
namespace {
using lua::Call;

int view(Call& call) {
  const TensorPtr tensor = lua::self_tensor(call);
  const DType dtype = tensor->view.dtype;
  if (dtype != DType::f32 && dtype != DType::i32)
    fail("dtype", "Tensor:view: ", shape_text(tensor->view), ", expected f32 or i32");
  if (!tensor->device().backend().host_memory())
    fail("unsupported", "Tensor:view: the tensor is not in host memory; use :table()");
  if (tensor->device().capturing())
    fail("value",
         "Tensor:view: a program that is being captured has no values yet: look at them after run(), or do without "
         "capturing");
  return call.push(std::make_shared<TensorView>(TensorView{tensor}));
}

// The element of argument 2, an index from 0.
int64_t element(const Call& call, const View& view) {
  const auto i = call.arg<int64_t>(2);
  if (i < 0 || i >= view.elements()) fail("value", "view: index ", i, " is outside [0, ", view.elements(), ")");
  return i;
}

int get(Call& call) {
  const View& view = call.arg<std::shared_ptr<TensorView>>(1)->tensor->view;
  const int64_t i = element(call, view);
  return view.dtype == DType::f32 ? call.push(view.as<float>()[i]) : call.push(view.as<int32_t>()[i]);
}

int set(Call& call) {
  const auto held = call.arg<std::shared_ptr<TensorView>>(1);
  require_writable(*held->tensor, "view");
  const View& view = held->tensor->view;
  const int64_t i = element(call, view);
  held->tensor->device().before_write(&view);
  if (view.dtype == DType::f32)
    view.as<float>()[i] = call.arg<float>(3);
  else
    view.as<int32_t>()[i] = call.arg<int32_t>(3);
  tape_of(call, held->tensor).wrote(held->tensor);
  return 0;
}

int length(Call& call) { return call.push(call.arg<std::shared_ptr<TensorView>>(1)->tensor->view.elements()); }
}  // namespace

void register_view(lua_State* L) {
  using lua::fn;
  lua::methods<Tensor>(L, {{"view", fn<view>}});
  lua::methods<TensorView>(L, {{"__index", fn<get>}, {"__newindex", fn<set>}, {"__len", fn<length>}});
}

}  // namespace qeng
