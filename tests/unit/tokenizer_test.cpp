#include "engine/tokenizer/tokenizer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/formats/atomic_file.h"
#include "engine/tokenizer/bpe_train.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/sentencepiece_proto.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The file of the data folder, or "" after saying so.
std::string data_file(const std::string& name) {
  const char* folder = std::getenv("QENG_DATA");
  fs::path path = fs::path(folder ? folder : QENG_SOURCE_DIR "/../shared/data") / name;
  if (fs::exists(path)) return path.string();
  std::cout << "SKIPPED: " << path.string() << " is not there (set QENG_DATA)\n";
  return "";
}

const json& golden() {
  static const json value = json::parse(read_file(QENG_SOURCE_DIR "/tests/golden/tokenizer_golden.json"));
  return value;
}

// The generator of tests/golden/tokenizer_golden.py.
std::vector<std::string> random_strings(size_t count) {
  auto runs = golden()["runs"].get<std::vector<std::pair<uint32_t, uint32_t>>>();
  auto literals = golden()["literals"].get<std::vector<std::string>>();
  uint64_t state = golden()["seed"].get<uint64_t>();
  auto draw = [&](size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state >> 33) % n);
  };
  std::vector<std::string> strings;
  for (size_t i = 0; i < count; ++i) {
    std::string text;
    for (uint32_t parts = 1 + draw(12); parts > 0; --parts) {
      uint32_t kind = draw(4);
      if (kind == 0) {
        text += literals[draw(literals.size())];
        continue;
      }
      auto [first, last] = kind == 1 ? std::pair(97u, 122u) : runs[draw(runs.size())];
      for (uint32_t n = 1 + draw(kind == 1 ? 8 : 4); n > 0; --n) append_utf8(first + draw(last - first + 1), text);
    }
    strings.push_back(text);
  }
  return strings;
}

void fnv(uint64_t& hash, const std::vector<int32_t>& ids) {
  auto add = [&](uint64_t number) { hash = (hash ^ number) * 0x100000001B3u; };
  add(ids.size());
  for (int32_t id : ids) add(static_cast<uint64_t>(id));
}

std::vector<std::string> hash_groups(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  std::vector<std::string> hashes;
  uint64_t hash = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    size_t group = golden()["group"].get<size_t>();
    if (i % group == 0) hash = 0xCBF29CE484222325u;
    fnv(hash, tokenizer.encode(texts[i], false));
    if (i % group != group - 1 && i + 1 != texts.size()) continue;
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    hashes.push_back(text);
  }
  return hashes;
}

std::shared_ptr<const Tokenizer> qwen() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    std::string path = data_file("qwen.tiktoken");
    return path.empty() ? nullptr : load_tokenizer(path);
  }();
  return tokenizer;
}

// A vocabulary of 290 ids learned from a few lines, as tokenizer.json in a folder of its own.
struct SmallFolder {
  fs::path folder = fs::temp_directory_path() / ("qeng_tokenizer_" + std::to_string(::getpid()));
  SmallFolder() {
    fs::create_directories(folder);
    std::vector<std::string> texts;
    for (int i = 0; i < 20; ++i)
      texts.push_back("the cat sat on the mat, the dog sat on the log; l'\u00e9t\u00e9 n'est pas fini\n");
    PieceCounts counts(*find_grammar("qwen2"), true);
    counts.add(texts);
    train_bpe(counts, 290, {"<|end|>", "<|start|>"}, file());
  }
  ~SmallFolder() { fs::remove_all(folder); }
  std::string file() const { return (folder / "tokenizer.json").string(); }
  // The file with one change made to its JSON.
  template <class Change>
  std::string changed(Change change) const {
    json value = json::parse(read_file(file()));
    change(value);
    std::string path = (folder / "changed.json").string();
    write_file_atomically(path, value.dump());
    return path;
  }
};

std::string message_of(const std::string& path) {
  try {
    load_tokenizer(path);
  } catch (const Error& error) {
    return error.code + " " + error.what();
  }
  return "loaded";
}

}  // namespace

