// What engine/net makes of requests and of answers. Who may ask, and limits, are in http_limits_test.cpp.
#include "engine/net/http_server.h"

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/unit/http_client.h"

using namespace qeng;
using Kind = HttpEvent::Kind;

namespace {
HttpOptions any_port() {
  HttpOptions options;
  options.port = 0;
  return options;
}
HttpEvent next(HttpServer& server) {
  auto event = server.wait(10);
  REQUIRE(event);
  return *event;
}
const std::string kGet = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const std::string kPost =
    "POST /v1/a%20b%2f?x=1&y=%C3%A4+z&x=2&flag HTTP/1.1\r\nHost: a:1\r\nX-Two: 1\r\nx-two:  2 \r\n"
    "Content-Length: 5\r\n\r\nhello";
}  // namespace

TEST_CASE("a request has its method, decoded path, query, headers and body, whole or byte by byte") {
  HttpServer server(any_port());
  HttpClient client(server.port());
  for (const bool whole : {true, false}) {
    for (size_t i = 0; i < (whole ? 1 : kPost.size()); ++i) client.send(whole ? kPost : kPost.substr(i, 1));
    const HttpEvent event = next(server);
    CHECK(event.kind == Kind::request);
    CHECK(event.method == "POST");
    CHECK(event.path == "/v1/a b/");
    CHECK(event.query == std::map<std::string, std::string>{{"x", "2"}, {"y", "\xc3\xa4 z"}, {"flag", ""}});
    CHECK(event.headers == HttpHeaders{{"host", "a:1"}, {"x-two", "1, 2"}, {"content-length", "5"}});
    CHECK(event.body == "hello");
    CHECK(event.remote.rfind("127.0.0.1:", 0) == 0);
    server.respond(event.id, 201, {{"x-request-id", "r1"}}, "made");
    const Reply reply = client.reply();
    CHECK(reply.status == 201);
    CHECK(reply.body == "made");
    CHECK(reply.headers.at("x-request-id") == "r1");
    CHECK(reply.headers.at("server") == "qeng");
    CHECK(reply.headers.at("date").size() == 29);  // "Sun, 06 Nov 1994 08:49:37 GMT"
    CHECK(reply.headers.count("connection") == 0);
  }
  CHECK(server.stats().requests == 2);
  CHECK(server.stats().connections == 1);
}

TEST_CASE("a body of chunks is their sum, and trailers change no header") {
  HttpServer server(any_port());
  HttpClient client(server.port());
  const std::string text =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;name=value\r\nhello\r\nA\r\n 0123456\r\n"
      "\r\n0\r\nX-Key: 1\r\n\r\n";
  for (const bool whole : {true, false}) {
    for (size_t i = 0; i < (whole ? 1 : text.size()); ++i) client.send(whole ? text : text.substr(i, 1));
    const HttpEvent event = next(server);
    CHECK(event.body == "hello 0123456\r\n");
    CHECK(event.headers.count("x-key") == 0);
    server.respond(event.id, 200, {}, "");
    CHECK(client.reply().status == 200);
    const std::string none = text.substr(0, text.find("5;")) + "0\r\n\r\n";
    for (size_t i = 0; i < (whole ? 1 : none.size()); ++i) client.send(whole ? none : none.substr(i, 1));
    const HttpEvent empty = next(server);
    CHECK(empty.body == "");
    server.respond(empty.id, 200, {}, "");
    CHECK(client.reply().status == 200);
  }
}

TEST_CASE("pipelined requests come one after the other, each after the answer to the one before") {
  HttpServer server(any_port());
  HttpClient client(server.port());
  std::string all;
  for (int i = 0; i < 500; ++i) all += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n";
  std::thread sender([&] { client.send(all); });  // more than is read ahead
  for (int i = 0; i < 500; ++i) {
    const HttpEvent event = next(server);
    CHECK(event.path == "/" + std::to_string(i));
    CHECK(server.stats().waiting_events == 0);
    server.respond(event.id, 200, {}, event.path);
  }
  sender.join();
  for (int i = 0; i < 500; ++i) CHECK(client.reply().body == "/" + std::to_string(i));
}

TEST_CASE("a stream is chunked for HTTP/1.1, and ends with the connection for HTTP/1.0") {
  HttpServer server(any_port());
  for (const std::string version : {"1.1", "1.0"}) {
    HttpClient client(server.port());
    client.send("GET / HTTP/" + version + "\r\nHost: a\r\n\r\n");
    const uint64_t id = next(server).id;
    server.begin(id, 200, {{"content-type", "text/event-stream"}});
    CHECK(client.head().headers.at("content-type") == "text/event-stream");  // at once
    CHECK(server.write(id, "one "));
    CHECK(server.write(id, ""));  // ends nothing
    CHECK(server.write(id, "two"));
    const std::string written = version == "1.1" ? "4\r\none \r\n3\r\ntwo\r\n" : "one two";
    CHECK(client.bytes(written.size()) == written);
    server.finish(id);
    CHECK_FALSE(server.write(id, "more"));
    if (version == "1.1") {
      CHECK(client.bytes(5) == "0\r\n\r\n");
      client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
      server.respond(next(server).id, 200, {}, "");
      CHECK(client.reply().headers.at("connection") == "close");
    }
    CHECK(client.rest() == "");
  }
}

