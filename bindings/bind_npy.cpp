// q.save_npy and q.load_npy: single arrays as NumPy keeps them. scripts/qeng/tensor_files.lua tells what was converted.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/formats/npy.h"
#include "engine/stream/spilled_file.h"

namespace qeng {
namespace {
using lua::Call;

int save(Call& call) {
  const auto path = call.arg<std::string>(1);
  const auto x = call.arg<TensorPtr>(2);
  std::vector<std::byte> host(x->view.bytes());
  read_bytes(*x, host.data());
  drop_spilled(*x);
  write_npy(path, Shape(x->view.shape, x->view.shape + x->view.rank), x->view.dtype, host.data());
  return 0;
}

// The tensor, and what became of a dtype that is not the engine's.
int load(Call& call) {
  const NpyArray array = read_npy(call.arg<std::string>(1));
  const TensorPtr x = make_tensor(device(), array.shape, array.dtype);
  write_bytes(*x, array.data.data());
  return call.push(x, array.remark);
}
}  // namespace

void register_npy(lua_State* L) { lua::functions(L, "", {{"save_npy", lua::fn<save>}, {"load_npy", lua::fn<load>}}); }

}  // namespace qeng
