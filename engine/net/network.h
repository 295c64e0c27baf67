// The port that is listened on, and the threads that the network's work runs in. They end with it, and every connection.
#pragma once
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <thread>
#include <vector>

#include "engine/net/connection.h"

namespace qeng {

class Network {
 public:
  explicit Network(Listener& listener);  // listens; errors are those of HttpServer
  ~Network();
  Network(const Network&) = delete;

  uint16_t port() const { return port_; }
  void stop_accepting();

 private:
  void accept();
  void admit(boost::asio::ip::tcp::socket socket, const boost::asio::any_io_executor& strand);
  void run_threads(int count);
  void end_threads();

  Listener& listener_;
  std::unique_ptr<TlsContext> tls_;
  boost::asio::io_context io_;
  const boost::asio::any_io_executor accepting_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace qeng
