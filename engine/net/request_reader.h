// One request from bytes: the parser is Boost.Beast's, which request_reader.cpp alone includes. Beyond what Beast
// refuses, this refuses what two servers might read differently: folded header lines, a second Host, Content-Length or
// Transfer-Encoding, and any transfer coding but chunked.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace qeng {

struct RequestHead {
  std::string method, target;
  int version = 11;                            // 10 or 11
  std::map<std::string, std::string> headers;  // names in lowercase; equal ones joined by ", "
  bool keep_alive = false, chunked = false;
  std::optional<uint64_t> content_length;

  std::string_view header(const char* name) const {  // "" if it is absent
    const auto found = headers.find(name);
    return found == headers.end() ? std::string_view() : found->second;
  }
};

class RequestReader {
 public:
  RequestReader(size_t max_head, size_t max_body);
  ~RequestReader();

  struct Problem {
    int status = 0;  // 0: none
    std::string text;
  };
  Problem read_head(std::string_view bytes);  // the whole of it, with its empty line. Once, and first
  const RequestHead& head() const;

  Problem read_body(std::string_view bytes, size_t* used);  // what was not used comes again, with more behind it
  bool done() const;
  std::string& body();

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

const char* reason_phrase(int status);  // "Not Found"

}  // namespace qeng
