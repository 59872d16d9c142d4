#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/random.h"
#include "common/wire/messages/membership.h"
#include "common/wire/messages/messages.h"

namespace outrider {

struct AuditConfig {
  double share = 0;        ///< of the answers that can be verified again
  std::uint64_t seed = 1;  ///< selects them. Must be unpredictable, so that a verifier cannot foresee the selection
  std::int64_t media_bytes_max = 1 << 28;  ///< pictures and sounds of the answers that wait for their audit
};

/// An answer of one verifier. `request` asks for the same answer, with its prompt and length.
struct Audit {
  Generate request;
  std::vector<TokenId> answer;
  std::string numeric_class, verifier;  ///< its verifier
};

/// Lets another verifier of the same class verify answers again. The auditor is a client with a stepwise sequence: it
/// passes the answer as drafts, as many per round as possible, and all must be accepted. An answer of n tokens costs
/// the other verifier its prompt and n / 33 forward passes. One audit runs at a time; few of the answers that arrive
/// meanwhile are kept.
class Auditor {
 public:
  explicit Auditor(const AuditConfig& config) : config_(config), random_(config.seed) {}

  /// Returns true if this answer is selected for an audit, should that be possible.
  bool wants() { return config_.share > 0 && random_.uniform() < config_.share; }
  void add(Audit audit);

  /// Returns the next audit, while none is running; nullptr if there is none.
  const Audit* next() const;
  /// Reports that next()'s sequence has begun.
  void begin(SessionId session);
  /// Drops next(). @param why  is logged once, until an audit has started
  void skip(const std::string& why);
  /// Returns the sequence of the running audit, if any.
  std::optional<SessionId> session() const { return session_; }
  /// Handles a coordinator's message to this client. @return the reply, if any
  std::variant<std::monostate, Step, Cancel> on_message(const Message& message);

  const AuditCounts& counts() const { return counts_; }
  std::vector<Notice> take_notices() { return std::exchange(notices_, {}); }

 private:
  static constexpr std::size_t kWaitingMax = 16;

  void end(std::int64_t& count);
  std::variant<std::monostate, Step, Cancel> on_tokens(const Tokens& tokens);

  AuditConfig config_;
  CounterRng random_;
  std::deque<Audit> waiting_;  ///< the first is running if there is a session
  std::optional<SessionId> session_;
  std::size_t compared_ = 0;  ///< number of verified tokens
  std::string other_;         ///< the verifier of the audit
  bool reported_ = false;
  AuditCounts counts_;
  std::vector<Notice> notices_;
};

}  // namespace outrider
