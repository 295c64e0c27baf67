// Bytes of a connection as a request: head, then body, whole and a byte at a time. Both have to end alike, and a request
// that is taken has one host, a length or chunks, and a target without NUL.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/net/request_reader.h"
#include "engine/net/target.h"

namespace {
using namespace qeng;

void require(bool is, const char* what) {
  if (is) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

// The status of a refusal, 0 for a whole request, -1 where more has to come.
int read(std::string_view text, size_t step, std::string* body) {
  const size_t end = text.find("\r\n\r\n");
  if (end == text.npos) return -1;
  RequestReader reader(1000, 10000);
  if (const auto problem = reader.read_head(text.substr(0, end + 4)); problem.status) return problem.status;
  const RequestHead& head = reader.head();
  require(head.version == 10 || head.headers.count("host") == 1, "no host");
  require(!(head.chunked && head.content_length), "a length and chunks");
  if (const auto target = parse_target(head.target)) {
    require(target->path.find('\0') == std::string::npos, "a NUL in a path");
    for (const auto& [name, value] : target->query)
      require((name + value).find('\0') == std::string::npos, "a NUL in a query");
  }
  std::string waiting;
  for (size_t at = end + 4; !reader.done();) {
    if (at >= text.size()) return -1;
    waiting += text.substr(at, step);
    at += std::min(step, text.size() - at);
    size_t used = 0;
    if (const auto problem = reader.read_body(waiting, &used); problem.status) return problem.status;
    waiting.erase(0, used);
  }
  *body = reader.body();
  require(head.chunked || body->size() == head.content_length.value_or(0), "a body of another length");
  return 0;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string whole, by_bytes;
  const int first = read(text, size + 1, &whole), second = read(text, 1, &by_bytes);
  require((first == 0) == (second == 0), "bytes that come one by one are taken differently");
  require(whole == by_bytes, "bytes that come one by one are another body");
  return 0;
}
