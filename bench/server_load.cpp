// Clients of a server, for bench/server_peer.py: so many connections at once, each asks for one answer after the other
// as server-sent events, until all requests are answered. One thread, so that it takes little from a server beside it.
//
//   qeng_bench_server_load PORT CLIENTS PATH REQUESTS
//
// REQUESTS: a file with the JSON body of a request in each line. Prints one line of JSON: seconds, requests, events, and
// in milliseconds first (to the first event) and between (two events of an answer), each with p50, p90 and p99.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {
using Clock = std::chrono::steady_clock;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "server_load: %s\n", why.c_str());
  std::exit(1);
}

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_port = htons(static_cast<uint16_t>(port)),
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0)
    give_up(std::string("cannot connect: ") + std::strerror(errno));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

void send_all(int fd, const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t sent = ::send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) give_up("the server closed a connection");
    at += static_cast<size_t>(sent);
  }
}

struct Client {
  int fd = -1;
  std::string tail;  // what came last: its end may be the beginning of an event
  Clock::time_point asked, last;
  bool busy = false;
  size_t events = 0;
};

struct Figures {
  std::vector<double> first, between;
  size_t events = 0;
};

// Counts events in what came. True once the answer is over. Chunks of the transfer begin and end between events, so
// their heads are no part of one.
bool take(Client& client, const char* bytes, size_t count, Figures& figures) {
  client.tail.append(bytes, count);
  if (client.events == 0 && client.tail.compare(0, 9, "HTTP/1.1 ") == 0 && client.tail.compare(9, 3, "200") != 0)
    give_up("status " + client.tail.substr(9, 300));
  const auto now = Clock::now();
  size_t at = 0;
  for (size_t found; (found = client.tail.find("data: ", at)) != std::string::npos;) {
    if (client.tail.size() < found + 12) break;
    at = found + 6;
    if (client.tail.compare(at, 6, "[DONE]") == 0) {
      client.tail.clear();
      return true;
    }
    (client.events == 0 ? figures.first : figures.between)
        .push_back(ms_between(client.events == 0 ? client.asked : client.last, now));
    client.last = now, ++client.events, ++figures.events;
  }
  client.tail.erase(0, at);
  return false;
}

double quantile(std::vector<double>& all, double q) {
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  return all[std::min(all.size() - 1, static_cast<size_t>(q * static_cast<double>(all.size())))];
}

void print(const char* name, std::vector<double>& all) {
  std::printf(", \"%s\": {\"p50\": %.2f, \"p90\": %.2f, \"p99\": %.2f}", name, quantile(all, 0.5), quantile(all, 0.9),
              quantile(all, 0.99));
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) give_up("server_load PORT CLIENTS PATH REQUESTS");
  const int port = std::atoi(argv[1]);
  std::vector<Client> clients(static_cast<size_t>(std::atoi(argv[2])));
  const std::string path = argv[3];
  std::vector<std::string> bodies;
  std::ifstream file(argv[4]);
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) bodies.push_back(line);
  Figures figures;
  size_t next = 0, done = 0;
  const auto ask = [&](Client& client) {
    client.busy = next < bodies.size();
    if (!client.busy) return;
    if (client.fd >= 0) ::close(client.fd);  // a connection for each: not every server keeps one
    client.fd = connect_to(port);
    const std::string& body = bodies[next++];
    client.events = 0, client.asked = Clock::now();
    send_all(client.fd, "POST " + path +
                            " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  const auto begin = Clock::now();
  for (Client& client : clients) ask(client);
  std::vector<pollfd> polled;
  for (char buffer[65536]; done < bodies.size();) {
    polled.clear();
    for (const Client& client : clients) polled.push_back({client.busy ? client.fd : -1, POLLIN, 0});
    if (::poll(polled.data(), polled.size(), 120000) <= 0) give_up("no answer for two minutes");
    for (size_t i = 0; i < clients.size(); ++i) {
      if (polled[i].revents == 0) continue;
      const ssize_t got = ::recv(clients[i].fd, buffer, sizeof buffer, 0);
      if (got <= 0) give_up("the server closed a connection before its answer was over");
      if (take(clients[i], buffer, static_cast<size_t>(got), figures)) ++done, ask(clients[i]);
    }
  }
  std::printf("{\"seconds\": %.3f, \"requests\": %zu, \"events\": %zu", ms_between(begin, Clock::now()) / 1000, done,
              figures.events);
  print("first", figures.first), print("between", figures.between);
  std::printf("}\n");
}
