#include "engine/net/network.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <csignal>

#include "engine/net/answer.h"
#include "kernels/error.h"

namespace qeng {
namespace {
namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;

constexpr milliseconds kAcceptPause{100};  // where the process has no more descriptors: until some are closed

// Each connection is a descriptor, of which a shell gives 1,024 where the system allows many more.
void allow_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Programs that the loop starts get no socket.
void close_in_children(int descriptor) { fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

std::string without_brackets(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

std::string text(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(endpoint.port());
}

[[noreturn]] void cannot_listen(const HttpOptions& options, const WireError& error) {
  const char* advice = "";
  if (error == asio::error::address_in_use) {
    advice = ": something listens there already; end it, or use another port (0: any free one)";
  } else if (error == asio::error::access_denied) {
    advice = ": ports under 1024 are for root; use one above";
  } else if (error == boost::system::errc::address_not_available) {
    advice = ": that is no address of this machine; use 127.0.0.1 for this machine only, 0.0.0.0 for every network";
  }
  fail("io", "cannot listen on port ", options.port, " of ", options.host, ": ", error.message(), advice);
}
}  // namespace

Network::Network(Listener& listener)
    : listener_(listener), accepting_(asio::make_strand(io_)), acceptor_(accepting_), pause_(accepting_) {
  const HttpOptions& options = listener.options;
  if (options.cert.empty() != options.key.empty())
    fail("value", "TLS takes a certificate and its key: only ", options.cert.empty() ? "the key" : "the certificate",
         " was given");
  for (const std::string& key : options.keys)
    if (key.empty()) fail("value", "an empty key would let everybody in: leave it out, or give one");
  if (options.threads < 1 || options.threads > 64) fail("value", "threads is ", options.threads, ", expected 1 to 64");
  if (!options.cert.empty()) tls_ = std::make_unique<TlsContext>(options.cert, options.key);

  allow_descriptors();
  WireError error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(without_brackets(options.host), std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) fail("io", options.host, ": no address of that name is known (", error.message(), ")");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) close_in_children(acceptor_.native_handle());
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (error) cannot_listen(options, error);
  port_ = acceptor_.local_endpoint().port();
  accept();
  run_threads(options.threads);
}

Network::~Network() {
  end_threads();
  listener_.desk.forget_all();  // connections end before io_
}

void Network::run_threads(int count) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads that were there
  try {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        for (;;) {
          try {
            io_.run();
            return;
          } catch (const std::exception&) {  // no memory: the connection whose handler it was ends, the others go on
          }
        }
      });
    }
  } catch (...) {
    end_threads();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Network::end_threads() {
  io_.stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Network::stop_accepting() {
  asio::post(accepting_, [this] {
    WireError ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  });
}

void Network::accept() {
  const asio::any_io_executor strand = asio::make_strand(io_);
  const auto socket = std::make_shared<tcp::socket>(strand);
  acceptor_.async_accept(*socket, [this, socket, strand](WireError error) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      accept();
      return admit(std::move(*socket), strand);
    }
    if (error == asio::error::connection_aborted || error == asio::error::interrupted) return accept();
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](WireError cancelled) {
      if (!cancelled && acceptor_.is_open()) accept();
    });
  });
}

void Network::admit(tcp::socket socket, const asio::any_io_executor& strand) {
  WireError error;
  const tcp::endpoint remote = socket.remote_endpoint(error);
  if (error) return;
  close_in_children(socket.native_handle());
  socket.set_option(tcp::no_delay(true), error);
  // A client that vanished without a word acknowledges nothing: the kernel gives it as long as a write gets.
  const unsigned patience = static_cast<unsigned>(std::min(listener_.options.write_seconds, 1e6) * 1000);
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
  if (listener_.desk.connections >= listener_.options.max_connections) {
    HttpEvent event;
    event.status = 503;
    event.remote = text(remote);
    listener_.desk.refused(std::move(event));
    if (tls_) return;
    socket.non_blocking(true, error);
    socket.write_some(asio::buffer(head_text({.status = 503, .keep_alive = false, .lines = "Retry-After: 1\r\n"})),
                      error);
    return;
  }
  auto connection = std::make_shared<Connection>(
      listener_, tls_ ? tls_->wire(std::move(socket)) : plain_wire(std::move(socket)), strand, text(remote));
  asio::post(strand, [connection = std::move(connection)] { connection->start(); });
}

}  // namespace qeng
