// Tokenizers that are not byte-level BPE, against Hugging Face's tokenizers (tests/golden/pipeline_golden.py).
#include "engine/tokenizer/pipeline.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "engine/formats/gguf.h"
#include "engine/tokenizer/added_tokens.h"
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

// The lists of a tokenizer.json with merges as a GGUF file, read again. lines: line ends that it finds as added tokens.
std::shared_ptr<const Tokenizer> load_as_gguf(const json& file, const char* model, const char* pre, int lines = 0) {
  std::vector<GgufMetadata::Scalar> tokens(file["model"]["vocab"].size()), types(tokens.size(), int64_t{1}), merges;
  for (const auto& [spelling, id] : file["model"]["vocab"].items()) tokens[id.get<size_t>()] = spelling;
  for (const json& token : file["added_tokens"]) types[token["id"].get<size_t>()] = int64_t{3};
  for (const json& merge : file["model"]["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  for (int count = 1; count <= lines; ++count)
    tokens.emplace_back(std::string(static_cast<size_t>(count), '\n')), types.emplace_back(int64_t{1});
  tokens.emplace_back("[PAD]"), types.emplace_back(int64_t{5});
  GgufMetadata metadata;
  metadata.add("tokenizer.ggml.model", MetadataType::string, model);
  metadata.add("tokenizer.ggml.pre", MetadataType::string, pre);
  metadata.add("tokenizer.ggml.tokens", MetadataType::string, tokens);
  metadata.add("tokenizer.ggml.token_type", MetadataType::i32, types);
  metadata.add("tokenizer.ggml.merges", MetadataType::string, merges);
  metadata.add("tokenizer.ggml.unknown_token_id", MetadataType::u32, uint64_t{0});
  metadata.add("tokenizer.ggml.normalizer.lowercase", MetadataType::boolean, true);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("qeng_pipeline_" + std::to_string(getpid()) + ".gguf")).string();
  GgufWriter(path, {}, metadata).commit();
  const auto remove = [&](void*) { std::filesystem::remove(path); };
  const std::unique_ptr<void, decltype(remove)> removed(&metadata, remove);
  return load_tokenizer(path);
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
  CHECK_THROWS_WITH(load(unigram)->encode("\u0e01", false), containing("no unknown token"));
  unigram["model"]["vocab"] = json::object();
  CHECK_THROWS_AS(load(unigram), Error);
  bert["model"]["unk_token"] = "nothing";
  CHECK_THROWS_AS(load(bert), Error);
  words["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "////////"}};
  CHECK_THROWS_AS(load(words), Error);
  words["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
  CHECK_THROWS_AS(load(words), Error);
}

TEST_CASE("GGUF vocabularies of characters give the ids of the models' own tokenizer.json") {
  const json file = golden();
  const std::pair<const char*, const char*> labels[] = {{"gpt2", "gemma4"},
                                                        {"gemma4", "default"},  // as converters write it
                                                        {"gpt2", "granite-embed-multi-311m"},
                                                        {"gpt2", "sarvam-moe"},
                                                        {"whitespace", "whitespace"},
                                                        {"gpt2", "whitespace"}};
  for (const auto& [model, pre] : labels) {
    const json& kind = file["kinds"][pre == std::string("whitespace") ? "white space" : "gemma"];
    const auto tokenizer = load_as_gguf(kind["tokenizer"], model, pre);
    for (size_t i = 0; i < file["texts"].size(); ++i) {
      CAPTURE(model, pre, file["texts"][i].dump(-1, ' ', true));
      const auto ids = kind["ids"][i].get<std::vector<int32_t>>();
      CHECK(tokenizer->encode(file["texts"][i].get<std::string>(), true) == ids);
      if (pre != std::string("whitespace")) CHECK(tokenizer->decode(ids) == kind["decoded"][i].get<std::string>());
    }
  }
}

TEST_CASE("a run of line ends is one token of Gemma's where it has one") {
  const json gemma = golden()["kinds"]["gemma"]["tokenizer"];
  const auto tokenizer = load_as_gguf(gemma, "gemma4", "", 3);
  const auto first = static_cast<int32_t>(gemma["model"]["vocab"].size());
  CHECK(tokenizer->encode("\n\n\n\n\n", false) == std::vector<int32_t>{first + 2, first + 1});
}

TEST_CASE("added tokens are those that comparing each of them with the text finds") {
  std::mt19937 random(1);
  const auto drawn = [&](size_t least, size_t most) {
    std::string text;
    for (size_t left = least + random() % (most - least + 1); left > 0; --left) text += "ab<\xC3"[random() % 4];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<AddedToken> tokens;
    for (size_t count = random() % 30; count > 0; --count)
      tokens.push_back({drawn(1, 4), static_cast<int32_t>(tokens.size()), random() % 2 == 0});
    const std::string text = drawn(0, 30);
    for (const bool with_special : {false, true}) {
      std::vector<int32_t> expected, found;
      for (size_t at = 0; at < text.size();) {
        const AddedToken* longest = nullptr;
        for (const AddedToken& token : tokens) {
          if ((with_special || !token.special) && text.compare(at, token.content.size(), token.content) == 0 &&
              (!longest || token.content.size() > longest->content.size()))
            longest = &token;
        }
        if (longest) expected.push_back(longest->id);
        at += longest ? longest->content.size() : 1;
      }
      AddedTokenFinder(tokens).split(
          text, with_special, [](std::string_view) {}, [&](int32_t id) { found.push_back(id); });
      REQUIRE(found == expected);
    }
  }
}

TEST_CASE("labels of GGUF that nothing public explains are refused by name") {
  const json gemma = golden()["kinds"]["gemma"]["tokenizer"];
  CHECK_THROWS_WITH(load_as_gguf(gemma, "gpt2", "jina-v2-de"),
                    containing("tokenizer.ggml.pre is jina-v2-de: its models"));
  CHECK_THROWS_WITH(load_as_gguf(gemma, "gpt2", "default"), containing("its converter did not know"));
  CHECK_THROWS_WITH(load_as_gguf(gemma, "gpt2", "no-such"), containing("gemma4") && containing("youtu"));
}
