// An HTTP/1.1 listener, by itself a server of nothing: its threads parse requests, queue them, and write answers; one
// loop elsewhere takes the events and hands the answers back. A slow client costs memory up to a limit, and never time
// of the loop. Everything that comes from the network is bounded by HttpOptions.
//
//   HttpServer server({.port = 8080});
//   while (auto event = server.wait(1))
//     if (event->kind == HttpEvent::Kind::request) server.respond(event->id, 200, {}, "hello");
//
// Requests of one connection come one at a time; pipelined ones wait. What breaks RFC 9112 in a way that a proxy might
// read otherwise is refused with 400. Calls are the loop's: from one thread at a time.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

struct HttpOptions {
  std::string host = "127.0.0.1";  // a name or an address, of IPv6 with or without brackets
  uint16_t port = 8080;            // 0: any free one
  int threads = 1;

  std::vector<std::string> keys;  // if there are some, paths that `open` does not list need one: Authorization: Bearer
  std::vector<std::string> open;  // KEY, x-api-key: KEY, or Basic with it as the password. Else 401
  std::optional<std::vector<std::string>> hosts;  // what the Host header may name, without port; else 421. None: any
  std::vector<std::string> origins;  // who else than the server's own pages may ask from a browser; else 403

  size_t max_body = size_t{16} << 20;            // 413
  size_t max_head = size_t{16} << 10;            // 431
  double head_seconds = 10, body_seconds = 60;   // 408
  double write_seconds = 30;                     // without any progress: the client is dropped
  double idle_seconds = 75;                      // of a connection without a request
  size_t max_connections = 2048;                 // 503
  size_t max_unsent = size_t{1} << 20;           // of one connection, when a stream goes on: the client is dropped
  size_t max_waiting_bytes = size_t{256} << 20;  // of bodies that the loop has not taken: 503

  // Until ready(), or the loop's first wait: requests get 503, and those of `open` an empty 200.
  bool starting = false;

  std::string cert, key;  // PEM files: TLS 1.2 and 1.3. Both or neither
};

struct HttpEvent {
  enum class Kind {
    request,
    gone,    // id: the client left, or was dropped, before its answer was complete. Once, and only if the loop has it
    refused  // status, method, path, remote: answered by the network thread
  };
  Kind kind = Kind::request;
  uint64_t id = 0;
  int status = 0;
  std::string method, path;                    // path: percent-decoded; "" where a refused head had none
  std::map<std::string, std::string> query;    // decoded; of equal names the last
  std::map<std::string, std::string> headers;  // names in lowercase; equal ones joined by ", "
  std::string body, remote;                    // remote: "127.0.0.1:5000"
  double at = 0;                               // when the head began to come: seconds of the steady clock
};

struct HttpStats {
  size_t connections = 0, requests = 0, refused = 0, dropped_slow = 0;
  size_t waiting_events = 0, waiting_bytes = 0, unsent_bytes = 0;
};

using HttpHeaders = std::map<std::string, std::string>;

class HttpServer {
 public:
  // Listens at once. Error("io") where it cannot, Error("value") for options that contradict each other.
  explicit HttpServer(HttpOptions options);
  ~HttpServer();  // closes
  HttpServer(const HttpServer&) = delete;

  uint16_t port() const;
  std::optional<HttpEvent> wait(double seconds);  // the next event, as soon as there is one

  // The answer to a request: whole, or begun, written and finished. What is for a client that is gone is dropped.
  // Error("value") for a status outside 200..599, for headers with line ends, and for a second answer.
  void respond(uint64_t id, int status, const HttpHeaders& headers, std::string_view body);
  void begin(uint64_t id, int status, const HttpHeaders& headers);
  std::optional<size_t> write(uint64_t id, std::string_view text);  // unsent bytes of its connection; none: gone
  void finish(uint64_t id);

  void ready();  // what was to be loaded is there: requests wait for the loop from now on
  HttpStats stats() const;
  void stop();                // no new connections; new requests get 503. Answers under way go on
  bool sent(double seconds);  // waits for what was handed over to be sent; was all of it?
  void close();               // ends every connection; later calls find every client gone

 private:
  struct Inner;
  std::unique_ptr<Inner> inner_;
};

}  // namespace qeng