TEST_CASE("every grammar gives tiktoken's ids on whole files and 100,000 random strings") {
  std::string ranks = data_file("qwen.tiktoken");
  if (ranks.empty()) return;
  std::vector<std::string> strings = random_strings(golden()["strings"].get<size_t>());
  for (std::string grammar : {"qwen2", "qwen3.5", "llama3", "cl100k", "o200k", "tekken", "gpt2"}) {
    TiktokenOptions options;
    options.grammar = grammar;
    auto tokenizer = load_tiktoken(ranks, options);
    CAPTURE(grammar);
    for (const auto& [file, hash] : golden()["files"][grammar].items())
      CHECK(hash_groups(*tokenizer, {read_file(data_file(file))}) == std::vector<std::string>{hash.get<std::string>()});
    std::vector<std::string> expected = golden()["random"][grammar];
    CHECK(hash_groups(*tokenizer, strings) == expected);
  }
}

TEST_CASE("a SentencePiece model gives the ids of the Python package") {
  std::string path = data_file("llama2_tokenizer.model");
  if (path.empty()) return;
  auto tokenizer = load_tokenizer(path);
  for (const auto& [file, hash] : golden()["files"]["llama2"].items()) {
    std::string text = read_file(data_file(file)).substr(0, 100'000);
    CHECK(hash_groups(*tokenizer, {text}) == std::vector<std::string>{hash.get<std::string>()});
  }
  std::vector<std::string> expected = golden()["random"]["llama2"];
  CHECK(hash_groups(*tokenizer, random_strings(20'000)) == expected);
  CHECK(tokenizer->vocab_size() == 32000);
  CHECK(tokenizer->bos() == 1);
  CHECK(tokenizer->eos() == 2);
  CHECK(tokenizer->add_bos());
  CHECK(tokenizer->encode("<s>a", true)[0] == 1);
  CHECK(tokenizer->encode("<s>a", false)[0] != 1);
  CHECK(tokenizer->decode(tokenizer->encode("two  spaces,\nline \u4e16 \U0001f600", false)) ==
        "two  spaces,\nline \u4e16 \U0001f600");
  CHECK(tokenizer->bytes(3 + '\n') == "\n");
}

// Ids as transformers gives them: what a file adds is found before the model sees the text, and a space is put in front
// of each stretch between.
TEST_CASE("SentencePiece writes no space where a text goes on from another") {
  const std::string path = data_file("llama2_tokenizer.model");
  if (path.empty()) return;
  const auto tokenizer = load_tokenizer(path);
  const std::string prompt = "Say: hello", answer = " world,\n  and more";
  std::vector<int32_t> ids = tokenizer->encode(prompt, true);
  tokenizer->encode(answer, ids, true, true);
  CHECK(ids == tokenizer->encode(prompt + answer, true));
  ids = {*tokenizer->bos()};  // not a text: what follows begins one
  tokenizer->encode(prompt, ids, true, true);
  CHECK(ids == tokenizer->encode("<s>" + prompt, true));
}

TEST_CASE("a folder's files add tokens to its SentencePiece model, and put some in place of its pieces") {
  Vocabulary vocabulary{.model = "llama", .add_space_prefix = true};
  const auto piece = [&](const std::string& content, TokenType type) {
    vocabulary.tokens.push_back(content);
    vocabulary.types.push_back(type);
    vocabulary.scores.push_back(-static_cast<float>(vocabulary.tokens.size()));
  };
  piece("<unk>", TokenType::unknown), piece("<s>", TokenType::control), piece("</s>", TokenType::control);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    piece(name, TokenType::byte);
  }
  for (const char* each : {"\u2581", "a", "b", "\u2581a", "<old>", "<turn>"})  // from 259 on
    piece(each, each[0] == '<' ? TokenType::user_defined : TokenType::normal);
  const fs::path folder = fs::temp_directory_path() / ("qeng_sentencepiece_" + std::to_string(::getpid()));
  const auto load = [&](const json& config, const std::map<std::string, json>& files) {
    fs::remove_all(folder);
    fs::create_directory(folder);
    write_file_atomically((folder / "tokenizer.model").string(), serialize_sentencepiece(vocabulary));
    write_file_atomically((folder / "tokenizer_config.json").string(), config.dump());
    for (const auto& [name, content] : files) write_file_atomically((folder / name).string(), content.dump());
    return load_tokenizer(folder.string());
  };
  const auto token = [](const char* content, bool special) { return json{{"content", content}, {"special", special}}; };

  // As a chat model on Llama 2 has it: a turn's ends behind the model's pieces, with an id between that nothing has.
  const json decoder = {{"0", token("<unk>", true)},       {"1", token("<s>", true)},
                        {"263", token("<new>", true)},     {"264", token("<turn>", true)},
                        {"265", token("<|start|>", true)}, {"267", token("<tool>", false)}};
  const json turns = {{"<|start|>", 265}, {"<tool>", 267}, {"<new>", 263}, {"<turn>", 264}};
  json listed = json::array();
  for (const auto& [id, entry] : decoder.items()) listed.push_back(entry), listed.back()["id"] = std::stoi(id);
  const std::vector<std::pair<json, std::map<std::string, json>>> ways = {
      {{{"added_tokens_decoder", decoder}, {"eos_token", "<|start|>"}}, {}},
      {{{"eos_token", "<|start|>"}},
       {{"tokenizer.json", {{"model", {{"byte_fallback", true}}}, {"added_tokens", listed}}}}},
      {{{"eos_token", token("<|start|>", true)}},
       {{"added_tokens.json", turns},
        {"special_tokens_map.json", {{"additional_special_tokens", {"<new>", token("<turn>", true)}}}}}},
  };
  for (const auto& [config, files] : ways) {
    INFO(config.dump());
    const auto tokenizer = load(config, files);
    CHECK(tokenizer->vocab_size() == 268);
    CHECK(tokenizer->eos() == 265);
    CHECK(tokenizer->id_of("<tool>") == 267);
    CHECK(tokenizer->encode("a<|start|>b<tool>a<new>", true) ==
          std::vector<int32_t>{262, 265, 259, 261, 267, 262, 263});
    const std::vector<int32_t> plain = tokenizer->encode("<|start|><turn><new><tool>", false);
    for (int32_t id : plain) CHECK(!tokenizer->is_special(id));
    CHECK(plain.back() == 267);
    CHECK(tokenizer->decode(tokenizer->encode("a<|start|>", true)) == "a<|start|>");

    const Vocabulary said = tokenizer->vocabulary();
    CHECK(said.tokens[263] == "<new>");
    const std::vector<TokenType> types(said.types.begin() + 263, said.types.end());
    CHECK(types == std::vector<TokenType>{TokenType::control, TokenType::control, TokenType::control, TokenType::unused,
                                          TokenType::user_defined});
    CHECK(said.types[0] == TokenType::unknown);
  }
  CHECK_THROWS_WITH(load({{"added_tokens_decoder", {{"x", token("<y>", true)}}}}, {}), containing("token id \"x\""));
  CHECK_THROWS_WITH(load({{"added_tokens_decoder", {{"300000000", token("<y>", true)}}}}, {}),
                    containing("token id 300000000"));
  CHECK_THROWS_WITH(load({{"added_tokens_decoder", {{"270", 5}}}}, {}), containing("the tokens that its files add"));
  CHECK(load(json::object(), {})->vocab_size() == 265);
  CHECK(load(json::object(), {})->encode("<unk>", true) == std::vector<int32_t>{0});
  fs::remove_all(folder);
}

TEST_CASE("Qwen's special tokens follow the ranks and are parsed only when asked") {
  auto tokenizer = qwen();
  if (!tokenizer) return;
  CHECK(tokenizer->vocab_size() == 151646);
  CHECK(tokenizer->id_of("<|im_start|>") == 151644);
  CHECK(tokenizer->eos() == 151645);
  CHECK(tokenizer->encode("<|im_start|>user\nhi<|im_end|>\n", true) ==
        std::vector<int32_t>{151644, 872, 198, 6023, 151645, 198});
  std::vector<int32_t> plain = tokenizer->encode("<|im_start|>", false);
  CHECK(plain.size() > 1);
  for (int32_t id : plain) CHECK(!tokenizer->is_special(id));
  CHECK(tokenizer->decode(std::vector<int32_t>{151644, 872, 151645}) == "<|im_start|>user<|im_end|>");
  CHECK(tokenizer->decode(std::vector<int32_t>{151644, 872, 151645}, true) == "user");
  CHECK_THROWS_AS(tokenizer->bytes(151646), Error);
  CHECK_THROWS_AS(tokenizer->bytes(-1), Error);
}

TEST_CASE("decoding gives the normalised text back, also token by token") {
  auto tokenizer = qwen();
  if (!tokenizer) return;
  for (const std::string& text : random_strings(5000)) {
    std::string storage, cut;
    std::string expected(nfc(text, storage));
    std::vector<int32_t> ids = tokenizer->encode(text, false);
    REQUIRE(tokenizer->decode(ids) == expected);
    Utf8Cutter cutter;
    for (int32_t id : ids) {
      std::string ready = cutter.push(tokenizer->bytes(id)), copy;
      REQUIRE(valid_utf8(ready, copy) == ready);
      cut += ready;
    }
    REQUIRE(cut + cutter.finish() == expected);
  }
}

TEST_CASE("long runs of one letter take no quadratic time and short and long pieces merge alike") {
  auto tokenizer = qwen();
  if (!tokenizer) return;
  std::string text(1 << 20, 'a');
  std::vector<int32_t> ids = tokenizer->encode(text, false);  // minutes, were it quadratic
  CHECK(tokenizer->decode(ids) == text);
  // A piece just below the limit of the scan, and just above, of which the first is a prefix.
  std::vector<int32_t> below = tokenizer->encode(std::string(40, 'a'), false),
                       above = tokenizer->encode(std::string(48, 'a'), false);
  CHECK(std::equal(below.begin(), below.end() - 1, above.begin()));
}

TEST_CASE("input that is not UTF-8 is encoded as U+FFFD") {
  auto tokenizer = qwen();
  if (!tokenizer) return;
  CHECK(tokenizer->encode("a\xff z", false) == tokenizer->encode("a\ufffd z", false));
  CHECK(tokenizer->encode("\xe4\xb8", false) == tokenizer->encode("\ufffd", false));
  CHECK(tokenizer->encode("", false).empty());
}

TEST_CASE("threads that share a tokenizer agree") {
  auto tokenizer = qwen();
  if (!tokenizer) return;
  std::vector<std::string> strings = random_strings(2000);
  std::vector<std::vector<std::string>> results(3);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = hash_groups(*tokenizer, strings); });
  for (std::thread& thread : threads) thread.join();
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("a trained tokenizer.json loads, merges what it learned and round-trips") {
  SmallFolder small;
  auto tokenizer = load_tokenizer(small.folder.string());
  CHECK(tokenizer->vocab_size() == 290);
  CHECK(tokenizer->id_of("<|end|>") == 288);
  std::vector<int32_t> ids = tokenizer->encode("the cat<|end|>", true);
  CHECK(ids.size() <= 5);
  CHECK(ids.back() == 288);
  std::string text = "the unseen \u4e16\u754c 123 l'\u00e9t\u00e9";
  CHECK(tokenizer->decode(tokenizer->encode(text, false)) == text);
  CHECK(load_tokenizer(small.file())->hash() == tokenizer->hash());
  CHECK_THROWS_AS(train_bpe(PieceCounts(*find_grammar("qwen2"), true), 200, {}, small.file()), Error);
}

TEST_CASE("the hash follows what decides ids") {
  SmallFolder small;
  uint64_t hash = load_tokenizer(small.file())->hash();
  CHECK(load_tokenizer(small.changed([](json& j) { j["model"]["merges"].erase(3); }))->hash() != hash);
  CHECK(load_tokenizer(small.changed([](json& j) { j["normalizer"] = nullptr; }))->hash() != hash);
  CHECK(load_tokenizer(small.changed([](json& j) { j["added_tokens"][0]["content"] = "<|fin|>"; }))->hash() != hash);
  CHECK(load_tokenizer(small.changed([](json& j) { j["truncation"] = nullptr; }))->hash() == hash);
}

TEST_CASE("what tokenizer.json asks for and is not implemented is refused by name") {
  SmallFolder small;
  auto refused = [&](auto change) { return message_of(small.changed(change)); };
  CHECK(refused([](json& j) {
          j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+|[a&&]";
        }).find("&&") != std::string::npos);
  CHECK(refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }).find("(a") !=
        std::string::npos);
  CHECK(refused([](json& j) { j["normalizer"] = {{"type", "Nmt"}}; }).find("Nmt") != std::string::npos);
  CHECK(refused([](json& j) { j["model"]["type"] = "Bigram"; }).find("Bigram") != std::string::npos);
  CHECK(refused([](json& j) { j["model"]["dropout"] = 0.1; }).find("dropout") != std::string::npos);
  CHECK(refused([](json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; }).find("cls") != std::string::npos);
  CHECK(refused([](json& j) {
          j["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"<|start|>", 289}}, {"sep", {"</none>", 2}}};
        }).find("no added token") != std::string::npos);
  CHECK(refused([](json& j) { j["model"]["merges"][0] = {"q", "zz"}; }).find("lacks") != std::string::npos);
  CHECK(refused([](json& j) { j["model"]["vocab"]["A"] = "x"; }).substr(0, 6) == "format");
  CHECK(refused([](json& j) { j["model"]["vocab"]["A"] = -5; }).substr(0, 6) == "format");
  CHECK(refused([](json& j) { j.erase("model"); }).substr(0, 6) == "format");
  CHECK(refused([](json& j) {
          for (int i = 0; i < 1000; ++i) j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {j["normalizer"]}}};
        }).find("nested") != std::string::npos);
  CHECK(message_of((small.folder / "nothing").string()).find("no such file") != std::string::npos);
}

