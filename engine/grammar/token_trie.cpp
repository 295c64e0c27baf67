#include "engine/grammar/token_trie.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "kernels/error.h"

namespace qeng::grammar {
namespace {
std::array<int8_t, 256> make_groups() {
  std::array<int8_t, 256> groups{};
  int next = 0;
  const auto group = [&](int first, int last) {
    for (int b = first; b <= last; ++b) groups[static_cast<size_t>(b)] = static_cast<int8_t>(next);
    ++next;
  };
  group(0x00, 0x1F), group(' ', ' ');
  for (int b = '!'; b <= '/'; ++b) group(b, b);
  group('0', '9');
  for (int b = ':'; b <= '@'; ++b) group(b, b);
  group('A', 'F'), group('G', 'Z');
  for (int b = '['; b <= '`'; ++b) group(b, b);
  group('a', 'f'), group('g', 'z');
  for (int b = '{'; b <= '~'; ++b) group(b, b);
  group(0x7F, 0x7F), group(0x80, 0xBF), group(0xC0, 0xDF), group(0xE0, 0xEF), group(0xF0, 0xFF);
  for (const uint8_t b : {'\t', '\n', '\r'}) groups[b] = static_cast<int8_t>(next++);
  return groups;
}
}  // namespace

int byte_group(uint8_t byte) {
  static const std::array<int8_t, 256> groups = make_groups();
  return groups[byte];
}

TokenTrie::TokenTrie(std::shared_ptr<const Tokenizer> of) : tokenizer(std::move(of)) {
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (!tokenizer->is_special(id) && !tokenizer->bytes(id).empty()) tokens.push_back(id);
  }
  std::sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) {
    const int order = tokenizer->bytes(a).compare(tokenizer->bytes(b));
    return order < 0 || (order == 0 && a < b);
  });
  std::vector<uint32_t> path;  // nodes of the token before
  std::string_view before;
  const auto leave = [&](size_t depth) {  // closes the nodes of the path from this depth on
    while (path.size() > depth) {
      const uint32_t node = path.back();
      path.pop_back();
      skip[node] = static_cast<uint32_t>(nodes.size());
      if (!path.empty()) below[path.back()] |= below[node] | uint64_t{1} << byte_group(nodes[node].byte);
    }
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view bytes = tokenizer->bytes(tokens[i]);
    if (bytes.size() > 65'000) fail("unsupported", tokenizer->name(), ": token ", tokens[i], " has ", bytes.size(), " bytes");
    size_t shared = 0;
    while (shared < bytes.size() && shared < before.size() && bytes[shared] == before[shared]) ++shared;
    leave(shared);
    for (size_t d = shared; d < bytes.size(); ++d) {
      path.push_back(static_cast<uint32_t>(nodes.size()));
      nodes.push_back({static_cast<uint8_t>(bytes[d]), false, static_cast<uint16_t>(d)});
      skip.push_back(0), below.push_back(0), first_token.push_back(static_cast<uint32_t>(i));
    }
    nodes[path.back()].ends_token = true;
    max_depth = std::max(max_depth, static_cast<uint16_t>(bytes.size()));
    before = bytes;
  }
  leave(0);
  first_token.push_back(static_cast<uint32_t>(tokens.size()));
}

std::shared_ptr<const TokenTrie> TokenTrie::of(const std::shared_ptr<const Tokenizer>& tokenizer) {
  static std::mutex mutex;
  static std::shared_ptr<const TokenTrie> last;
  const std::lock_guard lock(mutex);
  if (!last || last->tokenizer != tokenizer) last = std::make_shared<const TokenTrie>(tokenizer);
  return last;
}

}  // namespace qeng::grammar