TEST_CASE("HEAD is answered by the head of the answer to GET, and 204 has no body") {
  HttpServer server(any_port());
  HttpClient client(server.port());
  client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  server.respond(next(server).id, 200, {}, "hello");
  CHECK(client.head().headers.at("content-length") == "5");
  client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  const uint64_t id = next(server).id;
  server.begin(id, 200, {});
  server.write(id, "hello");
  server.finish(id);
  CHECK(client.head().headers.at("transfer-encoding") == "chunked");
  client.send(kGet);
  server.respond(next(server).id, 204, {}, "ignored");
  CHECK(client.head().headers.count("content-length") == 0);
  client.send(kGet);
  server.respond(next(server).id, 200, {}, "x");
  CHECK(client.reply().body == "x");
}

TEST_CASE("a client that asks before it sends its body is told to go on") {
  HttpServer server(any_port());
  HttpClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  CHECK(client.until("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ab");
  const HttpEvent event = next(server);
  CHECK(event.body == "ab");
  server.respond(event.id, 200, {}, "");
  CHECK(client.reply().status == 200);
}

TEST_CASE("what two servers might read differently is refused, and ends the connection") {
  HttpServer server(any_port());
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  for (const std::string& text : std::vector<std::string>{
           post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
           post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
           post + "Content-Length: 1, 1\r\n\r\nx",
           post + "Content-Length: +1\r\n\r\nx",
           post + "Content-Length: -1\r\n\r\n",
           post + "Content-Length: 0x1\r\n\r\nx",
           post + "Content-Length:\r\n\r\n",
           post + "Content-Length: 99999999999999999999\r\n\r\n",
           post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           post + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
           post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
           post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
           post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
           post + "Transfer-Encoding: gzip\r\n\r\n",
           post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
           post + "Transfer-Encoding:\x0b"
                  "chunked\r\n\r\n0\r\n\r\n",
           post + "X: 1\r\n folded\r\n\r\n",
           post + " X: 1\r\n\r\n",
           post + "X\r\n\r\n",
           post + ": 1\r\n\r\n",
           post + "X: a\x01\r\n\r\n",
           post + "X: a\rY: b\r\n\r\n",
           post + "X: a\nY: b\r\n\r\n",
           post + std::string("X: a\0b\r\n\r\n", 10),
           post + "Host: b\r\n\r\n",
           post + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
           post + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
           post + "Transfer-Encoding: chunked\r\n\r\n-1\r\nab\r\n0\r\n\r\n",
           post + "Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\nab\r\n0\r\n\r\n",
           "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "GET / HTTP/1.1\r\n\r\n",
           "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /\r\nHost: a\r\n\r\n",
           "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
           "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /?a=%00 HTTP/1.1\r\nHost: a\r\n\r\n",
           std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8),
       }) {
    CAPTURE(text);
    HttpClient client(server.port());
    client.send(text);
    const Reply reply = client.reply();
    CHECK(reply.status == 400);
    CHECK(reply.headers.at("connection") == "close");
    CHECK(reply.body.rfind(R"({"error":{"message":)", 0) == 0);
    CHECK(client.rest() == "");
    const HttpEvent event = next(server);
    CHECK(event.kind == Kind::refused);
    CHECK(event.status == 400);
  }
  for (const char* line : {"GET / HTTP/2.0\r\n", "GET /a b HTTP/1.1\r\n"}) {
    HttpClient client(server.port());
    client.send(line + std::string("Host: a\r\n\r\n"));
    CHECK(client.reply().status == 505);
  }
}

TEST_CASE("a client that leaves before its answer is told of once") {
  HttpServer server(any_port());
  const auto nothing_comes = [&] { return !server.wait(0.1); };
  for (const bool by_reset : {false, true}) {
    HttpClient client(server.port());
    client.send(kGet);
    const uint64_t id = next(server).id;
    server.begin(id, 200, {});
    by_reset ? client.reset() : client.close();
    const HttpEvent gone = next(server);
    CHECK(gone.kind == Kind::gone);
    CHECK(gone.id == id);
    CHECK_FALSE(server.write(id, "x"));
    server.finish(id);
    CHECK(nothing_comes());
  }
  HttpClient half(server.port());
  half.send(kGet);
  const uint64_t id = next(server).id;
  shutdown(half.fd(), SHUT_WR);
  CHECK(next(server).id == id);
  CHECK(half.rest() == "");

  HttpClient served(server.port());
  served.send(kGet);
  server.respond(next(server).id, 200, {}, "x");
  CHECK(served.reply().body == "x");
  served.close();
  CHECK(nothing_comes());

  HttpClient unseen(server.port());
  unseen.send(kPost);
  CHECK(eventually([&] { return server.stats().waiting_bytes == 5; }));
  unseen.close();
  CHECK(eventually([&] { return server.stats().waiting_events == 0; }));
  CHECK(server.stats().waiting_bytes == 0);
  CHECK(nothing_comes());
  CHECK(eventually([&] { return server.stats().connections == 0; }));
}

