#include "engine/grammar/token_trie.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "engine/grammar/utf8_ranges.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
std::array<int8_t, 128> make_groups() {
  std::array<int8_t, 128> groups{};
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
  group(0x7F, 0x7F);
  for (const uint8_t b : {'\t', '\n', '\r'}) groups[b] = static_cast<int8_t>(next++);
  return groups;
}
}  // namespace

int ascii_group(uint8_t byte) {
  static const std::array<int8_t, 128> groups = make_groups();
  return groups[byte];
}

TokenTrie::TokenTrie(std::shared_ptr<const Tokenizer> of) : tokenizer(std::move(of)) {
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (tokenizer->bytes(id).empty()) continue;
    sorted.emplace_back(tokenizer->bytes(id), id);
    if (tokenizer->is_special(id)) specials.push_back(id);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint32_t> path;     // nodes of the token before
  std::vector<Utf8State> states;  // after each of them
  std::string_view before;
  const auto leave = [&](size_t depth) {  // closes the nodes of the path from this depth on
    while (path.size() > depth) {
      const uint32_t node = path.back();
      const Utf8State state = states.back(), preceding = states.size() > 1 ? states[states.size() - 2] : kUtf8Whole;
      path.pop_back(), states.pop_back();
      skip[node] = static_cast<uint32_t>(nodes.size());
      const uint8_t byte = nodes[node].byte;
      groups[node] |= uint64_t{1} << (state == kUtf8Bad ? kIllFormedGroup
                                      : byte < 0x80     ? ascii_group(byte)
                                                        : kCharactersGroup);
      characters[node] = static_cast<uint16_t>(characters[node] + (preceding == kUtf8Whole));
      if (path.empty()) continue;
      groups[path.back()] |= groups[node];
      characters[path.back()] = std::max(characters[path.back()], characters[node]);
    }
  };
  for (const auto& [bytes, id] : sorted) {
    if (bytes.size() > 65'000) fail("unsupported", tokenizer->name(), ": token ", id, " has ", bytes.size(), " bytes");
    size_t shared = 0;
    while (shared < bytes.size() && shared < before.size() && bytes[shared] == before[shared]) ++shared;
    leave(shared);
    for (size_t d = shared; d < bytes.size(); ++d) {
      const auto byte = static_cast<uint8_t>(bytes[d]);
      path.push_back(static_cast<uint32_t>(nodes.size()));
      states.push_back(utf8_next(states.empty() ? kUtf8Whole : states.back(), byte));
      nodes.push_back({byte, false, static_cast<uint16_t>(d)});
      skip.push_back(0), groups.push_back(0), characters.push_back(0);
      first_token.push_back(static_cast<uint32_t>(tokens.size()));
    }
    nodes[path.back()].ends_token = true;
    tokens.push_back(id);
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
