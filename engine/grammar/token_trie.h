// The tokens of a vocabulary by their bytes, as a trie laid out depth first, for walking them all along an automaton.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace qeng::grammar {

// Groups of what may stand in a text, so that what a subtree holds fits 64 bits: for ASCII some letters, digits, each
// sign, ...; the characters of several bytes, whole or begun; bytes that are not UTF-8.
constexpr int kCharactersGroup = 62, kIllFormedGroup = 63;
int ascii_group(uint8_t byte);  // of a byte under 0x80: 0 to 61

class TokenTrie {
 public:
  // Node i is followed by its subtree, and that by node skip[i]. Node 0 is the first byte of something: there is no
  // root.
  struct Node {
    uint8_t byte;
    bool ends_token;
    uint16_t depth;  // 0 for first bytes
  };
  std::vector<Node> nodes;
  std::vector<uint32_t> skip;         // the first node after the subtree
  std::vector<uint64_t> groups;       // a bit for each group that the node and its subtree hold
  std::vector<uint16_t> characters;   // of the longest token that goes through the node, from the node on
  std::vector<uint32_t> first_token;  // [nodes + 1]: tokens[first_token[i] .. first_token[i + 1]) end at node i
  std::vector<int32_t> tokens;        // in the order of their nodes
  std::vector<int32_t> specials;      // of these the special ones, which few grammars let be text
  uint16_t max_depth = 0;
  std::shared_ptr<const Tokenizer> tokenizer;

  // Without tokens without bytes. Error("unsupported"): a token of over 65,000 bytes.
  explicit TokenTrie(std::shared_ptr<const Tokenizer> tokenizer);

  // That of a tokenizer; the last one made is kept, as making one of 150,000 tokens takes some 50 ms.
  static std::shared_ptr<const TokenTrie> of(const std::shared_ptr<const Tokenizer>& tokenizer);
};

}  // namespace qeng::grammar
