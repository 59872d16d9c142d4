#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/decoding/drafting/batch_goodput.h"
#include "coordinator-node/given_prompts.h"
#include "coordinator-node/reputation.h"
#include "coordinator-node/wire_choice.h"

namespace outrider {

/// What a worker has to do.
struct Load {
  int sessions = 0;
  int rounds = 0;             ///< its sessions that draft or verify now; of a drafter, those that wait for its drafts
  std::int64_t kv_bytes = 0;  ///< of one that keeps K/V: set aside for its sessions
  bool operator==(const Load&) const = default;
};

/// One worker as its coordinator sees it.
struct Worker : Load {
  Hello hello;
  std::uint64_t membership = 0;  ///< as in Welcome
  TimePoint heard{}, spoke{};    ///< when bytes of it came last, and when a message
  /// A long message of it is coming in, slowly perhaps.
  struct Arriving {
    TimePoint last{};                     ///< bytes of one came
    std::optional<TimePoint> since = {};  ///< of the one that is not whole yet
    bool now(TimePoint at) const { return last != TimePoint() && at - last < kArriving; }
    static constexpr Duration kArriving = std::chrono::seconds(2);
  } arriving = {};
  TimePoint leaving{};  ///< when bytes of a long message to it went last, and more were left
  static constexpr Duration kLeaving = std::chrono::seconds(1);
  Duration rtt{};  ///< about the least of its heartbeats' lately; 0: not measured yet
  bool draining = false;

  /// Of a verifier: its sessions' policies refer to them. By what their drafters need, since these differ in what a
  /// draft costs and in how many hold.
  std::array<Estimates, 2> costs = {};
  BatchGoodput batch = {};  ///< likewise
  GivenPrompts given = {};  ///< likewise

  // The back-off of a drafter or an encoder; of a verifier only `suspect` is heeded.
  bool suspect = false;  ///< it missed its time; cleared by any message from `ask_again` on, a verifier's by a verdict
  Duration retry{};      ///< from its next miss to ask_again; 0: it has answered in time since its last miss
  TimePoint ask_again{};
  Reputation reputation = {};    ///< a drafter's
  std::int64_t late_rounds = 0;  ///< likewise
  WireChoice wire_choice = {};   ///< likewise

  // Of a verifier whose K/V rows for drafters take too long on their way here: its sequences do without.
  Duration rows_pause{};
  TimePoint rows_again{};

  bool verifies() const { return hello.role == Role::kVerifier; }
  bool drafts() const { return hello.role == Role::kDrafter; }
  bool encodes() const { return hello.role == Role::kEncoder; }
  bool keeps_kv() const { return verifies() || hello.capacity.kv_cost != KvCost{}; }
  /// K/V of a session with so many positions.
  std::int64_t kv_of(Position positions) const {
    return hello.capacity.kv_cost.bytes(std::min(positions, hello.facts.context_max));
  }
  /// Of a drafter.
  bool needs_rows() const { return hello.needs == DraftInput::kTargetRows; }
  /// Positions that a sequence may have for it to draft. Drafts by a verifier's rows end with that verifier's context.
  Position context() const { return needs_rows() ? kPositions.max : hello.facts.context_max; }
  Estimates& costs_with(DraftInput needs) { return costs[static_cast<std::size_t>(needs)]; }
  const Estimates& costs_with(DraftInput needs) const { return costs[static_cast<std::size_t>(needs)]; }
  /// Seconds of a forward pass of one row; 0: not known.
  double plain_pass_s() const { return std::max(costs[0].verify_s(1), costs[1].verify_s(1)); }
  /// Whether a session may be given to it to draft for.
  bool may_draft() const {
    return drafts() && !draining && !suspect && !reputation.paused() && sessions < hello.capacity.sessions_max;
  }
  /// It sent something.
  void hear(TimePoint now);
  /// It is sending something long.
  void hear_bytes(TimePoint now);
  /// Rows of it take too long.
  void pause_rows(TimePoint now);
  /// A heartbeat of ours came back after `time`.
  void measure(Duration time);
  /// A drafter did not answer in time.
  void miss(TimePoint now);
};

/// What a sequence wants of a drafter.
struct DrafterWish {
  std::vector<PeerId> except = {};  ///< none of these
  bool proven = false;              ///< one of which it is known whose it is (Hello::unproven)
  bool no_rows = false;             ///< none that needs its verifier's rows
  bool no_tokens = false;           ///< none that needs tokens: some rows of the sequence are no tokens'
  Position positions = 0;           ///< of one with K/V of its own: its context has room for them
  Position in_all = 0;              ///< of such a one: it has memory for them
};

/// How fast the sequences of drafters are, by what these need. Older rounds count less.
class DrafterSpeeds {
 public:
  /// A round with drafts of a drafter that needs this emitted so many tokens.
  void count(DraftInput needs, int tokens, double seconds);
  /// How many times faster tokens come with drafters that need something else. Those that were not tried lately count
  /// as twice as fast, so that they are.
  double slowness(DraftInput needs) const;

