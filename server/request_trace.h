#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/time.h"
#include "common/client/client_core.h"
#include "server/trace_context.h"

// A running request is recorded in structs of a fixed size, without text or spans. Another thread makes spans of the
// records later (tracer.h).

namespace outrider {

/// One round, from its RoundReport. The durations were measured by the coordinator and its workers, each with its own
/// clock, so that clocks of two hosts are never compared.
struct TracedRound {
  TimePoint end{};  ///< arrival of its tokens
  float round_s = 0, draft_s = 0, draft_wire_s = 0, draft_waited_s = 0, verify_s = 0, waited_s = 0;
  std::int32_t batch_rows = 0;
  std::int16_t wanted = 0, drafted = 0, accepted = 0;
  std::uint16_t verifier = 0, drafter = 0;  ///< indices into TracedChoice::workers
  DraftSource source = DraftSource::kAssistant;
  bool ahead = false;
};

struct TracedChoice {
  /// Rounds kept in a trace; further ones are only counted.
  static constexpr std::size_t kRoundsMax = 8192;

  TimePoint first_token{}, end{};  ///< TimePoint(): there was none
  std::vector<std::string> workers = {};
  std::vector<TracedRound> rounds = {};
  std::int64_t rounds_left_out = 0;
  std::int64_t generated_tokens = 0;
  std::string finish_reason = {};  ///< empty: it was cut short
  RequestMetrics metrics = {};

  /// Records tokens. @param report  of their round; null: the first one's, or the request moved to another coordinator
  void add(TimePoint now, const RoundReport* report, const std::string& verifier) {
    if (first_token == TimePoint()) first_token = now;
    end = now;
    if (report == nullptr) return;
    if (rounds.size() >= kRoundsMax) return void(++rounds_left_out);
    if (!report->drafter.empty()) drafter_ = index_of(report->drafter);
    const RoundOutcome& outcome = report->outcome;
    rounds.push_back({.end = now,
                      .round_s = static_cast<float>(outcome.round_s),
                      .draft_s = static_cast<float>(outcome.draft_s),
                      .draft_wire_s = static_cast<float>(outcome.draft_wire_s),
                      .draft_waited_s = static_cast<float>(outcome.draft_waited_s),
                      .verify_s = static_cast<float>(outcome.verify_s),
                      .waited_s = static_cast<float>(outcome.waited_s),
                      .batch_rows = outcome.batch_rows,
                      .wanted = static_cast<std::int16_t>(report->draft_length),
                      .drafted = static_cast<std::int16_t>(outcome.drafted),
                      .accepted = static_cast<std::int16_t>(outcome.accepted),
                      .verifier = index_of(verifier),
                      .drafter = drafter_,
                      .source = outcome.source,
                      .ahead = outcome.ahead});
  }

 private:
  std::uint16_t index_of(const std::string& name) {
    for (std::size_t i = workers.size(); i-- > 0;)
      if (workers[i] == name) return static_cast<std::uint16_t>(i);
    if (workers.size() == UINT16_MAX) return 0;
    workers.push_back(name);
    return static_cast<std::uint16_t>(workers.size() - 1);
  }
  std::uint16_t drafter_ = 0;
};

/// One request to generate.
struct RequestTrace {
  TraceContext context;
  TimePoint arrived{}, end{};
  std::string path, id = {}, error = {};
  std::string_view operation = "chat";  ///< OpenTelemetry's gen_ai.operation.name; a constant
  int status = 200;
  std::int64_t prompt_tokens = 0;
  std::vector<TracedChoice> choices = {};

  std::size_t bytes() const {
    std::size_t sum = sizeof(*this);
    for (const TracedChoice& choice : choices) sum += sizeof(choice) + choice.rounds.capacity() * sizeof(TracedRound);
    return sum;
  }
};

}  // namespace outrider
