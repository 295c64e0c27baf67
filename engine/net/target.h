// The target of a request ("/v1/models?limit=5") in its parts.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace qeng {

// "%41" is "A", and "+" is a space where plus_is_space. Nothing for an escape that is none, and for a NUL.
std::optional<std::string> percent_decoded(std::string_view text, bool plus_is_space);

struct RequestTarget {
  std::string path;
  std::map<std::string, std::string> query;  // of equal names the last
};

// Nothing unless it begins with "/" and percent_decoded takes each part.
std::optional<RequestTarget> parse_target(std::string_view text);

}  // namespace qeng
