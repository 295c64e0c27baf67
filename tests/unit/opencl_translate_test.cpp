#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "kernels/opencl/translate.h"
#include "tests/catch.h"

using qeng::opencl::Translator;

TEST_CASE("formulas of block formats become C over global memory") {
  Translator translator;
  CHECK(translator.translate("struct Q {\n  static constexpr int kElements = 32;\n  f16 d;\n  uint8_t qs[16];\n};\n") ==
        "typedef struct Q {\n  f16 d;\n  uint8_t qs[16];\n} Q;\n");
  CHECK(translator.translate("QENG_HD float scale(const Q& b, int) { return static_cast<float>(b.qs[0]); }  // d\n") ==
        "QENG_HD float scale(__global const Q* b, int unnamed1) { return (float)(b->qs[0]); }\n");
  CHECK(translator.translate("QENG_HD void encode(const float* x, const float*, Q& b) { b.d = to_f16(x[0]); }\n") ==
        "QENG_HD void encode(const float* x, const float* unnamed1, __global Q* b) { b->d = to_f16(x[0]); }\n");
}

TEST_CASE("structs by value, constants, enumerators and braces become C") {
  Translator translator;
  CHECK(translator.translate("constexpr int kA = 1, kB = 2;\n") == "#define kA ((int)(1))\n#define kB ((int)(2))\n");
  CHECK(translator.translate("enum class Kind : int32_t { none, token };\n") ==
        "typedef int32_t Kind;\nenum { Kind_none, Kind_token };\n");
  CHECK(translator.translate("QENG_HD Pair twice(const Pair& p, uint64_t n) { return {p.a, uint64_t{2} * n}; }\n") ==
        "QENG_HD Pair twice(Pair p, uint64_t n) { return (Pair){p.a, ((uint64_t)(2)) * n}; }\n");
  CHECK(translator.translate("static inline void host_only(int& x) { ++x; }\ntemplate <class T>\nvoid any(T) {\n}\n") ==
        "");
}

// What a rule does not know stays as it is, and no driver would take it.
TEST_CASE("no words of C++ are left of the headers that kernels include") {
  const std::filesystem::path root = QENG_SOURCE_DIR;
  const std::regex included("#include \"(kernels/math/[\\w/]+\\.h)\""),
      foreign("static_cast|constexpr|::|\\bauto\\b|template|\\w& \\w+[,)]");
  std::vector<std::string> headers{"kernels/fault.h"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "kernels/opencl")) {
    if (entry.path().extension() != ".cl") continue;
    std::ifstream file(entry.path());
    std::smatch found;
    for (std::string line; std::getline(file, line);)
      if (std::regex_search(line, found, included)) headers.push_back(found[1]);
  }
  for (const auto& entry : std::filesystem::directory_iterator(root / "kernels/math/blocks"))
    headers.push_back("kernels/math/blocks/" + entry.path().filename().string());
  REQUIRE(headers.size() > 20);
  for (const std::string& header : headers) {
    std::stringstream text;
    text << std::ifstream(root / header).rdbuf();
    Translator translator;
    const std::string c = translator.translate(text.str());
    std::smatch left;
    INFO(header << ": " << (std::regex_search(c, left, foreign) ? left.str() : ""));
    CHECK(left.empty());
  }
}
