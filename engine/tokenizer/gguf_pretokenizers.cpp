// The labels of tokenizer.ggml.pre: what GGUF files say of how their text is cut. Source: the tables of llama.cpp
// (src/llama-vocab.cpp), and the models' own tokenizer.json.
#include "engine/tokenizer/vocabulary.h"
#include "kernels/error.h"

namespace qeng {
namespace {

// By grammars first, then by patterns.
constexpr PreTokenizer kPreTokenizers[] = {
    {"qwen2", "qwen2", true},
    {"deepseek-r1-qwen", "qwen2"},
    {"f2llmv2", "qwen2", true},
    {"qwen35", "qwen3.5", true},
    {"llama-bpe", "llama3", false, true, true},
    {"llama3", "llama3", false, true, true},
    {"llama-v3", "llama3", false, true, true},
    {"falcon3", "llama3", false, true, true},
    {"falcon-h1", "llama3", false, true, true},
    {"pixtral", "llama3", false, true, true},
    {"midm-2.0", "llama3", false, true, true},
    {"lfm2", "llama3", false, true, true},
    {"jina-v5-nano", "llama3", false, true, true},
    {"smaug-bpe", "llama3"},
    {"dbrx", "llama3"},
    {"glm4", "llama3", false, true},
    {"glm5", "llama3", false, true},
    {"chatglm-bpe", "llama3"},
    {"gpt-2", "gpt2"},
    {"phi-2", "gpt2"},
    {"olmo", "gpt2", true},
    {"mpt", "gpt2", true},
    {"jais", "gpt2"},
    {"gigachat", "gpt2"},
    {"a.x-4.0", "gpt2"},
    {"mellum", "gpt2"},
    {"modern-bert", "gpt2"},
    {"exaone4", "gpt2"},
    {"roberta-bpe", "gpt2"},
    {"trillion", "gpt2"},
    {"granite-docling", "gpt2"},
    {"smollm", "smollm"},
    {"starcoder", "smollm"},
    {"refact", "smollm"},
    {"command-r", "smollm", true},
    {"codeshell", "smollm"},
    {"exaone", "smollm"},
    {"minerva-7b", "smollm"},
    {"mellum2", "smollm"},
    {"gpt-4o", "o200k"},
    {"llama4", "o200k"},
    {"kanana2", "o200k"},
    {"minimax-m2", "o200k"},
    {"talkie", "o200k"},
    {"granite-embed-multi-97m", "o200k", false, true},
    {"tekken", "tekken", false, true, true},
    {"stablelm2", "qwen2"},
    {"megrez", "qwen2"},
    {"kormo", "qwen2"},
    {"hunyuan", "qwen2"},
    {"solar-open", "qwen2"},
    {"grok-2", "qwen2"},
    {"deepseek-llm", "deepseek-llm"},
    {"deepseek-coder", "deepseek-coder"},
    {"deepseek-v3", "deepseek-v3"},
    {"hunyuan-dense", "deepseek-v3"},
    {"joyai-llm", "deepseek-v3"},
    {"hy_v4", "deepseek-v3"},
    {"spark2_5", "spark2_5"},
    {"kimi-k2", "kimi-k2"},
    {"minicpm5", "minicpm5", false, true},
    {"jais-2", "jais-2"},
    {"laguna", "laguna"},
    {"ufakzeka", "ufakzeka"},
    {"falcon", "falcon"},
    {"bloom", "bloom"},
    {"poro-chat", "bloom"},
    {"gpt3-finnish", "bloom"},
    {"viking", "viking"},
    {"bailingmoe", "bailingmoe"},
    {"bailingmoe2", "bailingmoe"},
    {"llada-moe", "bailingmoe"},
    {"seed-coder", "seed-coder"},
    {"superbpe", "superbpe"},
    {"exaone-moe", "exaone-moe"},
    {"tiny_aya", "tiny_aya"},
    {"cohere2moe", "tiny_aya"},
    {"youtu", "youtu", false, true},
    {"afmoe", "afmoe"},
    {"chameleon", "chameleon", false, false, true},
};

constexpr const char* kCharacters[] = {"gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"};

// What llama.cpp cuts in a way that is not the models' own, where that is not known here.
constexpr char kUnspoken[] = "its models normalise or cut text in ways of their own, which the label does not say";
constexpr struct {
  const char *pre, *why;
} kRefused[] = {
    {"default", "its converter did not know how this model cuts text"},
    {"jina-v1-en", "its tokens are spelled in characters, but nothing says how those are found"},
    {"jina-v2-code", kUnspoken},
    {"jina-v2-de", kUnspoken},
    {"jina-v2-es", kUnspoken},
    {"jina-de", kUnspoken},
    {"jina-es", kUnspoken},
};

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
constexpr char kCased[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)";
constexpr char kPunctuated[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kWords[] = " ?[^(\\s|.,!?…。，、।۔،)]+";

std::vector<std::string> patterns_of(std::string_view cuts) {
  // clang-format off
  if (cuts == "deepseek-llm")
    return {"[\r\n]",
            "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-"
            "ᶚḀ-"
            "ἕἘ-"
            "Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
            "Ὗ-\u1F7Dᾀ-ᾴᾶ-ᾼ\u1FBEῂ-ῄῆ-ῌῐ-\u1FD3ῖ-\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212A-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-"
            "ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
            "ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            "\\s+$",
            "[一-龥ࠀ-一가-\uD7FF]+",
            "\\p{N}+"};
  // clang-format on
  if (cuts == "deepseek-coder") return {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-\uD7FF]+", "\\p{N}"};
  if (cuts == "deepseek-v3") return {"\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", kPunctuated};
  if (cuts == "falcon") return {"[\\p{P}\\$\\+<=>\\^~\\|`]+", kGpt2, "[0-9][0-9][0-9]"};
  if (cuts == "bloom") return {kWords};
  if (cuts == "viking") return {kWords, "\\p{N}"};
  if (cuts == "bailingmoe")
    return {
        R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"};
  if (cuts == "seed-coder")
    return {
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  if (cuts == "spark2_5") {
    const std::string_view punctuated = kPunctuated;
    const std::string words(punctuated.substr(0, punctuated.find("[\\r\\n]*")));
    return {"\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", words + R"(|[\r\n]|\s+(?!\S)|\s+)", "\\p{N}"};
  }
  const std::string ends = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)", line_ends = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (cuts == "kimi-k2") {  // Han apart from other letters
    const std::string before = R"([^\r\n\p{L}\p{N}]?)", upper = R"((?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))",
                      lower = R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))";
    return {"\\p{Han}+|" + before + upper + "*" + lower + "+" + ends + "|" + before + upper + "+" + lower + "*" + ends +
            R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" + line_ends};
  }
  const std::string contractions = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)", letters = R"([^\r\n\p{L}\p{N}]?\p{L}+|)",
                    signs = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|)";
  if (cuts == "minicpm5") return {"\\p{N}{1,3}", contractions + letters + "\\p{N}+" + signs + line_ends};
  if (cuts == "laguna") return {"[^\n]+|\n+", contractions + letters + "\\p{N}" + signs + line_ends};
  if (cuts == "ufakzeka") return {letters + "\\p{N}" + signs + line_ends};
  if (cuts == "jais-2") {
    std::string runs;  // of spaces, in powers of two
    for (const char* length : {"512", "256", "128", "64", "32", "16", "8", "4", "1,2"})
      runs += std::string("\\s{") + length + R"(}(?!\S)|)";
    return {contractions + letters + "\\p{N}{1,3}" + signs + R"(\s*[\r\n]+|)" + runs + "\\s{1}"};
  }
  if (cuts == "superbpe") return {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"};
  if (cuts == "exaone-moe")
    return {
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"};
  const std::string rest = R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (cuts == "tiny_aya") return {"\\d{1,3}(?=(?:\\d{3})*\\b)", kCased + ("\\p{N}{1,3}|" + rest)};
  // Numbers in threes from their end, and scripts without spaces; the blocks are llama.cpp's.
  if (cuts == "afmoe")
    return {"\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
            R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF})"
            R"(\x{E40}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF})"
            R"(\x{1100}-\x{11FF}]+)",
            kPunctuated};
  if (cuts == "chameleon")
    return {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\t\n]|    |  ", "\\p{N}", R"([!-/:-@\[-`{-~\p{P}])", kGpt2};
  if (cuts == "youtu")
    return {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
            kCased + ("\\p{N}|" + rest)};
  fail("internal", "no patterns are called ", cuts);
}

}  // namespace

std::span<const PreTokenizer> pre_tokenizers() { return kPreTokenizers; }

const PreTokenizer* find_pre_tokenizer(std::string_view pre) {
  for (const PreTokenizer& each : kPreTokenizers)
    if (pre == each.pre) return &each;
  return nullptr;
}

std::span<const char* const> character_pre_tokenizers() { return kCharacters; }

const char* why_refused(std::string_view pre) {
  for (const auto& [label, why] : kRefused)
    if (pre == label) return why;
  return nullptr;
}

Cutter cutter_of(const PreTokenizer& pre) {
  if (const Grammar* const grammar = find_grammar(pre.cuts)) return Cutter(*grammar);
  std::vector<Cutter::Step> steps;
  for (std::string& pattern : patterns_of(pre.cuts)) steps.push_back({std::move(pattern)});
  return Cutter(std::move(steps));
}

}  // namespace qeng
