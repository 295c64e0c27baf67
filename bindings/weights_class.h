// The Lua class of open files of weights, for the functions that open one.
#pragma once
#include "bindings/lua.h"
#include "engine/weights/weights.h"

QENG_LUA_CLASS(qeng::Weights, "Weights")
