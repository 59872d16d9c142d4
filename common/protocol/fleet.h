#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/policy/batch_goodput.h"
#include "common/protocol/given_prompts.h"
#include "common/protocol/standing.h"
#include "common/protocol/wire_choice.h"

namespace outrider {

/// What a worker has to do.
struct Load {
  int sessions = 0;
  int rounds = 0;             ///< its sessions that draft or verify now; of a drafter, those that wait for its drafts
  std::int64_t kv_bytes = 0;  ///< of a verifier: set aside for its sessions
  bool operator==(const Load&) const = default;
};

/// One worker as its coordinator sees it.
struct Worker : Load {
  Hello hello;
  std::uint64_t membership = 0;  ///< as in Welcome
  TimePoint heard{};
  Duration rtt{};  ///< about the least of its heartbeats' lately; 0: not measured yet
  bool draining = false;

  CostModel costs = {};     ///< of a verifier: its sessions' policies refer to it
  BatchGoodput batch = {};  ///< likewise
  GivenPrompts given = {};  ///< likewise

  // The back-off of a drafter or an encoder; of a verifier only `suspect` is heeded.
  bool suspect = false;  ///< it missed its time; cleared by any message from `ask_again` on, a verifier's by a verdict
  Duration retry{};      ///< from its next miss to ask_again; 0: it has answered in time since its last miss
  TimePoint ask_again{};
  Standing standing = {};        ///< a drafter's
  std::int64_t late_rounds = 0;  ///< likewise
  WireChoice wire_choice = {};   ///< likewise

  bool verifies() const { return hello.role == Role::kVerifier; }
  bool drafts() const { return hello.role == Role::kDrafter; }
  bool encodes() const { return hello.role == Role::kEncoder; }
  /// Whether a session may be given to it to draft for.
  bool may_draft() const {
    return drafts() && !draining && !suspect && !standing.paused() && sessions < hello.capacity.sessions_max;
  }
  /// It sent something.
  void hear(TimePoint now);
  /// A heartbeat of ours came back after `time`.
  void measure(Duration time);
  /// A drafter did not answer in time.
  void miss(TimePoint now);
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

  /// What a text wants of a verifier.
  struct Wanted {
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
  bool has_verifier(const Wanted& wanted) const;

  /// A new worker, or one that says Hello again.
  Worker& join(const PeerId& peer, const Hello& hello, TimePoint now);
  /// Empty for a stranger.
  Workers::node_type remove(const PeerId& peer);
  /// Those that were not heard for longer than `timeout`.
  std::vector<PeerId> silent(Duration timeout, TimePoint now) const;

  /// A drafter that answers; nullptr for one that is suspect, paused or gone.
  Worker* usable_drafter(const PeerId& peer);
  /// Of those that have room, the one with the fewest sessions for its yield (Standing) and its link, but for `except`;
  /// "" if there is none.
  /// @param proven  only those of which it is known whose they are (Hello::unproven)
  PeerId choose_drafter(const std::vector<PeerId>& except = {}, bool proven = false) const;
  /// An encoder for the texts of a verifier, with room, the one with the fewest sessions; "" if there is none. Its soft
  /// tokens are the bits that the verifier's own towers would make, if it has any.
  /// @param encoding_class  as in Wanted
  PeerId choose_encoder(const Hello& verifier, const std::string& encoding_class) const;
  /// Whether there is one, with room or without.
  bool has_encoder(const Hello& verifier, const std::string& encoding_class) const;
  /// Drafters that have sessions; 1 if none has.
  int drafters_at_work() const;
  /// A round is over that a drafter was asked for drafts in. Nothing happens for a stranger, and for "".
  /// @param held  the first of them did. @return what is to be said if it is paused for that.
  std::optional<std::string> count_round(const PeerId& drafter, bool held, TimePoint now);

  /// A verifier for a text, and the K/V rows that the text can come to need there.
  struct Offer {
    PeerId verifier;
    Position positions = 0;
    bool refuses = false;  ///< more than its memory could ever hold: it says best what is missing
  };
  /// Of those that have room for `positions`, or for as many as their context has, the preferred one, or that with the
  /// least to do for its speed: its sessions with this one, whose prompt counts too but for what was given there
  /// before.
  /// @return none while none has room that may come to have it.
  std::optional<Offer> choose_verifier(Position positions, const Wanted& wanted) const;
  /// Of an answer to so long a prompt, in the verifier with the most memory, were it empty; below 1: the prompt does
  /// not fit.
  std::int64_t max_tokens_that_fit(std::int64_t prompt) const;

  /// Whether these words about a peer are to be said: what may happen again at once, a refusal say, is said once in
  /// kRepeat.
  bool is_news(const PeerId& peer, const std::string& text, TimePoint now);
  /// Adds what it knows.
  void describe(Status& status) const;

 private:
  /// Whether a worker is a verifier that may be given a text, room aside.
  bool takes(const Worker& worker, const Wanted& wanted) const;
  static constexpr Duration kRepeat = std::chrono::minutes(1);
  static constexpr std::size_t kSaidMax = 1024, kDepartedMax = 1024;
  struct Said {
    std::string text;
    TimePoint when;
  };

  /// Seconds of a verifier's forward of one row, on average; 1 where nothing is known of any.
  double typical_verify_s() const;

  Workers workers_;
  std::optional<PairFacts> facts_;            ///< kept
  std::map<PeerId, Said> said_;               ///< lately
  std::map<std::string, Standing> departed_;  ///< by key: the worst of the drafters that left and did not come back
  std::uint64_t next_membership_;
};

}  // namespace outrider