 private:
  struct Speed {
    double rounds = 0, tokens = 0, seconds = 0;
    bool tried() const { return rounds >= 40 && seconds > 0; }
    double value() const { return tokens / seconds; }
    void fade(double keep) { rounds *= keep, tokens *= keep, seconds *= keep; }
  };
  std::array<Speed, 2> speeds_ = {};
};

/// Who has joined, what each of them can take, and who is late. Time is handed in.
class Fleet {
 public:
  explicit Fleet(std::uint64_t first_membership) : next_membership_(first_membership) {}

  using Workers = std::map<PeerId, Worker>;
  const Workers& workers() const { return workers_; }
  /// nullptr for a stranger, and for "".
  Worker* find(const PeerId& peer);
  Worker& at(const PeerId& peer) { return workers_.at(peer); }
  /// Those that hold for all: the ones that were kept, or while there are none a verifier's; nullptr without either.
  const PairFacts* facts() const;
  /// From now on these hold, whoever comes first. Once kept they are kept.
  void keep_facts(const PairFacts& facts);

  /// What a sequence wants of a verifier.
  struct Requirements {
    std::optional<std::string> numeric_class = {};  ///< none: any; "" is nobody's
    Position context_min = 0;
    std::string name = {};    ///< of the verifier that is preferred, should it be there
    bool only_name = false;   ///< no other will do
    std::string except = {};  ///< not this one
    bool media = false;       ///< it has pictures or sounds that nobody has encoded
    /// Where it has: of who must encode them, the verifier or an encoder; empty: anybody may.
    std::string encoding_class = {};
    Position prompt = 0;                           ///< tokens of its prompt
    std::span<const std::uint64_t> prefixes = {};  ///< of the prompt (hash_prefixes)
  };
  /// One that takes sessions.
  bool has_verifier(const Requirements& wanted) const;

  /// A new worker, or one that says Hello again.
  Worker& join(const PeerId& peer, const Hello& hello, TimePoint now);
  /// Empty for a stranger.
  Workers::node_type remove(const PeerId& peer);
  /// Those that were not heard for longer than `timeout`.
  std::vector<PeerId> silent(Duration timeout, TimePoint now) const;

  /// A drafter that answers; nullptr for one that is suspect, paused or gone.
  Worker* usable_drafter(const PeerId& peer);
  /// Of those that have room, the one with the fewest sessions for its yield (Reputation), its link and what tokens a
  /// second its kind brings; "" if there is none.
  PeerId choose_drafter(const DrafterWish& wish = {}) const;
  /// An encoder for the sequences of a verifier, with room, the one with the fewest sessions; "" if there is none. Its
  /// soft tokens are the bits that the verifier's own towers would make, if it has any.
  /// @param encoding_class  as in Requirements
  PeerId choose_encoder(const Hello& verifier, const std::string& encoding_class) const;
  /// Whether there is one, with room or without.
  bool has_encoder(const Hello& verifier, const std::string& encoding_class) const;
  /// Drafters that have sessions; 1 if none has.
  int drafters_at_work() const;
  /// A round is over that a drafter was asked for drafts in. Nothing happens for a stranger, and for "".
  /// @param held  the first of them did. @return what is to be said if it is paused for that.
  std::optional<std::string> count_round(const PeerId& drafter, bool held, TimePoint now);

  /// A verifier for a sequence, and the K/V rows that the sequence can come to need there.
  struct Offer {
    PeerId verifier;
    Position positions = 0;
    bool refuses = false;  ///< more than its memory could ever hold: it says best what is missing
  };
  /// Of those that have room for `positions`, or for as many as their context has, the preferred one, or that with the
  /// least to do for its speed: its sessions with this one, whose prompt counts too but for what was given there
  /// before.
  /// @return none while none has room that may come to have it.
  std::optional<Offer> choose_verifier(Position positions, const Requirements& wanted) const;
  /// Of an answer to so long a prompt, in the verifier with the most memory, were it empty; below 1: the prompt does
  /// not fit.
  std::int64_t max_tokens_that_fit(std::int64_t prompt) const;

  /// Whether these words about a peer are to be said: what may happen again at once, a refusal say, is said once in
  /// kRepeat.
  bool is_news(const PeerId& peer, const std::string& text, TimePoint now);
  /// Adds what it knows.
  void describe(Status& status) const;

  DrafterSpeeds speeds = {};

 private:
  /// Whether a worker is a verifier that may be given a sequence, room aside.
  bool takes(const Worker& worker, const Requirements& wanted) const;
  static constexpr Duration kRepeat = std::chrono::minutes(1);
  static constexpr std::size_t kReportedMax = 1024, kDepartedMax = 1024;
  struct Reported {
    std::string text;
    TimePoint when;
  };

  Workers workers_;
  std::optional<PairFacts> facts_;              ///< kept
  std::map<PeerId, Reported> reported_;         ///< lately
  std::map<std::string, Reputation> departed_;  ///< by key: the worst of the drafters that left and did not come back
  std::uint64_t next_membership_;
};

}  // namespace outrider
