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

/// A connection between two shards, with or without TLS. Non-blocking. Move only.
class ShardLink {
 public:
  /// @param socket  connected
  /// @param tls  null: none
  ShardLink(Descriptor socket, std::unique_ptr<TlsSession> tls);
  ShardLink(ShardLink&&) noexcept;
  ShardLink& operator=(ShardLink&&) noexcept;
  ~ShardLink();

  int socket() const { return socket_; }
  /// Returns the address of the other end.
  const std::string& peer() const { return peer_; }
  /// Makes the kernel probe the other end's host each second, and break the connection after so long without an answer.
  void set_timeout(int seconds);

  // Each of the following returns kPeerGone once the connection has failed.
  /// Continues TLS's handshake, as the other calls do too. @return true when the handshake is complete
  Result<bool> shake_hands();
  /// Reads what has arrived. @return the number of bytes; 0: none yet
  Result<std::size_t> read(std::span<char> bytes);
  /// Writes as much as the socket accepts. @return the number of bytes; 0: none yet, and the next call must begin with
  /// the same bytes
  Result<std::size_t> write(std::span<const char> bytes);
  /// Reads a text of at most kTextBytesMax, before any rows. @return none: incomplete; kMalformed: longer
  Result<std::optional<std::string>> read_text();
  Result<void> write_text(const std::string& text);
  /// Returns Ok while the other end is connected, without reading received bytes.
  Result<void> check() const;

  static constexpr std::size_t kTextBytesMax = 4096;

 private:
  Result<std::size_t> outcome(ssize_t bytes) const;
  Error gone(const std::string& why) const;

  Descriptor socket_;
  std::unique_ptr<TlsSession> tls_;
  bool ready_ = false;  ///< the handshake is complete
  std::string peer_;
  std::vector<char> text_;  ///< read_text()'s bytes so far, including its length
};

/// The first shard's message to each other shard.
struct ShardTask {
  ShardPlace place = {};
  WeightType weight_type = WeightType::kBf16;
  std::int64_t rows_max = 1;
  int peer_timeout_s = 3;
  int drain_wait_s = 0;         ///< the verifier's
  bool verify_weights = false;  ///< as WorkerOptions::verify_weights, of its own files
};

/// When a group begins without some of its shards.
struct FewerShards {
  int least = 0;                ///< shards, the first included; 0: all must have joined
  std::int64_t matrix_mib = 0;  ///< of the whole model: each of n shards must have 1/n of it free
  Duration patience = {};       ///< time to wait for the others
};

/// Shards of several hosts, which gather over TCP (ADR 17). Each shard is connected to the first one, which forwards
/// the data of each to the others. A frame is the columns of one shard. Bytes of a peer are checked; the group ends if
/// they are not a frame of this gather.
class TcpShards final : public Shards {
 public:
  /// @param links  of the first: to all others, in order; of another: to the first
  TcpShards(ShardPlace place, std::vector<ShardLink> links);

  /// Returns Ok while all connected shards are alive.
  Result<void> check() const;

 private:
  /// Precedes a frame's floats. Little-endian, like all supported hosts.
  struct Header {
    std::uint32_t gather, rows, begin, count;
  };
  struct Peer {
    ShardLink link;
    int rank;  ///< for messages
    Header header = {};
    std::vector<char> in = {};  ///< of the incoming frame; its size is the number wanted next
    std::size_t received = 0;   ///< of them
    std::vector<char> out = {};
    std::size_t sent = 0;
  };
  void gather_piece(Matrix<float> rows, Columns own) override;
  /// Sends as much as the socket accepts. @return true if any bytes were sent
  bool send(Peer& peer);
  /// Receives data of this gather.
  /// @param there  number of complete columns, over all rows
  /// @return as send()
  bool receive(Peer& peer, Matrix<float> rows, std::int64_t& there);
  bool is_ahead(const Peer& peer) const;
  void wait(bool for_rows);
  [[noreturn]] void fail(const Peer& peer, const std::string& why) const;

  std::vector<Peer> peers_;
  TimePoint watched_{};  ///< when the watch was called last
};

/// Listener for a verifier's other shards.
class ShardListener {
 public:
  /// @param address  for listen_tcp(); between machines with keys, of which those of verifiers may join
  static Result<std::unique_ptr<ShardListener>> listen(const std::string& address, const Security& security);

  /// Returns the actual address.
  std::string address() const;
  /// Waits until all other shards with these weights have joined, or enough of them, and sends them their task.
  /// @param task  of this process, the first, with the number of shards wanted
  /// @return null after `stop`
  Result<std::unique_ptr<TcpShards>> gather_group(ShardTask task, std::uint64_t weights, std::stop_token stop,
                                                  const FewerShards& fewer = {});

 private:
  struct Joining {
    ShardLink link;
    TimePoint deadline;
    bool may_join = false;       ///< its hello was accepted
    std::int64_t free_mib = 0;  ///< free memory of its host when it joined
  };
  ShardListener(Descriptor socket, std::optional<KeysToListen> keys) : socket_(std::move(socket)), keys_(keys) {}
  /// @return false if a connection waits, and this process has no file handle or memory for it; errno has the reason
  bool accept_all(std::vector<Joining>& joining);
  /// Handles a shard's hello. @return the error that ends its connection
  Result<void> read_joining(Joining& shard, std::uint64_t weights);
  /// Returns true if the joined shards may begin without others.
  static bool suffice(const std::vector<Joining>& joining, const FewerShards& fewer);

  Descriptor socket_;
  std::optional<KeysToListen> keys_;
};

struct JoinedShard {
  ShardTask task;
  std::unique_ptr<TcpShards> shards;
};
/// Joins a verifier at one of `addresses`, tries each once, and waits until its group is complete.
/// @param weights  fingerprint of this shard's
/// @return none after `stop`; kPeerGone: no verifier there (any more), try again; kMismatch if the verifier refuses
/// this shard; errors as keys_to_connect()
Result<std::optional<JoinedShard>> join_shards(const std::string& addresses, const Security& security,
                                               std::uint64_t weights, std::stop_token stop);

}  // namespace outrider
