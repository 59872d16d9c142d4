#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "common/decoding/drafting/batch_goodput.h"
#include "coordinator-node/given_prompts.h"
#include "coordinator-node/reputation.h"
#include "coordinator-node/wire_choice.h"

namespace outrider {

/// Load of a worker.
struct Load {
  int sessions = 0;
  int rounds = 0;             ///< sessions that draft or verify now; for a drafter, those that wait for its drafts
  std::int64_t kv_bytes = 0;  ///< workers with K/V: reserved for its sessions
  bool operator==(const Load&) const = default;
};

/// A sequence's requirements of a drafter.
struct DrafterRequirements {
  std::vector<PeerId> except = {};  ///< excluded drafters
  bool proven = false;              ///< only drafters of known identity (Hello::unproven)
  bool no_rows = false;             ///< no drafters that need their verifier's rows
  bool no_tokens = false;           ///< no drafters that need tokens: some rows of the sequence are not tokens
  Position positions = 0;           ///< with K/V of its own: least context
  Position in_all = 0;              ///< with K/V of its own: least memory, in positions
};

/// A worker, as its coordinator sees it.
struct Worker : Load {
  Hello hello;
  std::uint64_t membership = 0;            ///< see Welcome
  TimePoint last_bytes{}, last_message{};  ///< time of its last bytes, and of its last message
  /// A long message that is arriving, perhaps slowly.
  struct Arriving {
    TimePoint last{};                     ///< of its last bytes
    std::optional<TimePoint> since = {};  ///< start of the incomplete one
    bool now(TimePoint at) const { return last != TimePoint() && at - last < kArriving; }
    static constexpr Duration kArriving = std::chrono::seconds(2);
  } arriving = {};
  TimePoint leaving{};  ///< when bytes of an unfinished long message were last sent to it
  static constexpr Duration kLeaving = std::chrono::seconds(1);
  Duration rtt{};  ///< about the least of recent heartbeats; 0: not measured yet
  bool draining = false;

  /// Verifiers only: estimates that its sessions' policies refer to, by their drafters' input, since both kinds of
  /// drafters differ in cost and acceptance.
  std::array<Estimates, 2> costs = {};
  BatchGoodput batch = {};  ///< verifiers only, as `costs`
  GivenPrompts given = {};  ///< verifiers only

  // Back-off of a drafter or an encoder; for a verifier only `suspect` is used.
  bool suspect = false;  ///< it was late; cleared by any message from `ask_again` on, for a verifier by a verdict
  Duration retry{};      ///< from its next miss to ask_again; 0: it has answered in time since its last miss
  TimePoint ask_again{};
  Reputation reputation = {};    ///< drafters only
  std::int64_t late_rounds = 0;  ///< drafters only
  WireChoice wire_choice = {};   ///< drafters only

  // Of a verifier whose K/V rows for drafters take too long to arrive: until `rows_again` its sequences get no drafter
  // that needs rows.
  Duration rows_pause{};
  TimePoint rows_again{};

  bool verifies() const { return hello.role == Role::kVerifier; }
  bool drafts() const { return hello.role == Role::kDrafter; }
  bool encodes() const { return hello.role == Role::kEncoder; }
  bool keeps_kv() const { return verifies() || hello.capacity.kv_cost != KvCost{}; }
  /// Returns the K/V bytes of a session with so many positions.
  std::int64_t kv_of(Position positions) const {
    return hello.capacity.kv_cost.bytes(std::min(positions, hello.facts.context_max));
  }
  /// Returns true if this drafter needs a verifier's rows. Drafters only.
  bool needs_rows() const { return hello.needs == DraftInput::kTargetRows; }
  /// Returns the longest answer to such a prompt that fits this verifier's memory if empty; below 1: the prompt does
  /// not fit. @param media_bytes  of its media
  std::int64_t max_tokens_that_fit(Position prompt, std::int64_t media_bytes) const;
  /// Returns the positions that this drafter can draft for. With a verifier's rows, that verifier's context is the
  /// limit.
  Position context() const { return needs_rows() ? kPositions.max : hello.facts.context_max; }
  Estimates& costs_with(DraftInput needs) { return costs[static_cast<std::size_t>(needs)]; }
  const Estimates& costs_with(DraftInput needs) const { return costs[static_cast<std::size_t>(needs)]; }
  /// Returns the seconds of a forward pass of one row; 0: unknown.
  double plain_pass_s() const { return std::max(costs[0].verify_s(1), costs[1].verify_s(1)); }
  /// Returns Draft::halves of drafts of this length, if all sequences of this verifier draft as many tokens.
  bool drafts_by_halves(DraftInput needs, int draft_length, int drafters) const;
  /// Returns true if a session may be assigned to this drafter.
  bool may_draft() const {
    return drafts() && !draining && !suspect && !reputation.paused() && sessions < hello.capacity.sessions_max;
  }
  /// Returns true if a session with these requirements can be assigned to it while it has room; ignores `except`.
  bool suits(const DrafterRequirements& requirements) const;
  /// Records a message.
  void on_message(TimePoint now);
  /// Records bytes of a long message.
  void on_bytes(TimePoint now);
  /// Records that this verifier's rows take too long.
  void pause_rows(TimePoint now);
  /// Records a heartbeat's round trip.
  void measure(Duration time);
  /// Records that this worker did not answer in time.
  void miss(TimePoint now);
};

}  // namespace outrider
