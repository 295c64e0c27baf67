#include "bindings/lua.h"
#include "bindings/register.h"
namespace qeng {
void register_json(lua_State*) {}
}  // namespace qeng
