#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <utility>

#include "common/wire/messages/membership.h"
#include "common/wire/messages/messages.h"

namespace outrider {

struct EncoderConfig {
  LinkConfig link = {};
  /// Bounds the memory of the queue, since each session has one medium here at a time.
  std::int64_t sessions_max = 64;
  /// Memory of recent media with their soft tokens: a conversation repeats its media with every turn.
  std::int64_t kept_bytes_max = std::int64_t{256} << 20;
  /// Returns a medium's soft tokens, or an error.
  std::function<Result<SoftTokens>(const WireMedium&)> soft_tokens;
};

/// The encoder's side of all its sessions, as a pure state machine: messages, time and the towers' results in; messages
/// and the next medium out, one at a time, in order of arrival.
class EncoderCore {
 public:
  /// @param hello  its capacity is ignored
  EncoderCore(const EncoderConfig& config, Hello hello);

  void on_message(Message message, TimePoint now);
  void on_tick(TimePoint now);
  /// Records that more of a long message arrived.
  void on_arriving(TimePoint now) { membership_.on_arriving(now); }
  /// Handles the result of the work. @param content  its soft tokens, F32 [count, hidden_size]
  void on_encoded(WireTensor content, Duration took);
  /// Tells the coordinator to send no new sessions.
  void drain() { membership_.drain(); }

  struct Output : CoreOutput {
    std::optional<WireMedium> work = {};  ///< on_encoded() has the result; none while other work is in progress
  };
  /// Returns all results since the last call.
  Output take_output();

  const Membership& membership() const { return membership_; }
  /// Number of sessions with work here.
  std::size_t session_count() const { return queue_.size(); }
  std::int64_t kept_bytes() const { return kept_bytes_; }

 private:
  /// An unanswered Encode.
  struct Job {
    Message request;
    bool together = false;  ///< see SoftTokens
    bool dropped = false;   ///< in work, but not wanted any more
    const Encode& encode() const { return std::get<Encode>(request.body); }
  };
  /// A recently encoded medium.
  struct Kept {
    Encode encode;
    WireMedium soft;
    std::int64_t bytes() const;
  };

  void on_encode(Message message);
  void free(SessionId id);
  /// Answers with kept soft tokens. @return true if there were any
  bool answer_from_kept(const Message& request);
  void keep(Encode encode, WireMedium soft);

  EncoderConfig config_;
  Membership membership_;
  std::deque<Job> queue_;  ///< the first is in work or about to be
  std::list<Kept> kept_;   ///< least recently used first
  std::int64_t kept_bytes_ = 0;
  bool out_ = false;  ///< the first of the queue is with the towers
};

}  // namespace outrider
