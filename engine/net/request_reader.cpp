#include "engine/net/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <cctype>
#include <limits>

namespace qeng {
namespace {
namespace http = boost::beast::http;
using boost::beast::error_code;
using Text = boost::beast::string_view;

std::string_view view(Text text) { return {text.data(), text.size()}; }

std::string lowercase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}
}  // namespace

struct RequestReader::Parser final : http::basic_parser<true> {
  RequestHead request;
  std::string content, refused;  // refused: why, where it is not Beast that refuses
  bool in_head = true;
  size_t max_body = 0;

  void on_request_impl(http::verb, Text method, Text target, int version, error_code&) override {
    request.method = view(method);
    request.target = view(target);
    request.version = version;
  }
  void on_field_impl(http::field, Text name_text, Text value, error_code& ec) override {
    if (!in_head) return;  // a trailer: nothing that follows a body may change what it was
    const std::string name = lowercase(view(name_text));
    const auto [place, first] = request.headers.try_emplace(name, view(value));
    if (first) return;
    if (name == "host" || name == "content-length" || name == "transfer-encoding") {
      refused = "a second " + name + " header";
      ec = http::error::bad_field;
    } else {
      place->second.append(name == "cookie" ? "; " : ", ").append(view(value));
    }
  }
  void on_header_impl(error_code& ec) override {
    in_head = false;
    request.keep_alive = request.version == 11 && keep_alive();
    const auto length = request.headers.find("content-length"), coding = request.headers.find("transfer-encoding");
    if (length != request.headers.end() && coding != request.headers.end()) {
      refused = "both content-length and transfer-encoding";
    } else if (length != request.headers.end() && !all_digits(length->second)) {
      refused = "a content-length that is no number";
    } else if (coding != request.headers.end() && (lowercase(coding->second) != "chunked" || request.version != 11)) {
      refused = "a transfer-encoding other than chunked";
    } else if (request.version == 11 && request.headers.count("host") == 0) {
      refused = "no host header";
    }
    if (!refused.empty()) ec = http::error::bad_field;
    request.chunked = coding != request.headers.end();
    if (const auto bytes = content_length()) request.content_length = *bytes;
  }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  size_t on_body_impl(Text text, error_code& ec) override {
    if (text.size() > max_body - content.size()) return ec = http::error::body_limit, 0;
    return content.append(text.data(), text.size()), text.size();
  }
  void on_chunk_header_impl(std::uint64_t, Text, error_code&) override {}
  size_t on_chunk_body_impl(std::uint64_t, Text text, error_code& ec) override { return on_body_impl(text, ec); }
  void on_finish_impl(error_code&) override {}
  void on_response_impl(int, Text, int, error_code&) override {}
  void on_trailer_field_impl(http::field, Text, Text, error_code&) {}  // virtual in newer versions of Beast

  Problem problem(const error_code& ec) const {
    if (!ec || ec == http::error::need_more) return {};
    if (ec == http::error::body_limit) return {413, "the body is larger than this server takes"};
    if (ec == http::error::header_limit) return {431, "the head of the request is larger than this server takes"};
    if (ec == http::error::bad_version) return {505, "HTTP/1.1 and HTTP/1.0 are understood"};
    return {400, "not a request that can be understood: " + (refused.empty() ? ec.message() : refused)};
  }
};

RequestReader::RequestReader(size_t max_head, size_t max_body) : parser_(std::make_unique<Parser>()) {
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(std::min<size_t>(max_head, std::numeric_limits<uint32_t>::max())));
  parser_->body_limit(std::numeric_limits<uint64_t>::max());  // Beast would refuse a length before keys are looked at
  parser_->max_body = max_body;
}
RequestReader::~RequestReader() = default;

RequestReader::Problem RequestReader::read_head(std::string_view bytes) {
  if (bytes.find("\r\n ") != bytes.npos || bytes.find("\r\n\t") != bytes.npos)
    return {400, "not a request that can be understood: a folded header line"};
  error_code ec;
  parser_->put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
  if (Problem problem = parser_->problem(ec); problem.status) return problem;
  if (!parser_->is_header_done()) return {400, "not a request that can be understood: its head does not end"};
  return {};
}

const RequestHead& RequestReader::head() const { return parser_->request; }

RequestReader::Problem RequestReader::read_body(std::string_view bytes, size_t* used) {
  *used = 0;
  // No body of chunks ends in fewer bytes ("0\r\n\r\n"), and Beast asserts that it is asked again with so many.
  if (head().chunked && bytes.size() < 5) return {};
  error_code ec;
  *used = parser_->put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
  return parser_->problem(ec);
}

bool RequestReader::done() const { return parser_->is_done(); }
std::string& RequestReader::body() { return parser_->content; }

const char* reason_phrase(int status) {
  switch (status) {
    case 421: return "Misdirected Request";
    case 503: return "Service Unavailable";
    default: return http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status))).data();  // ends in NUL
  }
}

}  // namespace qeng
