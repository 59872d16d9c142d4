#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/time.h"
#include "common/checkpoint/mapped_file.h"
#include "common/logging/logging.h"
#include "common/model/config.h"
#include "common/policy/forecast.h"
#include "common/report/report.h"
#include "common/tokenizer/chat.h"
#include "common/tokenizer/tokenizer.h"
#include "common/transport/client.h"
#include "lab/commands.h"
#include "launch/cluster.h"
#include "launch/command_support.h"

namespace outrider {
namespace {

using nlohmann::json;

struct ReadyFlags {
  ModelFlags model;
  ClusterFlags cluster;
  std::filesystem::path golden, out;
};

/// What is measured. Below, speculation is of no use: the drafter's first drafts hold less often than one in ten, or
/// text comes more slowly with them than without.
constexpr int kDraftLength = 4;
constexpr std::int64_t kDraftedMin = 500, kTokensMax = 128;
constexpr double kAcceptanceMin = 0.1;

/// One prompt and, where somebody recorded it, the answer.
struct Question {
  std::vector<TokenId> prompt, greedy;
};

/// A list of {"prompt_ids", "greedy"} as tests/goldens/README.md describes it.
std::vector<Question> read_golden(const std::filesystem::path& path) {
  const MappedFile file = or_throw(MappedFile::open(path));
  const auto* const text = reinterpret_cast<const char*>(file.bytes().data());
  const json list = json::parse(text, text + file.bytes().size(), nullptr, /*allow_exceptions=*/false);
  const auto malformed = [&] {
    return std::runtime_error(
        fmt::format("{}: wanted a list of objects with 'prompt_ids' and 'greedy', lists of token ids", path.string()));
  };
  if (!list.is_array() || list.empty()) throw malformed();
  const auto ids = [&](const json& object, const char* key) {
    std::vector<TokenId> result;
    if (!object.is_object() || !object.contains(key) || !object[key].is_array()) throw malformed();
    for (const json& id : object[key]) {
      if (!id.is_number_unsigned() ||
          id.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<TokenId>::max()))
        throw malformed();
      result.push_back(id.get<TokenId>());
    }
    return result;
  };
  std::vector<Question> questions;
  for (const json& object : list) questions.push_back({ids(object, "prompt_ids"), ids(object, "greedy")});
  return questions;
}

std::vector<Question> own_questions(const PairPaths& pair) {
  const Tokenizer tokenizer = or_throw(Tokenizer::load(pair.backbone));
  const ChatFormat format = chat_format_of(pair);
  std::vector<Question> questions;
  // Easy and hard to draft; together they draft some 1,500 tokens.
  for (const char* prompt :
       {"Write a short story about a dog called Max.", "Count from 3 to 20.", "What is 17 plus 25?",
        "Name three things that are blue.", "Explain in two sentences why the sky is blue.",
        "Write a poem about the sea.", "Tell me a story about a lighthouse.",
        "Turn this list into JSON: Finn is 20 and lives near the river; Noah is 48 and lives near the park.",
        "How do I boil an egg?", "Write a letter to a friend who has moved away.", "List the months of the year.",
        "Tell me a story about a lost key.", "What is the difference between a lake and a river?",
        "Write a short story about two sisters and a boat."}) {
    questions.push_back({or_throw(render_user_turn(tokenizer, prompt, format)), {}});
  }
  return questions;
}

/// Asks every question plainly and with drafts. @return what was found, and adds to the reasons.
json measure(Client& client, const std::vector<Question>& questions, const PairPaths& pair, bool draft,
             std::vector<std::string>& wrong, std::vector<std::string>& weak) {
  const std::vector<TokenId> stop_ids = or_throw(load_eos_token_ids(pair.backbone));
  const SamplingParams sampling{.suppress_tokens = or_throw(load_suppress_tokens(pair.backbone))};
  Forecast forecast;
  Generation plain, drafted;  // sums
  std::int64_t different = 0, golden = 0, golden_equal = 0, asked = 0;
  const auto ask = [&](const std::vector<TokenId>& prompt, std::int32_t length, Generation& sum) {
    const Generation one = or_throw(client.generate(
        {.prompt = prompt,
         .max_tokens = kTokensMax,
         .draft_length = length,
         .stop_ids = stop_ids,
         .wait_ms = kVerifierWaitMs,
         .sampling = sampling,
         .report_rounds = true},
        [](std::span<const TokenId>) {}, [] { return false; },
        [&](const RoundReport& round) { forecast.observe(round.outcome); }));
    sum.tokens.insert(sum.tokens.end(), one.tokens.begin(), one.tokens.end());
    add(sum.metrics, one.metrics);
    return one;
  };
  for (const Question& question : questions) {
    const Generation alone = ask(question.prompt, 0, plain);
    if (draft) different += ask(question.prompt, kDraftLength, drafted).tokens != alone.tokens;
    ++asked;
    if (question.greedy.empty()) continue;
    ++golden;
    // Either may have been cut short; a stop is one of the tokens.
    const std::size_t common =
        std::min({question.greedy.size(), alone.tokens.size(), static_cast<std::size_t>(kTokensMax)});
    const bool whole = common == question.greedy.size() || common == static_cast<std::size_t>(kTokensMax);
    golden_equal +=
        whole && std::equal(alone.tokens.begin(), alone.tokens.begin() + static_cast<std::ptrdiff_t>(common),
                            question.greedy.begin());
  }
  const double plain_rate = 1e9 * static_cast<double>(plain.metrics.rounds) /
                            static_cast<double>(std::max<std::int64_t>(plain.metrics.decode_ns, 1));
  json report = {{"prompts", asked}, {"backbone_only_tok_per_sec", plain_rate}};
  if (golden > 0) {
    report["golden"] = {{"answers", golden}, {"equal", golden_equal}};
    if (golden_equal < golden)
      wrong.push_back(fmt::format("{} of {} answers are not those of the golden file", golden - golden_equal, golden));
  }
  if (!draft) return report;
  const double rate = 1e9 * static_cast<double>(std::ssize(drafted.tokens) - asked) /
                      static_cast<double>(std::max<std::int64_t>(drafted.metrics.decode_ns, 1));
  const double predicted = tokens_per_second(forecast.tau(kDraftLength), forecast.terms(kDraftLength));
  const double acceptance = static_cast<double>(drafted.metrics.accepted_tokens) /
                            static_cast<double>(std::max<std::int64_t>(drafted.metrics.drafted_tokens, 1));
  report.update({{"draft_length", kDraftLength},
                 {"speculative_tok_per_sec", rate},
                 {"predicted_tok_per_sec", predicted},
                 {"drafted_tokens", drafted.metrics.drafted_tokens},
                 {"accepted_tokens", drafted.metrics.accepted_tokens},
                 {"acceptance", acceptance},
                 {"different_answers", different}});
  if (different > 0)
    wrong.push_back(fmt::format("{} of {} answers differ between plain and speculative decoding: a bug of Outrider's",
                                different, asked));
  if (drafted.metrics.drafted_tokens < kDraftedMin)
    weak.push_back(fmt::format("only {} tokens were drafted, wanted {}: too few to judge",
                               drafted.metrics.drafted_tokens, kDraftedMin));
  if (acceptance < kAcceptanceMin)
    weak.push_back(fmt::format("{:.2f} of the drafts hold, wanted {}", acceptance, kAcceptanceMin));
  if (rate < plain_rate)
    weak.push_back(fmt::format("{:.1f} tokens per second with drafts, {:.1f} without", rate, plain_rate));
  return report;
}

void ready(const ReadyFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair();
  const std::vector<Question> questions = flags.golden.empty() ? own_questions(pair) : read_golden(flags.golden);
  TransportContext context;
  ClusterClient cluster = or_throw(
      connect_or_start(context, flags.cluster.connect, flags.cluster.options(flags.model, pair, /*drafter=*/true)));
  Client& client = cluster.client;

  std::vector<std::string> wrong, weak;
  json report = {{"protocol_version", kProtocolVersion}};
  const Status before = or_throw(client.status());
  report["handshake"] = {{"verifiers", before.verifiers}, {"drafters", before.drafters}};
  if (before.verifiers == 0) wrong.push_back("no verifier has joined");
  if (before.drafters == 0) weak.push_back("no drafter has joined: plain decoding");
  if (before.verifiers > 0) report["text"] = measure(client, questions, pair, before.drafters > 0, wrong, weak);
  json link = json::array();
  for (const WorkerStatus& worker : or_throw(client.status()).workers) {
    link.push_back({{"role", worker.role == Role::kVerifier ? "verifier" : "drafter"},
                    {"name", worker.name},
                    {"draining", worker.draining},
                    {"rtt_ms", worker.rtt_ns > 0 ? json(static_cast<double>(worker.rtt_ns) / 1e6) : json()}});
  }
  report["link"] = link;
  const char* verdict = !wrong.empty() ? "not ready" : !weak.empty() ? "degraded" : "ready";
  report["verdict"] = verdict;
  wrong.insert(wrong.end(), weak.begin(), weak.end());
  report["reasons"] = wrong;
  const std::string text = report.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  std::fputs(text.c_str(), stdout);
  if (!flags.out.empty()) {
    std::ofstream file(flags.out);
    file << text;
    file.close();
    if (!file) throw std::runtime_error(fmt::format("{}: cannot be written", flags.out.string()));
  }
  if (report["verdict"] == "not ready") throw CLI::RuntimeError(1);
}

}  // namespace

void add_ready_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "ready", "Say whether a cluster is fit for use: handshake, equal text, acceptance, link; as JSON");
  auto flags = std::make_shared<ReadyFlags>();
  flags->model.add_to(*command);
  command->add_option("--golden", flags->golden,
                      "Recorded prompts and greedy answers; only float32 can be expected to give all of them");
  command->add_option("--out", flags->out, "Also write the report here, readiness.json");
  flags->cluster.add_to(*command);
  command->callback([flags] { ready(*flags); });
}

}  // namespace outrider
