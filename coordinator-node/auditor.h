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
  std::uint64_t seed = 1;  ///< of which these are. Give one that nobody can guess: a verifier must not foresee it
};

/// An answer as one verifier wrote it. `request` asks for the same, with its prompt, and as long.
struct Audit {
  Generate request;
  std::vector<TokenId> answer;
  std::string numeric_class, verifier;  ///< who wrote it
};

/// Has answers verified again by another verifier of the class. It is a client like any other whose sequence is
/// stepwise: it hands the answer over as drafts, as many as a round takes, and each must hold. So an answer of n tokens
/// costs the other verifier its prompt and n / 33 forward passes. One at a time, and of those that come meanwhile few
/// are kept.
class Auditor {
 public:
  explicit Auditor(const AuditConfig& config) : config_(config), random_(config.seed) {}

  /// Whether the next answer that is whole is one of the share.
  bool wants() { return config_.share > 0 && random_.uniform() < config_.share; }
  void add(Audit audit);

  /// The next one, while none is under way; nullptr if there is none.
  const Audit* next() const;
  /// The sequence that next() asks for has begun.
  void begin(SessionId session);
  /// next() cannot be had. @param why  is said once, until one can
  void skip(const std::string& why);
  /// The sequence that is under way, or nothing.
  std::optional<SessionId> session() const { return session_; }
  /// What its coordinator says to this client. @return what it says to that, if anything.
  std::variant<std::monostate, Step, Cancel> on_message(const Message& message);

  const AuditCounts& counts() const { return counts_; }
  std::vector<Notice> take_notices() { return std::exchange(notices_, {}); }

 private:
  static constexpr std::size_t kWaitingMax = 16;

  void end(std::int64_t& count);
  std::variant<std::monostate, Step, Cancel> on_tokens(const Tokens& tokens);

  AuditConfig config_;
  CounterRng random_;
  std::deque<Audit> waiting_;  ///< the first is under way if there is a session
  std::optional<SessionId> session_;
  std::size_t compared_ = 0;  ///< tokens of its answer
  std::string other_;         ///< who verifies it
  bool reported_ = false;
  AuditCounts counts_;
  std::vector<Notice> notices_;
};

}  // namespace outrider
