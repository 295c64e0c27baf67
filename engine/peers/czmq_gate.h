// Who may connect: answers the questions that a ZeroMQ context asks of each key (ZAP, rfc.zeromq.org/spec/27). A peer that
// is refused learns nothing: the connection closes without an error frame (status 300).
#pragma once
#include <functional>

#include "engine/peers/czmq_socket.h"

namespace qeng {

class CzmqGate {
 public:
  // Before any socket of the context listens. may_enter: of a key in Z85, and the address that it comes from.
  using MayEnter = std::function<bool(const std::string& key, const std::string& address)>;
  CzmqGate(void* context, MayEnter may_enter) : socket_(context, ZMQ_REP), may_enter_(std::move(may_enter)) {
    if (zmq_bind(socket_.get(), "inproc://zeromq.zap.01") != 0)
      fail("internal", "the gate of peers: ", zmq_strerror(zmq_errno()));
  }
  ZmqSocket& socket() { return socket_; }
  // Answers what has been asked.
  void answer() {
    for (;;) {
      ZmqMessage parts[kParts];
      int count = 0;
      for (bool more = true; more; ++count) {
        ZmqMessage& part = parts[std::min(count, kParts - 1)];
        if (!socket_.receive(part)) return;
        more = part.more();
      }
      const bool asked_right = count == kParts && parts[0].text() == "1.0" && parts[5].text() == "CURVE";
      char key[41] = "";
      if (asked_right && parts[6].size() == 32) zmq_z85_encode(key, parts[6].data(), 32);
      const bool enters = key[0] && may_enter_(key, parts[3].text());
      const std::string id = parts[1].text();
      for (const std::string& text : {std::string("1.0"), id, std::string(enters ? "200" : "300"), std::string(),
                                      std::string(enters ? key : "")}) {
        ZmqMessage part(text);
        socket_.send(part, ZMQ_SNDMORE);
      }
      ZmqMessage metadata;
      socket_.send(metadata);
    }
  }

 private:
  static constexpr int kParts = 7;  // version, id, domain, address, routing id, mechanism, key
  ZmqSocket socket_;
  const MayEnter may_enter_;
};

}  // namespace qeng
