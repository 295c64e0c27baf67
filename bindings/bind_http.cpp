// q.http_server: the listener of engine/net/http_server.h, for a loop in Lua.
#include <algorithm>
#include <chrono>

#include "bindings/interrupt.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/net/http_server.h"

QENG_LUA_CLASS(qeng::HttpServer, "HttpServer")

namespace qeng {
namespace {
using lua::Call;
using lua::set_field;

constexpr double kSlice = 0.05;  // seconds: how soon a wait without events sees Ctrl-C

double number_over_zero(const lua::Options& opt, const char* key, double fallback) {
  const double value = opt.get(key, fallback);
  if (!(value > 0 && value < 1e9)) fail("value", "bad option '", key, "' of 'http_server': ", value, " is not over 0");
  return value;
}

size_t bytes(const lua::Options& opt, const char* key, size_t fallback) {
  return static_cast<size_t>(number_over_zero(opt, key, static_cast<double>(fallback)));
}

int http_server(Call& call) {
  const lua::Options opt(call, 1,
                         {"host", "port", "threads", "keys", "open", "hosts", "origins", "max_body", "max_head",
                          "head_seconds", "body_seconds", "write_seconds", "idle_seconds", "max_connections",
                          "max_unsent", "max_waiting_bytes", "starting", "cert", "key"});
  using Words = std::vector<std::string>;
  HttpOptions options;
  options.host = opt.get("host", options.host);
  options.port = opt.get("port", options.port);
  options.threads = opt.get("threads", options.threads);
  options.keys = opt.get("keys", Words());
  options.open = opt.get("open", Words());
  if (opt.has("hosts")) options.hosts = opt.get<Words>("hosts");
  options.origins = opt.get("origins", Words());
  options.max_body = bytes(opt, "max_body", options.max_body);
  options.max_head = bytes(opt, "max_head", options.max_head);
  options.head_seconds = number_over_zero(opt, "head_seconds", options.head_seconds);
  options.body_seconds = number_over_zero(opt, "body_seconds", options.body_seconds);
  options.write_seconds = number_over_zero(opt, "write_seconds", options.write_seconds);
  options.idle_seconds = number_over_zero(opt, "idle_seconds", options.idle_seconds);
  options.max_connections = bytes(opt, "max_connections", options.max_connections);
  options.max_unsent = bytes(opt, "max_unsent", options.max_unsent);
  options.max_waiting_bytes = bytes(opt, "max_waiting_bytes", options.max_waiting_bytes);
  options.starting = opt.get("starting", options.starting);
  options.cert = opt.get("cert", options.cert);
  options.key = opt.get("key", options.key);
  return call.push(std::make_shared<HttpServer>(std::move(options)));
}

int ready(Call& call) { return call.self<HttpServer>()->ready(), 0; }
int port(Call& call) { return call.push(call.self<HttpServer>()->port()); }

int push_event(Call& call, const HttpEvent& event) {
  lua_State* L = call.L;
  lua_newtable(L);
  if (event.kind == HttpEvent::Kind::gone) {
    set_field(L, "kind", "gone");
    set_field(L, "id", event.id);
    return 1;
  }
  const bool refused = event.kind == HttpEvent::Kind::refused;
  set_field(L, "kind", refused ? "refused" : "request");
  set_field(L, "method", event.method);
  set_field(L, "path", event.path);
  set_field(L, "remote", event.remote);
  if (refused) {
    set_field(L, "status", event.status);
    return 1;
  }
  set_field(L, "id", event.id);
  set_field(L, "query", event.query);
  set_field(L, "headers", event.headers);
  set_field(L, "body", event.body);
  set_field(L, "at", event.at);
  return 1;
}

// Calls once(seconds) for short whiles until it is true, the time is over, or a Ctrl-C waits. True: once() was.
template <class Once>
bool in_slices(double seconds, const Once& once) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e9));
  for (;;) {
    const double left = std::chrono::duration<double>(end - Clock::now()).count();
    if (once(std::clamp(left, 0.0, kSlice))) return true;
    if (left <= 0 || interrupt_came()) return false;
  }
}

int wait(Call& call) {
  const auto server = call.self<HttpServer>();
  std::optional<HttpEvent> event;
  const bool came = in_slices(call.arg<double>(1), [&](double slice) {
    event = server->wait(slice);
    return event.has_value();
  });
  return came ? push_event(call, *event) : 0;
}

// Header values may be numbers too.
HttpHeaders headers(const Call& call, int argument) {
  HttpHeaders all;
  if (!call.has(argument)) return all;
  lua_State* L = call.L;
  const int table = call.index(argument);
  if (!lua_istable(L, table)) call.bad_argument(argument, "table expected, got " + lua::type_text(L, table));
  for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING || !lua_isstring(L, -1))
      call.bad_argument(argument, "{name = value} expected, texts both");
    lua_pushvalue(L, -1);
    size_t size = 0;
    const char* value = lua_tolstring(L, -1, &size);
    all[lua_tostring(L, -3)] = std::string(value, size);
    lua_pop(L, 1);
  }
  return all;
}

int respond(Call& call) {
  call.self<HttpServer>()->respond(call.arg<uint64_t>(1), call.arg<int>(2), headers(call, 3),
                                   call.arg<std::string>(4, ""));
  return 0;
}

int begin(Call& call) {
  call.self<HttpServer>()->begin(call.arg<uint64_t>(1), call.arg<int>(2), headers(call, 3));
  return 0;
}

int write(Call& call) {
  return call.push(call.self<HttpServer>()->write(call.arg<uint64_t>(1), call.arg<std::string>(2)));
}

int finish(Call& call) { return call.self<HttpServer>()->finish(call.arg<uint64_t>(1)), 0; }

int stats(Call& call) {
  const HttpStats now = call.self<HttpServer>()->stats();
  lua_State* L = call.L;
  lua_newtable(L);
  set_field(L, "connections", now.connections);
  set_field(L, "requests", now.requests);
  set_field(L, "refused", now.refused);
  set_field(L, "dropped_slow", now.dropped_slow);
  set_field(L, "waiting_events", now.waiting_events);
  set_field(L, "waiting_bytes", now.waiting_bytes);
  set_field(L, "unsent_bytes", now.unsent_bytes);
  return 1;
}

int stop(Call& call) { return call.self<HttpServer>()->stop(), 0; }

int close(Call& call) {
  const auto server = call.self<HttpServer>();
  in_slices(call.arg<double>(1, 0.0), [&](double slice) { return server->sent(slice); });
  server->close();
  return 0;
}
}  // namespace

void register_http(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"http_server", fn<http_server>}});
  lua::methods<HttpServer>(L, {{"ready", fn<ready>},
                               {"port", fn<port>},
                               {"wait", fn<wait>},
                               {"respond", fn<respond>},
                               {"begin", fn<begin>},
                               {"write", fn<write>},
                               {"finish", fn<finish>},
                               {"stats", fn<stats>},
                               {"stop", fn<stop>},
                               {"close", fn<close>}});
}

}  // namespace qeng
