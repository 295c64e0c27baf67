// The Lua class that grammars make and samplers take.
#pragma once
#include "bindings/lua.h"
#include "engine/generate/token_mask.h"

QENG_LUA_CLASS(const qeng::TokenMask, "TokenMask")
