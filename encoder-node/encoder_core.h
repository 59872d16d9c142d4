#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <utility>

#include "common/wire/messages/membership.h"
#include "common/wire/messages/soft_tokens.h"

namespace outrider {

struct EncoderConfig {
  LinkConfig link = {};
  /// Each session has one picture or sound here at a time, so this bounds the memory of those that wait.
  std::int64_t sessions_max = 64;
  /// Of pictures and sounds whose soft tokens are kept, with these: a conversation brings them again with every turn.
  std::int64_t kept_bytes_max = std::int64_t{256} << 20;
  /// What one becomes, or why it becomes nothing.
  std::function<Result<SoftTokens>(const WireMedium&)> soft_tokens;
};

/// The encoder's side of all its sessions, as a pure state machine: messages, time and what the towers have made in;
/// messages and the next picture or sound out, one at a time, in the order in which they came.
class EncoderCore {
 public:
  /// @param hello  without its capacity
  EncoderCore(const EncoderConfig& config, Hello hello);

  void on_message(Message message, TimePoint now);
  void on_tick(TimePoint now);
  /// More of a long message has come.
  void on_arriving(TimePoint now) { membership_.on_arriving(now); }
  /// The work that was handed over is done. @param content  its soft tokens, F32 [count, hidden_size]
  void on_encoded(WireTensor content, Duration took);
  /// Tells the coordinator to give no new sessions.
  void drain() { membership_.send({.body = Drain{}}); }

  struct Output : CoreOutput {
    std::optional<WireMedium> work = {};  ///< on_encoded() answers; none while another is out
  };
  /// All that has come up since the last call.
  Output take_output();

  const Membership& membership() const { return membership_; }
  /// Sessions that have something here, the one in work included.
  std::size_t session_count() const { return queue_.size(); }
  std::int64_t kept_bytes() const { return kept_bytes_; }

 private:
  /// An Encode that has no answer yet.
  struct Job {
    Message request;
    bool together = false;  ///< as SoftTokens
    bool dropped = false;   ///< in work, and nobody waits for it any more
    const Encode& encode() const { return std::get<Encode>(request.body); }
  };
  /// What came of one that was encoded lately.
  struct Kept {
    Encode encode;
    WireMedium soft;
    std::int64_t bytes() const;
  };

  void on_encode(Message message);
  void free(SessionId id);
  /// Answers with soft tokens that were kept. @return whether there were any.
  bool answer_from_kept(const Message& request);
  void keep(Encode encode, WireMedium soft);

  EncoderConfig config_;
  Membership membership_;
  std::deque<Job> queue_;  ///< the first is in work or about to be
  std::list<Kept> kept_;   ///< used longest ago first
  std::int64_t kept_bytes_ = 0;
  bool out_ = false;  ///< the first of the queue is with the towers
};

}  // namespace outrider