TEST_CASE("200 connections at once each get their own answer") {
  HttpOptions options = any_port();
  options.threads = 3;
  HttpServer server(options);
  std::vector<HttpClient> clients;
  for (int i = 0; i < 200; ++i) clients.emplace_back(server.port());
  for (int i = 0; i < 200; ++i)
    clients[static_cast<size_t>(i)].send("GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n");
  std::vector<HttpEvent> events;
  for (int i = 0; i < 200; ++i) server.begin(events.emplace_back(next(server)).id, 200, {});
  for (int round = 0; round < 5; ++round)
    for (const HttpEvent& event : events) CHECK(server.write(event.id, event.path));
  for (const HttpEvent& event : events) server.finish(event.id);
  for (int i = 0; i < 200; ++i) {
    const std::string path = "/" + std::to_string(i);
    CHECK(clients[static_cast<size_t>(i)].reply().body == path + path + path + path + path);
  }
}

TEST_CASE("until the loop waits for an event, open paths say that the server lives, and others that it is not ready") {
  HttpOptions options = any_port();
  options.starting = true;
  options.keys = {"key"};
  options.open = {"/health"};
  HttpServer server(options);
  const auto status = [&](const std::string& path, const std::string& lines) {
    HttpClient client(server.port());
    client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + lines + "\r\n");
    return client.reply();
  };
  CHECK(status("/health", "").status == 200);
  CHECK(status("/ready", "").status == 401);
  const Reply early = status("/ready", "x-api-key: key\r\n");
  CHECK(early.status == 503);
  CHECK(early.headers.at("retry-after") == "1");
  for (const int told : {401, 503}) CHECK(next(server).status == told);
  HttpClient client(server.port());
  client.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  server.respond(next(server).id, 200, {}, "x");
  CHECK(client.reply().body == "x");
}

TEST_CASE("a server that stops finishes what it began, and one that is closed has sent what it was given") {
  HttpServer server(any_port());
  HttpClient streaming(server.port()), open(server.port());
  streaming.send(kGet);
  const uint64_t id = next(server).id;
  server.begin(id, 200, {});
  open.send(kGet);
  server.respond(next(server).id, 200, {}, "x");
  CHECK(open.reply().body == "x");
  server.stop();
  open.send(kGet);
  const Reply refused = open.reply();
  CHECK(refused.status == 503);
  CHECK(refused.headers.at("connection") == "close");
  CHECK(eventually([&] {
    try {
      HttpClient late(server.port());
    } catch (const std::runtime_error&) {
      return true;
    }
    return false;
  }));
  const std::string large(3 << 20, 'x');
  CHECK(server.write(id, large));
  server.finish(id);
  Reply reply;
  std::thread reader([&] { reply = streaming.reply(); });
  CHECK(server.sent(10));
  server.close();
  reader.join();
  CHECK(reply.body == large);
  CHECK(streaming.rest() == "");
  CHECK_FALSE(server.write(id, "x"));
  CHECK(server.stats().connections == 0);
}

TEST_CASE("what cannot be a header, a status or an answer is an error") {
  HttpServer server(any_port());
  HttpClient client(server.port());
  client.send(kGet);
  const uint64_t id = next(server).id;
  CHECK_THROWS_AS(server.respond(id, 200, {{"a", "b\r\nc: d"}}, ""), Error);
  CHECK_THROWS_AS(server.respond(id, 200, {{"a b", "c"}}, ""), Error);
  CHECK_THROWS_AS(server.respond(id, 200, {{"Content-Length", "3"}}, ""), Error);
  CHECK_THROWS_AS(server.respond(id, 100, {}, ""), Error);
  CHECK_THROWS_AS(server.write(id, "x"), Error);
  CHECK_THROWS_AS(server.finish(id), Error);
  server.begin(id, 200, {});
  CHECK_THROWS_AS(server.respond(id, 200, {}, ""), Error);
  CHECK(client.head().status == 200);
}

TEST_CASE("a port in use, an address elsewhere and half of TLS are errors that say what to do") {
  HttpServer server(any_port());
  const auto message = [](const HttpOptions& options) {
    try {
      HttpServer second(options);
    } catch (const Error& error) {
      return error.code + ": " + error.what();
    }
    return std::string();
  };
  HttpOptions options = any_port();
  options.port = server.port();
  CHECK(message(options).find("use another port") != std::string::npos);
  options = any_port();
  options.host = "192.0.2.1";  // of documentation
  CHECK(message(options).find("no address of this machine") != std::string::npos);
  options = any_port();
  options.cert = "/nowhere.pem";
  CHECK(message(options).rfind("value: TLS takes a certificate and its key", 0) == 0);
  options.key = "/nowhere.pem";
  CHECK(message(options).rfind("io: /nowhere.pem: no certificate in PEM", 0) == 0);
}
