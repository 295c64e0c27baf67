// One client: reads a request at a time, gives it to the desk, and sends what comes back. While a request waits for its
// answer the connection goes on reading, up to a limit, so that a client that leaves is noticed at once. What a state may
// last is limited by one timer, which closes the socket.
#pragma once
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "engine/net/access.h"
#include "engine/net/desk.h"
#include "engine/net/request_reader.h"
#include "engine/net/wire.h"

namespace qeng {

// What the connections of a server share; it outlives them.
struct Listener {
  HttpOptions options;
  AccessRules access{options};
  Desk desk{options.max_waiting_bytes, options.starting};
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // The executor is the wire's strand: all but send and drop run there.
  Connection(Listener& listener, std::unique_ptr<Wire> wire, boost::asio::any_io_executor executor, std::string remote);
  ~Connection();
  Connection(const Connection&) = delete;
  void start();

  // From the loop. last: the answer is complete with this.
  void send(std::string bytes, bool last, bool then_close);
  void drop();
  size_t unsent() const { return unsent_; }

 private:
  enum class State { handshake, head, body, answer, ending };
  using Clock = std::chrono::steady_clock;

  void read();
  void came(WireError error, std::string_view bytes);
  void ended(WireError error);
  void advance();
  void read_head();
  void take_head(size_t size);
  void read_body();
  void deliver();
  void refuse(HttpRefusal refusal);
  void queue(std::string_view bytes);
  void flush();
  void write_some();
  void next_request();
  void end();
  void close();
  void release_body();
  void limit(Clock::time_point& deadline, double seconds);
  void arm();
  void expired();

  Listener& listener_;
  const std::unique_ptr<Wire> wire_;
  const boost::asio::any_io_executor executor_;
  boost::asio::steady_timer timer_;
  State state_ = State::handshake;
  bool reading_ = false, writing_ = false, closed_ = false;
  bool complete_ = false;    // the answer was queued whole
  bool then_close_ = false;  // and the connection ends with it
  std::string inbox_;        // came, and not used
  size_t searched_ = 0;      // so much of it has no end of a head
  size_t body_kept_ = 0;     // bytes of a body that the desk knows of
  size_t drained_ = 0;       // bytes that came after the end
  uint64_t id_ = 0;          // the desk's, of the request that waits for its answer
  HttpEvent event_;          // the request that is coming
  const std::string remote_;
  std::string origin_lines_;
  std::unique_ptr<RequestReader> reader_;
  std::string sending_, pending_;
  size_t sent_ = 0;  // of sending_
  std::atomic<size_t> unsent_ = 0;
  Clock::time_point read_by_ = Clock::time_point::max(), write_by_ = Clock::time_point::max();
  Clock::time_point armed_for_ = Clock::time_point::max();
};

}  // namespace qeng
