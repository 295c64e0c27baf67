#include "engine/net/connection.h"

#include <strings.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>

#include "engine/net/answer.h"
#include "engine/net/target.h"

namespace qeng {
namespace {
constexpr size_t kMaxAhead = 8192;       // of the next request, while one is answered; then TCP holds the client back
constexpr size_t kMaxDrained = 1 << 20;  // of a body that was refused: closing while it comes would lose the answer
constexpr double kEndSeconds = 2;        // for the other side to end too

std::string refusal_body(const HttpRefusal& refusal) {
  if (refusal.message.empty()) return "";
  const nlohmann::ordered_json error = {
      {"message", refusal.message},
      {"type", refusal.status >= 500 ? "server_error" : "invalid_request_error"},
      {"param", nullptr},
      {"code", refusal.code.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(refusal.code)}};
  return nlohmann::ordered_json{{"error", error}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
}  // namespace

Connection::Connection(Listener& listener, std::unique_ptr<Wire> wire, boost::asio::any_io_executor executor,
                       std::string remote)
    : listener_(listener), wire_(std::move(wire)), executor_(executor), timer_(executor), remote_(std::move(remote)) {
  ++listener_.desk.connections;
}

Connection::~Connection() {
  release_body();
  listener_.desk.unsent_bytes -= unsent_;
  --listener_.desk.connections;
}

void Connection::start() {
  limit(read_by_, listener_.options.head_seconds);
  wire_->handshake([self = shared_from_this()](WireError error) {
    if (error) return self->close();
    self->state_ = State::head;
    self->advance();
  });
}

// ---------------------------------------------------------------- reading

void Connection::read() {
  if (reading_ || closed_) return;
  reading_ = true;
  wire_->read([self = shared_from_this()](WireError error, std::string_view bytes) {
    self->reading_ = false;
    self->came(error, bytes);
  });
}

void Connection::came(WireError error, std::string_view bytes) {
  if (closed_) return;
  if (error) return ended(error);
  if (state_ == State::ending) {
    drained_ += bytes.size();
    return drained_ > kMaxDrained ? close() : read();
  }
  inbox_ += bytes;
  advance();
}

void Connection::ended(WireError error) {
  // An answer that was handed over whole goes on to a client that only said that it has no more to ask.
  if (error == boost::asio::error::eof && state_ == State::answer && complete_) {
    then_close_ = true;
    return;
  }
  close();
}

void Connection::advance() {
  if (state_ == State::head) return read_head();
  if (state_ == State::body) return read_body();
  if (state_ == State::answer && inbox_.size() < kMaxAhead) read();
}

void Connection::read_head() {
  if (inbox_.empty()) return read();
  if (event_.at == 0) {
    event_.at = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    limit(read_by_, listener_.options.head_seconds);
  }
  event_.remote = remote_;
  if (inbox_[0] < 'A' || inbox_[0] > 'Z')
    return refuse({400, "not a request that can be understood: it begins with no method", "", ""});
  const size_t end = inbox_.find("\r\n\r\n", searched_);
  searched_ = inbox_.size() < 3 ? 0 : inbox_.size() - 3;
  const size_t size = end == inbox_.npos ? inbox_.size() - std::min<size_t>(inbox_.size(), 3) : end;
  if (size > listener_.options.max_head)
    return refuse({431, "the head of the request is larger than this server takes", "", ""});
  if (end == inbox_.npos) return read();
  take_head(end + 4);
}

void Connection::take_head(size_t size) {
  const HttpOptions& options = listener_.options;
  reader_ = std::make_unique<RequestReader>(options.max_head + 4, options.max_body);
  const auto problem = reader_->read_head(std::string_view(inbox_).substr(0, size));
  inbox_.erase(0, size);
  searched_ = 0;
  const RequestHead& head = reader_->head();
  event_.method = head.method;
  if (problem.status) return refuse({problem.status, problem.text, "", ""});
  auto target = parse_target(head.target);
  if (!target) return refuse({400, "the target of the request is no path that can be decoded", "", ""});
  event_.path = std::move(target->path);
  event_.query = std::move(target->query);
  origin_lines_ = listener_.access.origin_headers(head);
  if (auto refusal = listener_.access.check(head, event_.path)) return refuse(std::move(*refusal));
  if (listener_.desk.starting && listener_.access.is_open(event_.path)) return refuse({200, "", "", ""});
  if (listener_.desk.starting) return refuse({503, "this server is about to answer", "", "Retry-After: 1\r\n"});
  if (listener_.desk.stopping) return refuse({503, "this server is about to stop", "", "Retry-After: 5\r\n"});
  if (head.content_length.value_or(0) > options.max_body)
    return refuse({413, "the body is larger than this server takes", "", ""});
  event_.headers = head.headers;
  if (reader_->done()) return deliver();

  state_ = State::body;
  limit(read_by_, options.body_seconds);
  if (const auto expect = head.header("expect"); !expect.empty()) {
    if (strcasecmp(std::string(expect).c_str(), "100-continue") != 0)
      return refuse({417, "of expectations, 100-continue is understood", "", ""});
    if (inbox_.empty() && head.version == 11) {
      queue("HTTP/1.1 100 Continue\r\n\r\n");
      flush();
    }
  }
  read_body();
}

void Connection::read_body() {
  size_t used = 0;
  const auto problem = reader_->read_body(inbox_, &used);
  inbox_.erase(0, used);
  if (problem.status) return refuse({problem.status, problem.text, "", ""});
  const size_t more = reader_->body().size() - body_kept_;
  if (!listener_.desk.keep_bytes(more))
    return refuse({503, "too many requests wait here: ask again later", "", "Retry-After: 1\r\n"});
  body_kept_ += more;
  if (reader_->done()) return deliver();
  if (inbox_.size() > listener_.options.max_head)
    return refuse({400, "a chunk's head, or what follows the last chunk, is too large", "", ""});
  read();
}

void Connection::deliver() {
  state_ = State::answer;
  limit(read_by_, 0);
  const RequestHead& head = reader_->head();
  AnswerForm form{.connection = shared_from_this(),
                  .head_only = head.method == "HEAD",
                  .keep_alive = head.keep_alive,
                  .http10 = head.version == 10,
                  .lines = origin_lines_};
  event_.body = std::move(reader_->body());
  body_kept_ = 0;  // the desk's from here
  reader_.reset();
  id_ = listener_.desk.deliver(std::move(event_), std::move(form));
  event_ = HttpEvent();
  advance();
}

void Connection::refuse(HttpRefusal refusal) {
  release_body();
  reader_.reset();
  event_.status = refusal.status;
  const bool head_only = event_.method == "HEAD";
  const std::string body = refusal_body(refusal);
  if (refusal.status >= 400) listener_.desk.refused(std::move(event_));  // below, it is an answer
  event_ = HttpEvent();
  const std::string json = body.empty() ? "" : "Content-Type: application/json\r\n";
  queue(head_text({.status = refusal.status,
                   .framing = has_no_body(refusal.status) ? Framing::none : Framing::length,
                   .length = body.size(),
                   .keep_alive = false,
                   .lines = origin_lines_ + refusal.headers + json}) +
        (head_only ? "" : body));
  state_ = State::answer;
  limit(read_by_, 0);
  complete_ = then_close_ = true;
  flush();
}

// ---------------------------------------------------------------- writing

void Connection::send(std::string bytes, bool last, bool then_close) {
  unsent_ += bytes.size();
  listener_.desk.unsent_bytes += bytes.size();
  boost::asio::post(executor_, [self = shared_from_this(), bytes = std::move(bytes), last, then_close]() mutable {
    if (self->closed_) return;
    self->pending_.empty() ? void(self->pending_ = std::move(bytes)) : void(self->pending_ += bytes);
    self->complete_ |= last;
    self->then_close_ |= then_close;
    self->flush();
  });
}

void Connection::drop() {
  boost::asio::post(executor_, [self = shared_from_this()] { self->close(); });
}

void Connection::queue(std::string_view bytes) {
  unsent_ += bytes.size();
  listener_.desk.unsent_bytes += bytes.size();
  pending_ += bytes;
}

void Connection::flush() {
  if (writing_) return;
  if (pending_.empty()) {
    sending_ = std::string();
    if (state_ == State::answer && complete_) next_request();
    return;
  }
  writing_ = true;
  sending_ = std::move(pending_);
  pending_ = std::string();
  sent_ = 0;
  write_some();
}

void Connection::write_some() {
  limit(write_by_, listener_.options.write_seconds);
  wire_->write(std::string_view(sending_).substr(sent_), [self = shared_from_this()](WireError error, size_t count) {
    if (self->closed_) return;
    if (error) return self->close();
    self->sent_ += count;
    self->unsent_ -= count;
    self->listener_.desk.unsent_bytes -= count;
    if (self->sent_ < self->sending_.size()) return self->write_some();
    self->writing_ = false;
    self->limit(self->write_by_, 0);
    self->flush();
  });
}

// ---------------------------------------------------------------- from one request to the next, and the end

void Connection::next_request() {
  complete_ = false;
  id_ = 0;
  origin_lines_.clear();
  if (then_close_) return end();
  state_ = State::head;
  limit(read_by_, listener_.options.idle_seconds);
  advance();
}

void Connection::end() {
  state_ = State::ending;
  inbox_ = std::string();
  limit(read_by_, kEndSeconds);
  wire_->end([self = shared_from_this()] { self->close(); });
  read();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  wire_->close();
  timer_.cancel();
  if (id_ != 0) listener_.desk.left(id_);
  release_body();
  reader_.reset();
}

void Connection::release_body() {
  listener_.desk.release_bytes(body_kept_);
  body_kept_ = 0;
}

// ---------------------------------------------------------------- time

void Connection::limit(Clock::time_point& deadline, double seconds) {
  deadline = seconds > 0
                 ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))
                 : Clock::time_point::max();
  arm();
}

// A timer that is set for an earlier time stays: it looks again then.
void Connection::arm() {
  const Clock::time_point first = std::min(read_by_, write_by_);
  if (closed_ || first >= armed_for_) return;
  armed_for_ = first;
  timer_.expires_at(first);
  timer_.async_wait([self = shared_from_this()](WireError error) {
    if (error || self->closed_) return;
    self->armed_for_ = Clock::time_point::max();
    self->expired();
  });
}

void Connection::expired() {
  const Clock::time_point now = Clock::now();
  if (now >= write_by_) {
    ++listener_.desk.dropped_slow;
    return close();
  }
  if (now < read_by_) return arm();
  const bool begun = state_ == State::body || (state_ == State::head && event_.at != 0);
  if (!begun) return close();
  refuse({408, "the request took too long to come", "", ""});
}

}  // namespace qeng
