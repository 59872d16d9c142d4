#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/error.hpp>

#include "common/base/time.h"
#include "common/http/tls.h"

namespace outrider {

/// A connected socket for Beast's reads and writes, with or without TLS. Its waits end at a deadline, and when nobody
/// waits for their outcome any more. One thread.
class WaitingSocket {
 public:
  using ErrorCode = boost::system::error_code;
  using Tcp = boost::asio::ip::tcp;
  /// Interval at which a waiting thread checks that somebody still waits.
  static constexpr Duration kPoll = std::chrono::milliseconds(100);

  TimePoint read_deadline{};  ///< end of reading, however much arrives until then

  /// @param gone  returns true when nobody waits any more; called at least each kPoll
  WaitingSocket(Tcp::socket socket, std::function<bool()> gone) : socket_(std::move(socket)), gone_(std::move(gone)) {
    ErrorCode ignored;
    socket_.set_option(Tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);
  }

  /// Switches to TLS, with a handshake.
  void encrypt(std::unique_ptr<TlsSession> session, ErrorCode& failed) {
    tls_ = std::move(session);
    repeat(read_deadline, failed, [&] { return tls_->handshake(); });
  }
  /// Returns TLS's complaint about the other end, if any.
  std::string tls_problem() const { return tls_ != nullptr ? tls_->problem() : ""; }

  template <typename Buffers>
  std::size_t read_some(const Buffers& buffers, ErrorCode& failed) {
    if (now() >= read_deadline) return failed = boost::beast::error::timeout, 0;
    const auto first = *boost::asio::buffer_sequence_begin(buffers);  // the only one, of a flat buffer
    return repeat(read_deadline, failed, [&]() -> TlsSession::Attempt {
      if (tls_ != nullptr) return tls_->read({static_cast<char*>(first.data()), first.size()});
      return outcome(socket_.read_some(buffers, failed), failed, POLLIN);
    });
  }
  template <typename Buffers>
  std::size_t write_some(const Buffers& buffers, ErrorCode& failed) {
    if (boost::asio::buffer_size(buffers) == 0) return failed = {}, 0;
    std::array<char, 16 << 10> record;  // TLS's longest; small pieces share one
    const std::size_t size =
        tls_ != nullptr ? boost::asio::buffer_copy(boost::asio::buffer(record), buffers) : std::size_t{0};
    return repeat(now() + kWriteTimeout, failed, [&]() -> TlsSession::Attempt {
      if (tls_ != nullptr) return tls_->write({record.data(), size});
      return outcome(socket_.write_some(buffers, failed), failed, POLLOUT);
    });
  }
  // Beast requires these declarations, which would throw, and never calls them.
  template <typename Buffers>
  std::size_t read_some(const Buffers& buffers);
  template <typename Buffers>
  std::size_t write_some(const Buffers& buffers);

 protected:
  /// Longest time that the other end may keep the connection full.
  static constexpr Duration kWriteTimeout = std::chrono::seconds(10);

  bool ready(short events, Duration time) {
    pollfd state{.fd = socket_.native_handle(), .events = events, .revents = 0};
    return poll(&state, 1, static_cast<int>(to_ms(time))) > 0;
  }

  Tcp::socket socket_;
  const std::function<bool()> gone_;
  std::unique_ptr<TlsSession> tls_;  ///< null: none

 private:
  static TlsSession::Attempt outcome(std::size_t bytes, ErrorCode failed, short events) {
    return {.bytes = bytes, .wait_for = failed == boost::asio::error::would_block ? events : short{0}};
  }
  /// Tries once, and again for as long as the attempt asks to wait.
  template <typename Try>
  std::size_t repeat(TimePoint deadline, ErrorCode& failed, Try attempt) {
    do {
      const TlsSession::Attempt came = attempt();
      if (came.bytes > 0) return failed = {}, came.bytes;
      if (came.wait_for == 0) {
        if (!tls_problem().empty()) failed = boost::asio::error::connection_aborted;
        if (!failed) failed = boost::asio::error::eof;
        return 0;
      }
      ready(came.wait_for, kPoll);
    } while (now() < deadline && !gone_());
    failed = boost::beast::error::timeout;
    return 0;
  }
};

}  // namespace outrider
