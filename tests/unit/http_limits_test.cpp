// Who may ask a server of engine/net, and what a client may cost.
#include <sys/resource.h>

#include "engine/net/http_server.h"
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
const std::string kGet = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

// What the network's threads answer by themselves, or 0 where the loop gets the request.
int answered_by_network(HttpServer& server, const std::string& request, Reply* reply = nullptr) {
  HttpClient client(server.port());
  client.send(request);
  const auto event = server.wait(10);
  REQUIRE(event);
  if (event->kind == Kind::request) {
    server.respond(event->id, 200, {}, "");
    const Reply ours = client.reply();
    CHECK(ours.status == 200);
    if (reply) *reply = ours;
    return 0;
  }
  const Reply theirs = client.reply();
  CHECK(theirs.status == event->status);
  CHECK(client.rest() == "");
  if (reply) *reply = theirs;
  return event->status;
}
std::string get(const std::string& path, const std::string& lines) {
  return "GET " + path + " HTTP/1.1\r\n" + (lines.find("Host:") == lines.npos ? "Host: a\r\n" : "") + lines + "\r\n";
}
}  // namespace

TEST_CASE("with keys a request needs one, by one of three ways, but for open paths") {
  HttpOptions options = any_port();
  options.keys = {"other", "secret"};
  options.open = {"/health"};
  HttpServer server(options);
  for (const char* lines :
       {"Authorization: Bearer secret\r\n", "authorization: bearer  other\r\n", "X-Api-Key: secret\r\n",
        "Authorization: Basic bWU6c2VjcmV0\r\n",     // me:secret
        "Authorization: Basic OnNlY3JldA==\r\n"}) {  // :secret
    CAPTURE(lines);
    CHECK(answered_by_network(server, get("/", lines)) == 0);
  }
  CHECK(answered_by_network(server, get("/health", "")) == 0);
  CHECK(answered_by_network(server, get("/%68ealth?a=1", "")) == 0);
  for (const char* lines :
       {"", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n", "Authorization: Bearer secre\r\n",
        "Authorization: Bearer secrets\r\n", "Authorization: Bearer SECRET\r\n", "Authorization: secret\r\n",
        "Authorization: Digest secret\r\n", "X-Api-Key:\r\n", "X-Api-Key: Bearer secret\r\n",
        "Authorization: Basic c2VjcmV0\r\n",          // secret, without a user
        "Authorization: Basic bWU6c2VjcmV0cw==\r\n",  // me:secrets
        "Authorization: Basic ====\r\n", "Authorization: Basic a\r\n", "Authorization: Basic $$$$\r\n",
        "Authorization: Bearer x\r\nAuthorization: Bearer secret\r\n"}) {
    CAPTURE(lines);
    Reply reply;
    CHECK(answered_by_network(server, get("/", lines), &reply) == 401);
    CHECK(reply.headers["www-authenticate"] == "Basic realm=\"qeng\"");
    CHECK(reply.body.find(R"("type":"invalid_request_error","param":null,"code":"invalid_api_key"}})") !=
          std::string::npos);
  }
  CHECK(answered_by_network(server, get("/health/", "")) == 401);
  // Before the body comes:
  CHECK(answered_by_network(server,
                            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n") == 401);
}

TEST_CASE("only hosts in the list are answered for") {
  HttpOptions options = any_port();
  options.hosts = {"localhost", "127.0.0.1", "::1"};
  HttpServer server(options);
  for (const char* host : {"localhost", "LocalHost:8080", "127.0.0.1:80", "[::1]:8080", "[::1]"})
    CHECK(answered_by_network(server, get("/", "Host: " + std::string(host) + "\r\n")) == 0);
  for (const char* host :
       {"evil.example", "localhost.evil.example:8080", "evil.example:localhost", "", "[", "localhost."})
    CHECK(answered_by_network(server, get("/", "Host: " + std::string(host) + "\r\n")) == 421);
  CHECK(answered_by_network(server, "GET / HTTP/1.0\r\n\r\n") == 421);
}

TEST_CASE("pages of other origins may ask if the list has them") {
  HttpOptions options = any_port();
  options.origins = {"https://good.example"};
  options.keys = {"secret"};
  options.open = {"/"};
  HttpServer server(options);
  Reply reply;
  CHECK(answered_by_network(server, get("/", "Host: me:1\r\nOrigin: http://me:1\r\n"), &reply) == 0);
  CHECK(reply.headers.count("access-control-allow-origin") == 0);
  CHECK(answered_by_network(server, get("/", "Origin: https://good.example\r\n"), &reply) == 0);
  CHECK(reply.headers["access-control-allow-origin"] == "https://good.example");
  CHECK(answered_by_network(server, get("/x", "Origin: https://good.example\r\n"), &reply) == 401);
  CHECK(reply.headers["access-control-allow-origin"] == "https://good.example");
  for (const char* origin : {"http://good.example", "https://good.example.evil", "null", "http://me:2", "https://me:1"})
    CHECK(answered_by_network(server, get("/", "Host: me:1\r\nOrigin: " + std::string(origin) + "\r\n")) == 403);

  HttpClient preflight(server.port());
  preflight.send(
      "OPTIONS /x HTTP/1.1\r\nHost: a\r\nOrigin: https://good.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n");
  reply = preflight.reply();
  CHECK(reply.status == 204);
  CHECK(reply.headers["access-control-allow-origin"] == "https://good.example");
  CHECK(reply.headers["access-control-allow-methods"].find("POST") != std::string::npos);
  CHECK(reply.headers["access-control-allow-headers"] == "authorization");
}

TEST_CASE("heads and bodies over the limits are refused, and those at the limits are not") {
  HttpOptions options = any_port();
  options.max_head = 1000;
  options.max_body = 100000;
  HttpServer server(options);
  const auto head_of = [](size_t size) {  // but for the empty line
    const std::string start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
    return start + std::string(size - start.size(), 'x') + "\r\n\r\n";
  };
  CHECK(answered_by_network(server, head_of(1000)) == 0);
  CHECK(answered_by_network(server, head_of(1001)) == 431);
  HttpClient slow(server.port());
  slow.send(head_of(1000).substr(0, 1003));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that the last byte comes alone
  slow.send("\n");
  server.respond(server.wait(10)->id, 200, {}, "");
  CHECK(slow.reply().status == 200);
  CHECK(answered_by_network(server, "GET /" + std::string(5000, 'x')) == 431);
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  CHECK(answered_by_network(server, post + "Content-Length: 100000\r\n\r\n" + std::string(100000, 'x')) == 0);
  CHECK(answered_by_network(server, post + "Content-Length: 100001\r\n\r\n" + std::string(100001, 'x')) == 413);
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n",
                    piece = "c350\r\n" + std::string(50000, 'x') + "\r\n";
  CHECK(answered_by_network(server, chunked + piece + piece + "0\r\n\r\n") == 0);
  CHECK(answered_by_network(server, chunked + piece + piece + "1\r\nx\r\n0\r\n\r\n") == 413);
  CHECK(answered_by_network(server, chunked + "1;" + std::string(5000, 'x')) == 400);
  CHECK(answered_by_network(server, chunked + "0\r\nX: " + std::string(5000, 'x')) == 400);
}

TEST_CASE("a request that comes too slowly is answered 408, and a silent connection is closed") {
  HttpOptions options = any_port();
  options.head_seconds = options.body_seconds = options.idle_seconds = 0.2;
  HttpServer server(options);
  CHECK(answered_by_network(server, "GET / HTTP/1.1\r\nHost") == 408);
  CHECK(answered_by_network(server, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell") == 408);
  HttpClient silent(server.port());
  CHECK(silent.rest() == "");
  HttpClient kept(server.port());
  kept.send(kGet);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the loop may take its time
  const auto event = server.wait(10);
  REQUIRE(event);
  server.respond(event->id, 200, {}, "");
  CHECK(kept.reply().status == 200);
  CHECK(kept.rest() == "");
}

TEST_CASE("a reader that is slower than its stream is dropped, by what waits or by time, and others go on") {
  HttpOptions options = any_port();
  options.max_unsent = 1 << 20;
  options.write_seconds = 0.3;
  HttpServer server(options);
  const std::string text(65536, 'x');
  for (const bool by_time : {false, true}) {
    HttpClient slow(server.port(), 4096), other(server.port());
    slow.send(kGet);
    const uint64_t id = server.wait(10)->id;
    server.begin(id, 200, {});
    int written = 0;
    if (by_time) server.write(id, std::string(64 << 20, 'x'));  // once, and more than the kernel takes
    while (!by_time && written < 1000 && server.write(id, text)) ++written;
    CHECK(written < 1000);
    const auto gone = server.wait(10);
    REQUIRE(gone);
    CHECK(gone->kind == Kind::gone);
    CHECK(gone->id == id);
    CHECK(server.stats().dropped_slow == (by_time ? 2 : 1));
    other.send(kGet);
    server.respond(server.wait(10)->id, 200, {}, "x");
    CHECK(other.reply().body == "x");
  }
  CHECK(eventually([&] { return server.stats().unsent_bytes == 0; }));
}

TEST_CASE("a whole answer larger than a stream may leave unsent reaches a slow reader") {
  HttpOptions options = any_port();
  options.max_unsent = 1000;
  HttpServer server(options);
  HttpClient client(server.port(), 4096);
  client.send(kGet);
  const std::string large(2 << 20, 'x');
  server.respond(server.wait(10)->id, 200, {}, large);
  CHECK(client.reply().body == large);
}

TEST_CASE("more connections, and more bytes of bodies, than are allowed are answered 503") {
  HttpOptions options = any_port();
  options.max_connections = 2;
  options.max_waiting_bytes = 1000;
  HttpServer server(options);
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600\r\n\r\n" + std::string(600, 'x');
  HttpClient first(server.port()), second(server.port());
  first.send(post);
  CHECK(eventually([&] { return server.stats().waiting_bytes == 600; }));
  second.send(post);
  const Reply reply = second.reply();
  CHECK(reply.status == 503);
  CHECK(reply.headers.at("retry-after") == "1");
  CHECK(second.rest() == "");
  second.close();
  CHECK(eventually([&] { return server.stats().connections == 1; }));
  HttpClient again(server.port()), third(server.port());
  CHECK(third.reply().status == 503);
  server.respond(server.wait(10)->id, 200, {}, "");
  CHECK(first.reply().status == 200);
  CHECK(server.stats().waiting_bytes == 0);
}

TEST_CASE("a server without descriptors accepts when there are some again") {
  HttpServer server(any_port());
  HttpClient client(server.port());
  client.send(kGet);
  server.respond(server.wait(10)->id, 200, {}, "");
  CHECK(client.reply().status == 200);
  const int waiting = ::socket(AF_INET, SOCK_STREAM, 0);
  const int lowest = dup(waiting);  // all below are taken
  ::close(lowest);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{static_cast<rlim_t>(lowest), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getpeername(client.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  const bool connected = connect(waiting, reinterpret_cast<sockaddr*>(&address), size) == 0;  // by the kernel
  const bool asked = ::send(waiting, kGet.data(), kGet.size(), 0) > 0;
  const bool accepted = server.wait(0.3).has_value();
  setrlimit(RLIMIT_NOFILE, &before);  // before any CHECK: sanitizers open files
  CHECK(connected);
  CHECK(asked);
  CHECK_FALSE(accepted);
  const auto event = server.wait(10);
  CHECK(event);
  ::close(waiting);
}

TEST_CASE("events of refused requests are kept up to a thousand, and counted beyond") {
  HttpServer server(any_port());
  for (int i = 0; i < 1100; ++i) {
    HttpClient client(server.port());
    client.send("x\r\n\r\n");
    CHECK(client.reply().status == 400);
  }
  CHECK(server.stats().refused == 1100);
  CHECK(server.stats().waiting_events == 1000);
}
