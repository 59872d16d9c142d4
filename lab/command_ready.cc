#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/text.h"
#include "common/client/client.h"
#include "common/decoding/drafting/forecast.h"
#include "common/os/logging.h"
#include "common/os/progress.h"
#include "lab/questions.h"
#include "lab/reporting.h"
#include "launch/cluster_flags.h"
#include "launch/local_cluster.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {

struct ReadyFlags {
  ModelFlags model;
  ClusterFlags cluster;
  ReportFlags report;
  std::filesystem::path golden;
};

/// The measured draft length. Speculation is useless if drafts are rejected, or answers are slower with them than
/// without.
constexpr DraftLength kDraftLength = {.length = 4};
constexpr std::int64_t kDraftedMin = 500, kTokensMax = 128;

/// Reasons that a cluster is not ready, or only degraded.
struct Reasons {
  std::vector<std::string> wrong, weak;
};

/// @return true if a greedy answer equals the recorded one. Either may be cut short; a stop is one of the tokens.
bool same_answer(const std::vector<TokenId>& recorded, const std::vector<TokenId>& answer) {
  const std::size_t most = kTokensMax, common = std::min({recorded.size(), answer.size(), most});
  return (common == recorded.size() || common == most) &&
         std::equal(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(common), recorded.begin());
}

/// Adds the effect of drafting to the report, and to the reasons.
void judge_drafts(const Answers& plain, const Answers& drafted, std::int64_t different, std::size_t asked, Row& report,
                  Reasons& reasons) {
  Forecast forecast;
  for (const RoundOutcome& round : plain.rounds) forecast.observe(round);
  for (const RoundOutcome& round : drafted.rounds) forecast.observe(round);
  const double predicted = tokens_per_second(forecast.tau(kDraftLength.length), forecast.terms(kDraftLength.length));
  const std::int64_t count = drafted.metrics.drafted_tokens;
  report.add({{"draft_length", kDraftLength.length},
              {"speculative_tok_per_sec", drafted.tok_per_sec()},
              {"predicted_tok_per_sec", predicted},
              {"drafted_tokens", count},
              {"accepted_tokens", drafted.metrics.accepted_tokens},
              {"acceptance", drafted.acceptance()},
              {"different_answers", different}});
  if (different > 0)
    reasons.wrong.push_back(fmt::format(
        "{} of {} answers differ between plain and speculative decoding: a bug in Outrider", different, asked));
  if (count < kDraftedMin)
    reasons.weak.push_back(fmt::format("only {} tokens were drafted, wanted {}: too few to judge", count, kDraftedMin));
  if (drafted.acceptance() < kAcceptanceMin)
    reasons.weak.push_back(fmt::format("acceptance rate {:.2f}, wanted {}", drafted.acceptance(), kAcceptanceMin));
  if (drafted.tok_per_sec() < plain.tok_per_sec())
    reasons.weak.push_back(fmt::format(
        "drafts do not pay: {:.1f} tokens per second with {} drafts a round, {:.1f} without ('auto' skips them)",
        drafted.tok_per_sec(), kDraftLength.length, plain.tok_per_sec()));
}

/// Asks every question plainly and with drafts, and adds to the reasons. @return the measurements
Row measure(const Asker& asker, const std::vector<Question>& questions, bool draft, Reasons& reasons) {
  Answers plain, drafted;
  std::int64_t different = 0, golden = 0, golden_equal = 0;
  Progress progress("asking for answers", static_cast<int>(questions.size()));
  for (const Question& question : questions) {
    std::vector<TokenId> alone;
    if (draft) {
      Asker::Both both = asker.ask_both(question, kDraftLength, plain, drafted);
      different += both.drafted != both.plain;
      alone = std::move(both.plain);
    } else {
      alone = asker.ask(question, {}, plain);
    }
    progress.step();
    if (question.greedy.empty()) continue;
    ++golden;
    golden_equal += same_answer(question.greedy, alone);
  }
  Row report = {{"prompts", questions.size()}, {"backbone_only_tok_per_sec", plain.tok_per_sec()}};
  if (golden > 0) report.push_back({"golden", Row{{"answers", golden}, {"equal", golden_equal}}});
  if (golden_equal < golden) {
    reasons.wrong.push_back(fmt::format("{} of {} answers differ from the golden file", golden - golden_equal, golden));
  }
  if (draft) judge_drafts(plain, drafted, different, questions.size(), report, reasons);
  return report;
}

void ready(const ReadyFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair(flags.cluster.need());
  const TextSide text = load_text_side(open_model(pair.backbone));
  const std::vector<Question> questions = flags.golden.empty()
                                              ? user_turns(text, {kDemoPrompts.begin(), kDemoPrompts.end()})
                                              : read_golden_questions(flags.golden);
  TransportContext context(flags.cluster.security);
  ClusterClient cluster = or_throw(
      connect_or_start(context, flags.cluster.connect, flags.cluster.options(flags.model, pair, /*drafter=*/true)));
  Client& client = cluster.client;

  Reasons reasons;
  const Status before = or_throw(client.status());
  Row report = {{"protocol_version", kProtocolVersion},
                {"handshake", Row{{"verifiers", before.verifiers}, {"drafters", before.drafters}}}};
  if (before.verifiers == 0) reasons.wrong.push_back("no verifier has joined");
  if (before.drafters == 0) reasons.weak.push_back("no drafter has joined: plain decoding");
  if (before.verifiers > 0)
    report.push_back({"text", measure(Asker(client, text, kTokensMax), questions, before.drafters > 0, reasons)});
  std::vector<Row> link;
  for (const WorkerStatus& worker : or_throw(client.status()).workers) {
    const double rtt_ms = static_cast<double>(worker.rtt_ns) / 1e6;
    link.push_back({{"role", to_string(worker.role)},
                    {"name", worker.name},
                    {"draining", worker.draining},
                    {"rtt_ms", worker.rtt_ns > 0 ? Json(rtt_ms) : Json()}});
  }
  report.push_back({"link", link});
  const bool wrong = !reasons.wrong.empty();
  report.push_back({"verdict", wrong ? "not ready" : !reasons.weak.empty() ? "degraded" : "ready"});
  reasons.wrong.insert(reasons.wrong.end(), reasons.weak.begin(), reasons.weak.end());
  report.push_back({"reasons", reasons.wrong});
  const std::string summary =
      reasons.wrong.empty()
          ? fmt::format("OK: {}, {}, {} texts are equal with and without drafts", counted(before.verifiers, "verifier"),
                        counted(before.drafters, "drafter"), questions.size())
          : fmt::format("{}: {}", wrong ? "NOT READY" : "DEGRADED", fmt::join(reasons.wrong, "; "));
  write_report(flags.report, report, summary + "\n");
  if (wrong) throw ExitStatus(1);
}

}  // namespace

void add_ready_command(Command& app) {
  Command* command =
      app.add_subcommand("ready", "Check whether a cluster is ready for use: handshake, equal text, acceptance, link");
  auto flags = std::make_shared<ReadyFlags>();
  flags->model.add_to(*command);
  command->add_option("--golden", flags->golden,
                      "Recorded prompts and greedy answers; only float32 can be expected to reproduce all of them");
  flags->report.add_to(*command);
  flags->cluster.add_to(*command);
  command->callback([flags] { ready(*flags); });
}

}  // namespace outrider
