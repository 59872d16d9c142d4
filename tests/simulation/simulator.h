#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/protocol/coordinator_core.h"
#include "common/protocol/drafter_core.h"
#include "common/protocol/verifier_core.h"
#include "common/sampling/sampler.h"

namespace outrider::simulation {

/// What the network between the coordinator and its workers does to each message.
struct Faults {
  double drop = 0, repeat = 0;
  Duration delay_min = std::chrono::microseconds(50), delay_max = std::chrono::microseconds(200);
  double slow = 0;  ///< share of messages, and of drafts, that take slow_delay_max at most: overtaken by many
  Duration slow_delay_max = std::chrono::milliseconds(800);
  double drafter_restart = 0;  ///< chance per virtual second
  /// A network with none of these keeps the order of each peer's messages, as a ZeroMQ connection does.
  bool keeps_order() const { return drop == 0 && repeat == 0 && slow == 0; }
};

/// A made-up model whose next token is a hash of everything before it, so that any slip shows. A K/V
/// row is the hash of the prefix that ends there, and so is a hidden row: the drafter can check every
/// row that reaches it.
namespace model {
inline constexpr TokenId kVocab = 997;
inline constexpr std::int32_t kWindow = 6;
inline constexpr std::uint64_t kEmpty = 0x243f6a8885a308d3ULL;
inline std::uint64_t extend(std::uint64_t prefix, TokenId token) {
  return mix64(prefix ^ (static_cast<std::uint64_t>(token) + 1));
}
inline TokenId choose(std::uint64_t prefix) { return static_cast<TokenId>(mix64(prefix + 17) % kVocab); }
PairFacts facts();
/// Logits after a prefix: choose(prefix) has the highest, about half of the probability.
std::vector<float> logits(std::uint64_t prefix);
/// Plain decoding, to `count` tokens or the first of stop_ids.
std::vector<TokenId> generate(const std::vector<TokenId>& prompt, std::int64_t count,
                              const SamplingParams& sampling = {}, const std::vector<TokenId>& stop_ids = {});
}  // namespace model

/// The real session code of all three roles over a seeded in-memory network, in virtual time. One
/// seed is one history.
class Simulator {
 public:
  /// @param kv_bytes_max the verifier's K/V memory; a position takes 100 bytes, and 50 more in the ring.
  Simulator(std::uint64_t seed, const Faults& faults, double drafter_accuracy,
            std::int64_t kv_bytes_max = std::numeric_limits<std::int64_t>::max());

  /// Opens a request, as a client over a reliable link.
  void request(std::uint64_t number, std::vector<TokenId> prompt, std::int64_t max_tokens, std::int32_t draft_length,
               const SamplingParams& sampling = {}, const std::vector<TokenId>& stop_ids = {},
               DraftPolicy policy = DraftPolicy::kFixed);
  /// The client wants this one no longer.
  void cancel(std::uint64_t number);
  /// Lets virtual time pass until every request has ended. @return false if `limit` came first.
  bool run_until_done(Duration limit);
  void run_for(Duration duration);
  /// Stops both workers for so long: what is sent to them waits, as with SIGSTOP.
  void freeze_workers(Duration duration) { frozen_until_ = now_ + duration; }

  struct Answer {
    std::vector<TokenId> tokens;
    bool done = false;
    RequestMetrics metrics;
    std::string failure;
  };
  const std::map<std::uint64_t, Answer>& answers() const { return answers_; }
  /// Sentences about broken promises; empty in a correct run.
  const std::vector<std::string>& violations() const { return violations_; }
  std::int64_t drafter_restarts() const { return restarts_; }
  std::int64_t messages() const { return messages_; }
  std::size_t verifier_sessions() const { return verifier_->session_count(); }
  std::size_t drafter_sessions() const { return drafter_->session_count(); }
  int coordinator_sessions() const { return coordinator_.status().sessions; }
  std::int64_t verifier_kv_bytes() const { return verifier_->kv_bytes(); }
  Status status() const { return coordinator_.status(); }

 private:
  struct Event {
    TimePoint at;
    std::uint64_t order;
    enum class Kind { kToCoordinator, kToWorker, kBatchDone, kDrafted, kTick } kind;
    PeerId peer;
    Message message;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.at != b.at ? a.at > b.at : a.order > b.order; }
  };

  void step();
  void schedule(Duration after, Event::Kind kind, PeerId peer, Message message);
  /// Sends over the faulty network.
  void transmit(Event::Kind kind, const PeerId& peer, const Message& message);
  void flush();
  void to_client(const Message& message);
  void new_drafter();
  std::vector<VerifyResult> forward(const std::vector<VerifyWork>& batch);
  Duration slow_or(Duration low, Duration high);
  /// Appends rows, or forgets them.
  void change_replica(const DraftWork& work);
  Candidates draft(const DraftWork& work);
  void violated(std::string what) { violations_.push_back(std::move(what)); }

  CounterRng rng_;
  Faults faults_;
  double accuracy_;
  TimePoint now_{}, frozen_until_{};
  std::uint64_t order_ = 0;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::map<std::pair<Event::Kind, PeerId>, TimePoint> arrivals_;  ///< of what was sent last each way

  CoordinatorCore coordinator_;
  std::unique_ptr<VerifierCore> verifier_;
  std::unique_ptr<DrafterCore> drafter_;
  PeerId drafter_peer_;
  struct Cache {
    std::vector<std::uint64_t> prefix;  ///< prefix[p]: hash of tokens 0..p
    Position written = 0;               ///< the ring has lost what is further back than its length
  };
  std::map<SessionId, Cache> caches_;  ///< the verifier's K/V
  std::int64_t kv_bytes_max_;
  std::map<SessionId, Sampler> samplers_;  ///< of the sessions that sample
  SamplingScratch scratch_;
  bool sampled_ = false;  ///< some session samples: its tokens are not choose()'s
  struct Replica {
    std::map<Position, std::uint64_t> full, sliding;
  };
  std::map<SessionId, Replica> replicas_;
  std::vector<VerifyResult> results_;
  std::optional<std::pair<DraftWork, Candidates>> drafted_;  ///< what the drafter is busy with
  std::map<std::uint64_t, Answer> answers_;
  std::vector<std::string> violations_;
  std::int64_t restarts_ = 0, messages_ = 0;
};

}  // namespace outrider::simulation
