// What the functions that open and write files of weights have in common: the Lua class of open ones, and a tensor with
// its name.
#pragma once
#include <optional>
#include <string>

#include "bindings/runtime.h"
#include "engine/weights/weights.h"

QENG_LUA_CLASS(qeng::Weights, "Weights")

namespace qeng {

struct NamedTensor {  // {name, Tensor, [dtype]}
  std::string name;
  TensorPtr tensor;
  std::optional<DType> dtype;
};

template <>
struct lua::Value<NamedTensor> {
  static NamedTensor read(lua_State* L, int index) {
    if (!lua_istable(L, index)) expected(L, index, "{name, Tensor}");
    const int top = lua_gettop(L);
    for (int i = 1; i <= 3; ++i) lua_rawgeti(L, index, i);
    NamedTensor named{Value<std::string>::read(L, top + 1), Value<TensorPtr>::read(L, top + 2),
                      Value<std::optional<DType>>::read(L, top + 3)};
    lua_settop(L, top);
    return named;
  }
};

}  // namespace qeng