TEST_CASE("rank files of released models have their tokens where the models do") {
  const auto index = [](const TiktokenOptions& options, const char* name) {
    return std::find(options.specials.begin(), options.specials.end(), name) - options.specials.begin();
  };
  const TiktokenOptions qwen = tiktoken_options("x", 248044), llama3 = tiktoken_options("x", 128000),
                        llama4 = tiktoken_options("x", 200000);
  CHECK(qwen.specials.size() == 33);
  CHECK(index(qwen, "<think>") == 24);
  CHECK(index(qwen, "<|audio_pad|>") == 32);
  CHECK(llama3.specials.size() == 256);
  CHECK(index(llama3, "<|eot_id|>") == 9);
  CHECK(index(llama3, "<|reserved_special_token_245|>") == 255);
  CHECK(llama4.specials.size() == 2048);
  CHECK(index(llama4, "<|finetune_right_pad|>") == 18);
  CHECK(index(llama4, "<|patch|>") == 92);
  CHECK(index(llama4, "<|reasoning_thinking_end|>") == 1143);
  CHECK_THROWS_WITH(tiktoken_options("x", 1000), containing("1000 ranks"));
  CHECK(is_tiktoken("IQ== 0\nIg== 1\n"));
  CHECK_FALSE(is_tiktoken("\n\x0e\n\x05<unk>\x15 0"));
  CHECK_FALSE(is_tiktoken(" 0"));
}

