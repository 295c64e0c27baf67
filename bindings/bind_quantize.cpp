// Block formats: packing weights, the int4 of AWQ and GPTQ, and what quantizing needs to know.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/quantize/measure.h"
#include "engine/quantize/nf4.h"
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

int decode(Call& call) {
  Options opt(
      call, 1,
      {"codes", "map", "absmax", "nested_map", "nested_absmax", "nested_offset", "block", "nested_block", "name"});
  Nf4 packed{opt.get<TensorPtr>("codes"), opt.get<TensorPtr>("map", nullptr), opt.get<TensorPtr>("absmax", nullptr),
             opt.get<TensorPtr>("nested_map", nullptr), opt.get<TensorPtr>("nested_absmax", nullptr)};
  packed.nested_offset = opt.get("nested_offset", 0.0);
  packed.block = opt.get("block", packed.block), packed.nested_block = opt.get("nested_block", packed.nested_block);
  packed.name = opt.get<std::string>("name", "nf4");
  const Shape shape = call.arg<Shape>(2);
  if (shape.size() != 2) call.bad_argument(2, "[out, in] expected");
  return call.push(decode_nf4(packed, shape[0], shape[1], call.arg<DType>(3)));
}

int add_squares(Call& call) {
  add_column_squares(*call.arg<TensorPtr>(1), *call.arg<TensorPtr>(2));
  return 0;
}

int error(Call& call) {
  const SquaredError sums = squared_error(call.arg<TensorPtr>(1), call.arg<TensorPtr>(2));
  return call.push(sums.error, sums.total);
}

}  // namespace

void register_quantize(lua_State* L) {
  lua::functions(L, "",
                 {{"quantize", lua::fn<pack>}, {"repack_int4", lua::fn<repack>}, {"decode_nf4", lua::fn<decode>}});
  lua::functions(L, "quant", {{"add_column_squares", lua::fn<add_squares>}, {"squared_error", lua::fn<error>}});
}

}  // namespace qeng
