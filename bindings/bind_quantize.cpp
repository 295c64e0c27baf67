// Block formats: packing weights, and the int4 of AWQ and GPTQ.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/quantize/packed_int4.h"
#include "engine/quantize/quantize.h"

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

int pack(Call& call) {
  Options opt(call, 3, {"importance"});
  return call.push(quantize(call.arg<TensorPtr>(1), call.arg<DType>(2), opt.get<TensorPtr>("importance", nullptr)));
}

int repack(Call& call) {
  const std::string layout = call.arg<std::string>(1);
  Options opt(call, 2, {"qweight", "qzeros", "scales", "g_idx", "name"});
  PackedInt4 packed{opt.get<TensorPtr>("qweight"), opt.get<TensorPtr>("qzeros"), opt.get<TensorPtr>("scales"),
                    opt.get<TensorPtr>("g_idx", nullptr), opt.get<std::string>("name", "int4")};
  return call.push(repack_int4(packed, int4_layout_from_name(layout)));
}

}  // namespace

void register_quantize(lua_State* L) { lua::functions(L, "", {{"quantize", lua::fn<pack>}, {"repack_int4", lua::fn<repack>}}); }

}  // namespace qeng
