#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>

#include "engine/net/wire.h"

namespace qeng {
namespace {
namespace asio = boost::asio;

// A connection that waits costs no buffer: the socket is waited for, and read into one that the thread's connections
// share.
class PlainWire final : public Wire {
 public:
  explicit PlainWire(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {
    WireError ignored;
    socket_.non_blocking(true, ignored);
  }

  void handshake(std::function<void(WireError)> then) override { then({}); }

  void read(std::function<void(WireError, std::string_view)> then) override {
    socket_.async_wait(asio::ip::tcp::socket::wait_read, [this, then = std::move(then)](WireError error) {
      thread_local std::array<char, 16384> shared;
      size_t size = 0;
      if (!error) size = socket_.read_some(asio::buffer(shared), error);
      if (error == asio::error::would_block || error == asio::error::try_again) return read(then);
      then(error, {shared.data(), size});
    });
  }

  void write(std::string_view text, std::function<void(WireError, size_t)> then) override {
    socket_.async_write_some(asio::buffer(text.data(), text.size()), std::move(then));
  }

  void end(std::function<void()>) override {
    WireError ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  }

  void close() override {
    WireError ignored;
    socket_.close(ignored);
  }

 private:
  asio::ip::tcp::socket socket_;
};
}  // namespace

std::unique_ptr<Wire> plain_wire(asio::ip::tcp::socket socket) {
  return std::make_unique<PlainWire>(std::move(socket));
}

}  // namespace qeng