TEST_CASE("a byte without a token is the unknown token, or refused where a text needs it") {
  SmallFolder small;
  const auto lacking = load_tokenizer(small.changed([](json& j) { j["model"]["vocab"].erase("Q"); }));
  CHECK(lacking->decode(lacking->encode("the end", false)) == "the end");
  CHECK_THROWS_WITH(lacking->encode("the Queue", false), containing("no token for byte 81"));
  const auto unknown = load_tokenizer(small.changed([](json& j) {
    j["model"]["vocab"].erase("Q");
    j["model"]["unk_token"] = j["added_tokens"][0]["content"];
  }));
  const auto ids = unknown->encode("QQ", false);
  CHECK(ids == std::vector<int32_t>(2, unknown->added_tokens()[0].id));
  CHECK(unknown->hash() != lacking->hash());
}

TEST_CASE("an added token of single_word is none inside of a word") {  // the ids are those of Hugging Face's tokenizers
  SmallFolder small;
  const auto tokenizer = load_tokenizer(small.changed([](json& j) {
    j["added_tokens"].push_back({{"id", 290},
                                 {"content", "dog"},
                                 {"special", false},
                                 {"single_word", true},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false}});
  }));
  const auto count = [&](const char* text) {
    const std::vector<int32_t> ids = tokenizer->encode(text, true);
    return std::count(ids.begin(), ids.end(), 290);
  };
  for (const char* text : {"dog", "a dog.", "(dog)", "-dog-"}) CHECK(count(text) == 1);
  CHECK(count("dog.dog") == 2);
  for (const char* text : {"dogs", "_dog", "\u00e9dog", "2dog", "dogdog"}) CHECK(count(text) == 0);
}

