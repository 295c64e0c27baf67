#include "engine/hub/digest.h"

#include <openssl/evp.h>

#include "kernels/error.h"

namespace qeng {

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void Digest::Free::operator()(void* context) const { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context)); }

Digest::Digest(const std::string& expected, uint64_t size) {
  const bool git = is_hex(expected, 40);
  if (!git && !is_hex(expected, 64)) return;
  context_.reset(EVP_MD_CTX_new());
  auto* context = static_cast<EVP_MD_CTX*>(context_.get());
  if (!context || EVP_DigestInit_ex(context, git ? EVP_sha1() : EVP_sha256(), nullptr) != 1)
    fail("unsupported", "OpenSSL offers no ", git ? "SHA-1" : "SHA-256", " here, so a download cannot be checked");
  if (git) add("blob " + std::to_string(size) + '\0');
}

Digest::~Digest() = default;

void Digest::add(std::string_view bytes) {
  if (context_) EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size());
}

std::string Digest::finish() {
  if (!context_) return "";
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), sum, &bytes);
  std::string out;
  for (unsigned int i = 0; i < bytes; ++i) out += {"0123456789abcdef"[sum[i] >> 4], "0123456789abcdef"[sum[i] & 15]};
  return out;
}

}  // namespace qeng
