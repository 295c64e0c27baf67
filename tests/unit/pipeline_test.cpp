// Tokenizers that are not byte-level BPE, against Hugging Face's tokenizers (tests/golden/pipeline_golden.py).
#include "engine/tokenizer/pipeline.h"

#include <fstream>

#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;
using nlohmann::json;

namespace {

json golden() {
  std::ifstream file(QENG_SOURCE_DIR "/tests/golden/pipeline_golden.json");
  return json::parse(file);
}

std::shared_ptr<const Tokenizer> load(const json& file) {
  return load_tokenizer_json("test.json", file, json::object(), "");
}

}  // namespace

TEST_CASE("every kind of tokenizer.json gives the ids of Hugging Face's tokenizers") {
  const json file = golden();
  for (const auto& [name, kind] : file["kinds"].items()) {
    const auto tokenizer = load(kind["tokenizer"]);
    for (size_t i = 0; i < file["texts"].size(); ++i) {
      CAPTURE(name, file["texts"][i].dump(-1, ' ', true));
      CHECK(tokenizer->encode(file["texts"][i].get<std::string>(), true) == kind["ids"][i].get<std::vector<int32_t>>());
    }
  }
}

TEST_CASE("what byte fallback and U+2581 stand for is decoded, as Hugging Face's decoders do") {
  const json file = golden();
  for (const char* name : {"llama2", "mistral", "gemma", "metaspace", "lowercase", "bert"}) {
    const json& kind = file["kinds"][name];
    const auto tokenizer = load(kind["tokenizer"]);
    for (size_t i = 0; i < kind["ids"].size(); ++i) {
      CAPTURE(name, file["texts"][i].dump(-1, ' ', true));
      CHECK(tokenizer->decode(kind["ids"][i].get<std::vector<int32_t>>()) == kind["decoded"][i].get<std::string>());
    }
  }
}

TEST_CASE("a text that goes on from another has no space in front") {
  const json file = golden();
  for (const char* name : {"llama2", "mistral", "metaspace"}) {
    CAPTURE(name);
    const auto tokenizer = load(file["kinds"][name]["tokenizer"]);
    std::vector<int32_t> ids = tokenizer->encode("the wor", true);
    tokenizer->encode("ld", ids, true, true);
    CHECK(tokenizer->decode(ids) == "the world");
  }
}

TEST_CASE("damaged models of words are refused, and texts that they have no token for") {
  json unigram = golden()["kinds"]["unigram"]["tokenizer"], bert = golden()["kinds"]["bert"]["tokenizer"];
  json words = golden()["kinds"]["words"]["tokenizer"];
  unigram["model"]["unk_id"] = nullptr;
  CHECK_THROWS_WITH(load(unigram)->encode("\u0e01", false), Catch::Matchers::Contains("no unknown token"));
  unigram["model"]["vocab"] = json::object();
  CHECK_THROWS_AS(load(unigram), Error);
  bert["model"]["unk_token"] = "nothing";
  CHECK_THROWS_AS(load(bert), Error);
  words["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "////////"}};
  CHECK_THROWS_AS(load(words), Error);
  words["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
  CHECK_THROWS_AS(load(words), Error);
}
