#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/decoding/drafting/draft_length.h"
#include "common/decoding/drafting/goodput.h"

namespace outrider {

// Policies for draft lengths on recorded rounds: which length each takes, what that brings, and what the best fixed
// length would have brought.

/// An answer, and at each of its positions how many of 16 drafts would be accepted there (tests/goldens/policy has
/// nano's, tests/simulation/policy_record_traces.cc records them).
struct Trace {
  std::vector<TokenId> tokens;
  std::vector<int> runs;
};
std::vector<Trace> read_traces(const std::string& path);

/// What a round costs in a world of its own. Seconds.
struct World {
  double plain_verify_s = 0.08;
  /// T(M) / T(1). Default: int8 on AMX, where 16 rows are nearly free (docs/lab/amx.md), then the next 16.
  std::function<double(int rows)> steps = [](int rows) {
    return rows <= 1 ? 1.0 : (1.02 + 0.008 * rows) * ((rows + 15) / 16);
  };
  double draft_token_s = 0.004;
  double rtt_s = 0, s_per_byte = 8e-9, other_s = 0.0005;
  double jitter = 0;  ///< of the round trip: up to this share of it on top, at random

  double plain_s() const { return plain_verify_s * steps(1) + other_s; }
};

/// How many drafts of a source would hold if a round began now; `advance` tokens have been emitted since the last
/// question.
using Acceptance = std::function<int(DraftSource source, int advance)>;
/// What is looked up behind `own` drafts that hold, in that round.
struct LookUp {
  int found = 0, held = 0;
};
using Behind = std::function<LookUp(int own)>;
/// The traces in turn, for ever; n-gram drafts come from the answer so far. @param behind  is set to what they say
/// behind other drafts; nullptr: nobody asks
Acceptance traced(const std::vector<Trace>& traces, Behind* behind = nullptr);
/// Each draft holds with its source's probability, whatever the others do.
Acceptance independent(double assistant, double ngram, std::uint64_t seed);

struct Round {
  DraftPlan plan;
  int tokens = 0;
  double seconds = 0, plain_seconds = 0;  ///< plain_seconds: what plain decoding takes for the same tokens
};

/// Plays rounds of one policy. What it may need is kept here, so that a test can change the world on the way.
class PolicySimulator {
 public:
  PolicySimulator(World& world, Acceptance acceptance, std::uint64_t seed = 1)
      : world_(world), acceptance_(std::move(acceptance)), random_(seed) {}

  Estimates costs;
  BatchGoodput batch;
  DraftLimits limits = {.assistant = 16};
  Behind behind = nullptr;  ///< none: nothing is looked up there
  std::vector<Round> rounds;

  /// Runs until `tokens` more were emitted.
  void run(DraftLengthPolicy& policy, std::int64_t tokens);
  void run_rounds(DraftLengthPolicy& policy, int count);

  /// Tokens per second of the rounds from `first` on.
  double rate(std::size_t first = 0) const;
  /// The largest time / plain time over every shortest run of rounds that emits at least `tokens`.
  double worst_slowdown(std::int64_t tokens) const;

 private:
  void play(DraftLengthPolicy& policy);

  World& world_;
  Acceptance acceptance_;
  CounterRng random_;
  int emitted_ = 0;  ///< in the last round
};

/// The best fixed length, plain included, and its rate: what a policy that knew everything but the future would take.
struct Oracle {
  int length = 0;
  double rate = 0;
};
Oracle oracle(const World& world, const std::function<Acceptance()>& acceptance, std::int64_t tokens);

}  // namespace outrider
