#include "bindings/lua.h"
#include "bindings/register.h"
namespace qeng {
void register_fs(lua_State*) {}
}  // namespace qeng
