#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/compute/kernels/linear.h"
#include "common/compute/kernels/shards.h"
#include "common/os/descriptor.h"
#include "common/wire/transport/key_needs.h"

namespace outrider {

class TlsSession;

/// A connection between two shards, in clear or in TLS. Nothing blocks. Move only.
class ShardLink {
 public:
  /// @param socket  connected. @param tls  null: none
  ShardLink(Descriptor socket, std::unique_ptr<TlsSession> tls);
  ShardLink(ShardLink&&) noexcept;
  ShardLink& operator=(ShardLink&&) noexcept;
  ~ShardLink();

  int socket() const { return socket_; }
  /// The other end's address.
  const std::string& peer() const { return peer_; }
  /// The kernel asks each second whether the other end's host is there, and breaks off after so long without an answer.
  void set_timeout(int seconds);

  // Each is kPeerGone once the connection is of no use.
  /// Exchanges TLS's first messages, which the other calls do too. @return whether they are over
  Result<bool> shake_hands();
  /// @return bytes, 0: none yet
  Result<std::size_t> read(std::span<char> bytes);
  /// @return bytes, 0: none yet. Then again with the same ones first
  Result<std::size_t> write(std::span<const char> bytes);
  /// A text of at most kTextBytesMax, before any rows. @return none: not all of it has come; kMalformed: it is longer
  Result<std::optional<std::string>> read_text();
  Result<void> write_text(const std::string& text);
  /// Ok while the other end is there; what has come is not read.
  Result<void> check() const;

  static constexpr std::size_t kTextBytesMax = 4096;

 private:
  Result<std::size_t> outcome(ssize_t bytes) const;
  Error gone(const std::string& why) const;

  Descriptor socket_;
  std::unique_ptr<TlsSession> tls_;
  bool ready_ = false;  ///< no handshake is left
  std::string peer_;
  std::vector<char> text_;  ///< what has come of read_text()'s, its length in front
};

/// What the first shard tells another.
struct ShardTask {
  ShardPlace place = {};
  WeightType weight_type = WeightType::kBf16;
  std::int64_t rows_max = 1;
  int peer_timeout_s = 3;
  int drain_wait_s = 0;         ///< the verifier's
  bool verify_weights = false;  ///< as WorkerOptions::verify_weights, of its own files
};

/// Shards of several hosts, which gather over TCP (ADR 17). Each is connected to the first, which passes on what comes
/// from one to the others. A frame is the columns of one shard; the bytes of a peer are checked, and end the group
/// where they are no frame of this gather.
class TcpShards final : public Shards {
 public:
  /// @param links  of the first: to all others, in order; of another: to the first
  TcpShards(ShardPlace place, std::vector<ShardLink> links);

  /// Ok while all that are connected are there.
  Result<void> check() const;

 private:
  /// In front of a frame's floats. Little-endian, as all hosts that this program runs on.
  struct Header {
    std::uint32_t gather, rows, begin, count;
  };
  struct Peer {
    ShardLink link;
    int rank;  ///< of what comes from it, as far as messages say
    Header header = {};
    std::vector<char> in = {};  ///< of the frame that comes: so many bytes as are wanted next
    std::size_t received = 0;   ///< of them
    std::vector<char> out = {};
    std::size_t sent = 0;
  };
  void gather_piece(Matrix<float> rows, Columns own) override;
  /// Sends what the socket takes. @return whether that was something
  bool send(Peer& peer);
  /// Takes what has come of this gather. @param there  columns that are, of rows. @return as send()
  bool receive(Peer& peer, Matrix<float> rows, std::int64_t& there);
  bool is_ahead(const Peer& peer) const;
  void wait(bool for_rows);
  [[noreturn]] void fail(const Peer& peer, const std::string& why) const;

  std::vector<Peer> peers_;
  TimePoint watched_{};  ///< when the watch was called last
};

/// Where a verifier's other shards join it.
class ShardListener {
 public:
  /// @param address  as listen_tcp() takes it; beyond this machine with keys, of which those of verifiers may join
  static Result<std::unique_ptr<ShardListener>> listen(const std::string& address, const Security& security);

  /// Where it listens.
  std::string address() const;
  /// Waits until all others have joined that have these weights, and tells them their task.
  /// @param task  of this process, the first. @return null after `stop`
  Result<std::unique_ptr<TcpShards>> gather_group(const ShardTask& task, std::uint64_t weights, std::stop_token stop);

 private:
  struct Joining {
    ShardLink link;
    TimePoint deadline;
    bool may_join = false;  ///< it said what it has, and that fits
  };
  ShardListener(Descriptor socket, std::optional<KeysToListen> keys) : socket_(std::move(socket)), keys_(keys) {}
  void accept_all(std::vector<Joining>& joining);
  /// Hears a shard. @return what ends its connection
  Result<void> hear(Joining& shard, std::uint64_t weights);

  Descriptor socket_;
  std::optional<KeysToListen> keys_;
};

struct JoinedShard {
  ShardTask task;
  std::unique_ptr<TcpShards> shards;
};
/// Joins a verifier at one of `addresses`, tries each once, and waits until its group is complete.
/// @param weights  fingerprint of this one's
/// @return none after `stop`; kPeerGone: nobody there (any more), try again; kMismatch where the verifier refuses this
///   shard; as keys_to_connect()
Result<std::optional<JoinedShard>> join_shards(const std::string& addresses, const Security& security,
                                               std::uint64_t weights, std::stop_token stop);

}  // namespace outrider
