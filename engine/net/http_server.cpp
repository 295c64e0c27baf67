#include "engine/net/http_server.h"

#include <chrono>
#include <thread>

#include "engine/net/answer.h"
#include "engine/net/connection.h"
#include "engine/net/network.h"
#include "kernels/error.h"

namespace qeng {

struct HttpServer::Inner {
  void answer(uint64_t id, int status, const HttpHeaders& headers, std::optional<std::string_view> body);

  Listener listener;
  std::unique_ptr<Network> network;  // none: closed
  uint16_t port = 0;
};

// A whole answer, or the beginning of a stream.
void HttpServer::Inner::answer(uint64_t id, int status, const HttpHeaders& headers,
                               std::optional<std::string_view> body) {
  if (status < 200 || status > 599) fail("value", "an answer's status is 200 to 599, got ", status);
  const std::string lines = header_lines(headers);
  listener.desk.with(id, body.has_value(), [&](AnswerForm& form) {
    if (form.begun) fail("value", "the answer to request ", id, " was begun: write it and finish it");
    form.begun = true;
    if (listener.desk.stopping) form.keep_alive = false;
    const Framing stream = form.http10 ? Framing::until_close : Framing::chunked;
    form.framing = has_no_body(status) ? Framing::none : body ? Framing::length : stream;
    std::string bytes = head_text({.status = status,
                                   .framing = form.framing,
                                   .length = body ? body->size() : 0,
                                   .keep_alive = form.keep_alive,
                                   .lines = form.lines + lines});
    if (form.head_only) form.framing = Framing::none;
    if (body && form.framing == Framing::length) bytes += *body;
    form.connection->send(std::move(bytes), body.has_value(), !form.keep_alive);
  });
}

HttpServer::HttpServer(HttpOptions options) : inner_(new Inner{.listener = {std::move(options)}}) {
  inner_->network = std::make_unique<Network>(inner_->listener);
  inner_->port = inner_->network->port();
}
HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return inner_->port; }

std::optional<HttpEvent> HttpServer::wait(double seconds) {
  inner_->listener.desk.starting = false;
  return inner_->listener.desk.wait(seconds);
}

void HttpServer::respond(uint64_t id, int status, const HttpHeaders& headers, std::string_view body) {
  inner_->answer(id, status, headers, body);
}

void HttpServer::begin(uint64_t id, int status, const HttpHeaders& headers) {
  inner_->answer(id, status, headers, std::nullopt);
}

std::optional<size_t> HttpServer::write(uint64_t id, std::string_view text) {
  Desk& desk = inner_->listener.desk;
  bool slow = false;
  size_t unsent = 0;
  const bool there = desk.with(id, false, [&](AnswerForm& form) {
    if (!form.begun) fail("value", "the answer to request ", id, " was not begun");
    slow = form.connection->unsent() > inner_->listener.options.max_unsent;
    if (slow) return form.connection->drop();
    if (form.framing == Framing::chunked) form.connection->send(chunk(text), false, false);
    if (form.framing == Framing::until_close) form.connection->send(std::string(text), false, false);
    unsent = form.connection->unsent();
  });
  if (slow) {
    ++desk.dropped_slow;
    desk.left(id);
  }
  if (!there || slow) return std::nullopt;
  return unsent;
}

void HttpServer::finish(uint64_t id) {
  inner_->listener.desk.with(id, true, [&](AnswerForm& form) {
    if (!form.begun) fail("value", "the answer to request ", id, " was not begun");
    form.connection->send(form.framing == Framing::chunked ? kLastChunk : "", true, !form.keep_alive);
  });
}

void HttpServer::ready() { inner_->listener.desk.starting = false; }

HttpStats HttpServer::stats() const { return inner_->listener.desk.stats(); }

void HttpServer::stop() {
  inner_->listener.desk.stopping = true;
  if (inner_->network) inner_->network->stop_accepting();
}

bool HttpServer::sent(double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (inner_->listener.desk.unsent_bytes > 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void HttpServer::close() { inner_->network.reset(); }

}  // namespace qeng
