// The bytes of one connection, plain or through TLS. Functions that are given are called later, on the socket's executor
// (its strand), where every call here has to come from too; whoever gives one keeps the Wire alive until then.
#pragma once
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace qeng {

using WireError = boost::system::error_code;

class Wire {
 public:
  virtual ~Wire() = default;
  virtual void handshake(std::function<void(WireError)> then) = 0;
  // What comes next. It stands there during the call only.
  virtual void read(std::function<void(WireError, std::string_view)> then) = 0;
  // Some of the text, which has to stay until then.
  virtual void write(std::string_view text, std::function<void(WireError, size_t)> then) = 0;
  // Tells the other side that no more comes. Reading goes on, until it ends too; TLS calls `then` when it did.
  virtual void end(std::function<void()> then) = 0;
  virtual void close() = 0;
};

std::unique_ptr<Wire> plain_wire(boost::asio::ip::tcp::socket socket);

// What TLS connections share: made once from the files of a certificate (with those between it and the root) and its
// key, in PEM. Error("io") where OpenSSL cannot use them.
class TlsContext {
 public:
  TlsContext(const std::string& certificate, const std::string& key);
  ~TlsContext();
  std::unique_ptr<Wire> wire(boost::asio::ip::tcp::socket socket);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace qeng
