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

/// Owns ZeroMQ's I/O thread, and the keys of all its endpoints. One per process; inproc:// addresses are names within
/// one context. Must outlive its endpoints: its destructor waits for them, and for what they still have to send.
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
  /// Messages queued per peer and direction. A full queue makes send() fail with kUnavailable and
  /// slows a peer that sends too fast. Counts messages, not bytes: senders of large tensors must
  /// bound what they have in flight.
  int queue_messages_max = 256;
  /// What decode() accepts. Their largest frame is also the largest that ZeroMQ takes from a TCP
  /// peer: a larger one closes that peer's connection before any memory is spent on it.
  WireLimits limits = {};
  /// How long the context's destructor waits for messages that are still queued here.
  Duration linger = std::chrono::milliseconds(200);
  /// Messages a second that a key may say in vain at a bound endpoint (spoke_in_vain), over all its connections; as
  /// many may come at once. An honest worker or client says some ten a second.
  int in_vain_per_second = 5'000;
};

struct Received {
  PeerId from;  ///< "" at a connected endpoint
  /// An Error when the bytes were not a message, or not one that this peer's key allows (`refused`): log it, perhaps
  /// reply.
  Result<Message> message;
  std::size_t wire_bytes = 0;
  bool refused = false;
  SessionId about = {};  ///< of bytes that were not a message: the session, as far as that can be read
};

/// One end of a connection (connect) or of many (bind). Messages of one peer arrive in the order
/// sent, whole or not at all. A lost TCP connection is made again by itself; what was on its way is
/// lost, and the bound end sees a new PeerId. inproc:// does not reconnect.
///
/// One thread owns an endpoint, its destruction included; only wake() may be called from others.
/// The owner of a sent tensor's SharedBytes is released on any thread.
class Endpoint {
 public:
  /// Listens at tcp://ADDRESS:PORT or inproc://NAME. PORT may be * or 0 for any free one; see
  /// address(). Where others than this machine can connect, only peers with an authorized key get in, a key decides as
  /// what and under which name its peer comes, and without keys of its own nobody may listen (Security).
  /// @return kInvalidArgument for an address that makes no sense or has no keys, an error of the key files, kIo when
  /// the
  ///   system refuses it.
  static Result<std::unique_ptr<Endpoint>> bind(TransportContext& context, const std::string& address,
                                                const EndpointOptions& options = {});

  /// Connects in the background, and again whenever the connection is lost. Messages sent before
  /// the connection is up are queued, and arrive when it is.
  /// @param addresses of coordinators, with commas between; the first that answers is kept until it is lost.
  /// @return kInvalidArgument for an address that makes no sense, or another machine's without keys (Security); an
  /// error
  ///   of the key files.
  static Result<std::unique_ptr<Endpoint>> connect(TransportContext& context, const std::string& addresses,
                                                   const EndpointOptions& options = {});
  ~Endpoint();

  /// Where a bound endpoint really listens, or the address connected to.
  const std::string& address() const;

  /// Why there is no connection, once all addresses were tried; it is tried on. kNotFound or kMismatch where waiting
  /// does not help: no name resolves, or no key fits. Never of a bound endpoint.
  std::optional<Error> trouble() const;

  /// Of a connected endpoint: how many connections there have been, and whether there is one now. What was sent over
  /// one before may be lost.
  int connections() const;
  bool connected() const;
  /// Whether an endpoint of this context has had a connection: then there is a coordinator, which may come back.
  bool was_there() const;
  /// Of a connected endpoint: where a coordinator may be; 1 within a process.
  int places() const;
  /// Whoever is connected is silent: leaves it for the next address, or connects anew where there is only one. Not
  /// within a process.
  void redial();

  /// Queues a message; never blocks. Tensor bytes are not copied: they must not change any more.
  /// @param to   a peer seen in receive(); ignored by a connected endpoint, which has one peer.
  /// @return bytes of all frames. After an error nothing has been sent: kPeerGone when there is no
  ///   such peer (any more), kUnavailable when its queue is full.
  Result<std::size_t> send(const PeerId& to, const Message& message);

  /// Takes one message, if one has arrived. Never blocks. Frames are 8-byte aligned; in-process
  /// tensors are the sender's own bytes.
  std::optional<Received> receive();

  /// Peers of whom more of a long message has come since this was asked last, and that message was not received yet:
  /// they are alive, however slow the way is. "" of a connected endpoint, also while it is leaving(): before a long
  /// request is there its peer has nothing to say. Not within a process.
  std::vector<PeerId> arriving();
  /// Peers of a listening endpoint to whom more of a long message has gone since this was asked last, and not all.
  std::vector<PeerId> leaving();

  /// The message that receive() gave last was of no use. Of a connection over which too many of those come nothing more
  /// is received, and its peer is held up: else one with a key could keep this thread, and ZeroMQ's, from the others.
  /// Of peers without keys nothing is counted.
  /// @return whether it has come to that: then the peer is as good as gone.
  bool spoke_in_vain();

  /// Returns when a message is readable, wake() has been called, or `timeout` (rounded up to whole
  /// milliseconds) has passed; now and then without cause. Call it when receive() had nothing.
  void wait(Duration timeout);

  /// Makes the current or next wait() return. Any thread; many calls before one wait() count as
  /// one.
  void wake();

 private:
  struct Impl;
  explicit Endpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
