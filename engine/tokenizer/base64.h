// Base64 (RFC 4648), with its padding.
#pragma once
#include <string>
#include <string_view>

namespace qeng {

// False, and bytes of no use, where text is not base64 or is empty.
bool decode_base64(std::string_view text, std::string& bytes);

}  // namespace qeng