TEST_CASE("the post-processor says whether a bos stands in front, and tokenizer_config.json the rest") {
  SmallFolder small;
  std::string path = small.changed([](json& j) {
    j["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<|start|>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  });
  auto tokenizer = load_tokenizer(path);
  CHECK(tokenizer->add_bos());
  CHECK(tokenizer->bos() == 289);
  CHECK(tokenizer->encode("a", true).size() == 1);

  write_file_atomically(
      (small.folder / "tokenizer_config.json").string(),
      R"({"eos_token": {"content": "<|end|>"}, "bos_token": null, "add_bos_token": false, "chat_template": "{{ messages }}"})");
  tokenizer = load_tokenizer(path);
  CHECK(tokenizer->add_bos());  // a file by itself
  write_file_atomically(
      (small.folder / "tokenizer_config.json").string(),
      R"({"eos_token": {"content": "<|end|>"}, "bos_token": null, "add_bos_token": true, "chat_template": "{{ messages }}"})");
  tokenizer = load_tokenizer(small.folder.string());
  CHECK(tokenizer->eos() == 288);
  CHECK(!tokenizer->bos());
  CHECK(!tokenizer->add_bos());  // as transformers 5 has it, whatever add_bos_token says
  CHECK(tokenizer->chat_template() == "{{ messages }}");

  fs::create_directory(small.folder / "additional_chat_templates");
  write_file_atomically((small.folder / "additional_chat_templates/tool_use.jinja").string(), "{{ tools }}\n");
  CHECK(load_tokenizer(small.folder.string())->chat_template() ==
        join_templates({{"default", "{{ messages }}"}, {"tool_use", "{{ tools }}\n"}}));
  fs::remove_all(small.folder / "additional_chat_templates");
  write_file_atomically(
      (small.folder / "tokenizer_config.json").string(),
      R"({"chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]})");
  CHECK(load_tokenizer(small.folder.string())->chat_template() == "b");
  write_file_atomically((small.folder / "tokenizer_config.json").string(),
                        R"({"chat_template": [{"name": "rag", "template": "a"}]})");
  CHECK(load_tokenizer(small.folder.string())->chat_template().find("chat templates rag, but none") !=
        std::string::npos);
  write_file_atomically((small.folder / "tokenizer_config.json").string(), R"({"eos_token": "<|nowhere|>"})");
  CHECK(message_of(small.folder.string()).find("<|nowhere|>") != std::string::npos);
}

TEST_CASE("added tokens: longest first, white space taken along, plain ones always parsed") {
  SmallFolder small;
  auto added = [](int id, const char* content, bool special, bool lstrip, bool rstrip) {
    return json{{"id", id},         {"content", content}, {"special", special},
                {"lstrip", lstrip}, {"rstrip", rstrip},   {"normalized", false}};
  };
  auto tokenizer = load_tokenizer(small.changed([&](json& j) {
    j["added_tokens"] = {added(298, "<x>", true, false, false), added(299, "<x>y", false, true, false),
                         added(300, "[m]", true, true, true)};
  }));
  CHECK(tokenizer->encode("<x>y<x>z", true) == std::vector<int32_t>{299, 298, 'z'});
  CHECK(tokenizer->encode(" \t<x>y", false) == std::vector<int32_t>{299});
  CHECK(tokenizer->encode("b \u3000[m] \n b", true) == std::vector<int32_t>{'b', 300, 'b'});
  CHECK(tokenizer->encode("[m]", false).size() == 3);
}

TEST_CASE("damaged rank files are refused") {
  fs::path path = fs::temp_directory_path() / ("qeng_" + std::to_string(::getpid()) + ".tiktoken");
  for (const char* content :
       {"", "IQ== 0\nIQ== 1\n", "IQ== 1\n", "IQ==\n", "!!!! 0\n", "IQ== x\n", "IQ== 99999999999999999999\n"}) {
    write_file_atomically(path.string(), content);
    CHECK(message_of(path.string()).substr(0, 6) == "format");
  }
  fs::remove(path);
}
