#include "common/wire/transport/monitor.h"

#include <atomic>
#include <cstring>

#include <fmt/format.h>
#include <zmq.hpp>

namespace outrider {

Monitor::Monitor(void* context, void* socket, int events) : socket_(socket) {
  static std::atomic<int> count = 0;
  const std::string name = fmt::format("inproc://outrider-monitor-{}", count++);
  if (zmq_socket_monitor(socket_, name.c_str(), events) != 0) throw zmq::error_t();
  pair_ = zmq_socket(context, ZMQ_PAIR);
  if (pair_ == nullptr) throw zmq::error_t();
  // Unlimited: ZeroMQ's thread, which all connections share, would otherwise wait for take().
  const int none = 0;
  zmq_setsockopt(pair_, ZMQ_RCVHWM, &none, sizeof none);
  zmq_setsockopt(pair_, ZMQ_LINGER, &none, sizeof none);
  if (zmq_connect(pair_, name.c_str()) != 0) throw zmq::error_t();
}

Monitor::~Monitor() {
  zmq_socket_monitor(socket_, nullptr, 0);
  zmq_close(pair_);
}

std::optional<Monitor::Event> Monitor::take() {
  zmq::message_t frame;
  if (zmq_msg_recv(frame.handle(), pair_, ZMQ_DONTWAIT) < 0) return std::nullopt;
  Event event;
  std::uint16_t number = 0;
  std::memcpy(&number, frame.data(), sizeof number);
  std::memcpy(&event.value, frame.data<std::uint8_t>() + sizeof number, sizeof event.value);
  event.number = number;
  zmq_msg_recv(frame.handle(), pair_, ZMQ_DONTWAIT);
  event.address = frame.to_string();
  return event;
}

}  // namespace outrider
