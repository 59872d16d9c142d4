#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/wire/messages/messages.h"
#include "common/wire/transport/security.h"

namespace outrider {

/// Owns ZeroMQ's I/O thread, and the keys of all endpoints. One per process; inproc:// addresses are names within one
/// context. Must outlive its endpoints: its destructor waits for them, and for messages that they still have to send.
class TransportContext {
 public:
  explicit TransportContext(Security security = {});
  ~TransportContext();
  TransportContext(TransportContext&&) noexcept;
  TransportContext& operator=(TransportContext&&) noexcept;

 private:
  friend class Endpoint;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct EndpointOptions {
  /// Messages queued per peer and direction. A full queue makes send() fail with kUnavailable, and slows a peer that
  /// sends too fast. Counts messages, not bytes: senders of large tensors must bound the messages in flight.
  int queue_messages_max = 256;
  /// Limits of decode(). The largest frame is also ZeroMQ's limit for TCP peers: a larger one closes the connection
  /// before any memory is spent on it.
  WireLimits limits = {};
  /// Time that the context's destructor waits for messages still queued here.
  Duration linger = std::chrono::milliseconds(200);
  /// Useless messages a second (count_useless_message) allowed to a key at a bound endpoint, over all its connections;
  /// also the burst. An honest worker or client sends some ten a second.
  int useless_per_second = 5'000;
};

struct Received {
  PeerId from;  ///< "" at a connected endpoint
  /// An Error when the bytes are no message, or no message that this peer's key allows (`refused`): log it, and perhaps
  /// reply.
  Result<Message> message;
  std::size_t wire_bytes = 0;
  bool refused = false;
  SessionId about = {};  ///< session of an undecodable message, if that can be read
};

/// One end of a connection (connect) or of many (bind). Messages of one peer arrive in order, whole or not at all. A
/// lost TCP connection is made again automatically; messages in flight are lost, and the bound end sees a new PeerId.
/// inproc:// does not reconnect.
///
/// One thread owns an endpoint, its destruction included; only wake() may be called from others. The owner of a sent
/// tensor's SharedBytes is released on any thread.
class Endpoint {
 public:
  /// Listens at tcp://ADDRESS:PORT or inproc://NAME. PORT may be * or 0 for any free one; see address(). When other
  /// machines can connect, only peers with an authorized key get in, with the role and name of that key; listening
  /// without keys of its own is an error (Security).
  /// @return kInvalidArgument for an invalid address or one that lacks keys, an error of the key files, kIo when the
  /// system refuses it
  static Result<std::unique_ptr<Endpoint>> bind(TransportContext& context, const std::string& address,
                                                const EndpointOptions& options = {});

  /// Connects in the background, and again whenever the connection is lost. Messages sent before the connection is up
  /// are queued, and sent when it is.
  /// @param addresses  coordinators, separated by commas; the first that answers is kept until it is lost
  /// @return kInvalidArgument for an invalid address, or another machine's without keys (Security); an error of the key
  /// files
  static Result<std::unique_ptr<Endpoint>> connect(TransportContext& context, const std::string& addresses,
                                                   const EndpointOptions& options = {});
  ~Endpoint();

  /// The actual address of a bound endpoint, or the address connected to.
  const std::string& address() const;

  /// The reason that there is no connection, once all addresses were tried; it keeps trying. kNotFound or kMismatch if
  /// waiting cannot help: no name resolves, or no key fits. Connected endpoints only.
  std::optional<Error> connection_error() const;

  /// Connected endpoints only: connections so far, and whether there is one now. Messages sent over an earlier one may
  /// be lost.
  int connections() const;
  bool connected() const;
  /// Returns true once any endpoint of this context was connected: then a coordinator exists and may come back.
  bool was_there() const;
  /// Connected endpoints only: number of places to try; 1 within a process.
  int places() const;
  /// Leaves a silent coordinator for the next address, or reconnects if there is only one. Not within a process.
  void redial();

  /// Queues a message; never blocks. Tensor bytes are not copied: they must not change any more.
  /// @param to  a peer from receive(); ignored by a connected endpoint, which has one peer.
  /// @return bytes of all frames. After an error nothing was sent: kPeerGone when there is no such peer (any more),
  /// kUnavailable when its queue is full
  Result<std::size_t> send(const PeerId& to, const Message& message);

  /// Takes one message, if one has arrived. Never blocks. Frames are 8-byte aligned; in-process tensors are the
  /// sender's own bytes.
  std::optional<Received> receive();

  /// Peers of which more of a long, not yet received message arrived since the last call: they are alive, however slow
  /// the network. A connected endpoint returns "", also while leaving(): its peer cannot reply before a long request
  /// has arrived. Not within a process.
  std::vector<PeerId> arriving();
  /// Peers of a bound endpoint to which more of a long message was sent since the last call, but not all of it.
  std::vector<PeerId> leaving();

  /// Reports that the last received message was useless. A connection with too many of those is ignored and its peer
  /// held up, since one peer with a key could otherwise keep this thread and ZeroMQ's busy. Peers without keys are not
  /// counted. @return true when the connection is now ignored: treat the peer as gone
  bool count_useless_message();

  /// Returns when a message is readable, wake() has been called, or `timeout` (rounded up to whole milliseconds) has
  /// passed; now and then without cause. Call it when receive() returned nothing.
  void wait(Duration timeout);

  /// Makes the current or next wait() return. Any thread; several calls before one wait() count as one.
  void wake();

 private:
  struct Impl;
  explicit Endpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
