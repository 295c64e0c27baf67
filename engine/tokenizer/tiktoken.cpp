// The .tiktoken format: a line a token, its bytes in base64 and its rank. Two neighbours merge if their concatenation
// is a token, at that token's rank; so every way of cutting a token into two tokens is a merge.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "engine/formats/mapped_file.h"
#include "engine/tokenizer/base64.h"
#include "engine/tokenizer/byte_bpe.h"
#include "engine/tokenizer/loaders.h"
#include "kernels/error.h"

namespace qeng {
namespace {

TokenBytes read_ranks(const std::string& path) {
  auto file = MappedFile::open(path);
  std::string_view rest = file->text();
  TokenBytes tokens;
  std::string bytes;
  for (size_t line = 1; !rest.empty(); ++line) {
    std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    size_t space = text.find(' ');
    size_t rank = 0;
    bool good = space != std::string_view::npos && decode_base64(text.substr(0, space), bytes);
    if (good) {
      auto [stop, error] = std::from_chars(text.data() + space + 1, text.data() + text.size(), rank);
      good = error == std::errc() && stop == text.data() + text.size();
    }
    if (!good) fail("format", path, ":", line, ": expected a token in base64, a space and its rank");
    if (rank != tokens.size()) fail("format", path, ":", line, ": rank ", rank, " where ", tokens.size(), " is due");
    tokens.append(bytes);
  }
  return tokens;
}

std::shared_ptr<const Tokenizer> build(const std::string& path, TokenBytes tokens, const TiktokenOptions& options) {
  const Grammar* grammar = find_grammar(options.grammar);
  if (!grammar)
    fail("unsupported", path, ": unknown pre-tokenizer ", options.grammar, "; there are ", known_grammars());
  size_t ranks = tokens.size();

  int32_t byte_ids[256];
  find_byte_tokens(tokens, std::nullopt, byte_ids);
  for (int byte = 0; byte < 256; ++byte)
    if (byte_ids[byte] < 0) fail("format", path, ": no token for byte ", byte, ": a rank file has all 256");
  Bpe bpe(byte_ids, ranks * 4);
  for (size_t id = 0; id < ranks; ++id) {
    if (bpe.find_whole(tokens[id], tokens) >= 0) fail("format", path, ": the token of rank ", id, " occurs twice");
    bpe.add_whole(tokens, static_cast<int32_t>(id));
  }
  for (size_t id = 0; id < ranks; ++id) {
    std::string_view token = tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      int32_t left = bpe.find_whole(token.substr(0, cut), tokens);
      int32_t right = left < 0 ? -1 : bpe.find_whole(token.substr(cut), tokens);
      if (right >= 0) bpe.add_merge(left, right, {static_cast<int32_t>(id), static_cast<int32_t>(id)});
    }
  }
  bpe.finish();

  TokenizerProperties properties;
  properties.name = std::filesystem::path(path).stem().string();
  for (const std::string& special : options.specials) {
    const auto id = static_cast<int32_t>(tokens.size());
    const bool plain = std::find(options.plain.begin(), options.plain.end(), special) != options.plain.end();
    properties.added.push_back({special, id, !plain});
    if (special == options.eos) properties.eos = id;
    if (special == options.pad) properties.pad = id;
    if (special == options.bos) properties.bos = id;
    tokens.append(special);
  }
  properties.add_bos = options.add_bos;
  return std::make_shared<ByteBpeTokenizer>(std::move(properties), std::move(tokens), std::move(bpe),
                                            ByteBpeTokenizer::Text{Cutter(*grammar), options.nfc});
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tiktoken(const std::string& path, const TiktokenOptions& options) {
  return build(path, read_ranks(path), options);
}

std::shared_ptr<const Tokenizer> load_released_tiktoken(const std::string& path) {
  TokenBytes tokens = read_ranks(path);
  const size_t ranks = tokens.size();
  if (ranks < 256) fail("format", path, ": holds ", ranks, " ranks; a rank file has a token for each of 256 bytes");
  return build(path, std::move(tokens), tiktoken_options(path, ranks));
}

bool is_tiktoken(std::string_view text) {
  const std::string_view line = text.substr(0, text.substr(0, 4096).find('\n'));
  std::string bytes;
  return line.ends_with(" 0") && decode_base64(line.substr(0, line.size() - 2), bytes);
}

}  // namespace qeng
