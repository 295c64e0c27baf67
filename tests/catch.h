// The one place that knows which Catch2 is installed: version 2 (Debian 12) or 3 (Ubuntu 24.04).
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
inline auto containing(const std::string& text) { return Catch::Matchers::ContainsSubstring(text); }
#else
#include <catch2/catch.hpp>
inline auto containing(const std::string& text) { return Catch::Contains(text); }
#endif
