#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/os/logging.h"
#include "common/os/progress.h"
#include "lab/questions.h"
#include "lab/reporting.h"
#include "launch/answer_flags.h"
#include "launch/cluster_flags.h"
#include "launch/local_cluster.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {

struct AskFlags {
  ModelFlags model;
  ClusterFlags cluster;
  ReportFlags report;
  std::string draft_length = "auto";
  std::filesystem::path file;
  std::int64_t max_tokens = 256, limit = 0;
};

/// Sums of a category's answers.
struct Category {
  std::string name;
  std::int64_t turns = 0;
  Answers plain = {}, drafted = {};

  void add(const Category& other) {
    turns += other.turns;
    plain.add(other.plain);
    drafted.add(other.drafted);
  }
  Row row() const {
    const RequestMetrics& metrics = drafted.metrics;
    const auto ratio = [](double a, double b) { return b == 0 ? 0 : a / b; };
    return {{"category", name, "category"},
            {"turns", turns, "turns"},
            {"tokens", drafted.tokens, "tokens"},
            {"rounds", metrics.rounds},
            {"drafted_tokens", metrics.drafted_tokens},
            {"accepted_tokens", metrics.accepted_tokens},
            {"acceptance", drafted.acceptance(), "acceptance", 2},
            {"tokens_per_round", ratio(static_cast<double>(drafted.tokens), static_cast<double>(metrics.rounds)),
             "tokens a round", 2},
            {"backbone_only_tok_per_sec", plain.tok_per_sec(), "plain/s", 1},
            {"speculative_tok_per_sec", drafted.tok_per_sec(), "spec/s", 1},
            {"speedup", ratio(drafted.tok_per_sec(), plain.tok_per_sec()), "speed-up", 2}};
  }
};

/// Asks every turn plainly and with drafts. @return true if there was room for all of them
bool ask(const Conversations& question, const TextSide& text, const Asker& asker, const DraftLength& drafts,
         Category& category) {
  return ask_turns(question, text, [&](const std::string& turn, const Question& asked) {
    const auto [alone, drafted] = asker.ask_both(asked, drafts, category.plain, category.drafted);
    if (alone != drafted) throw CommandError("'{}': speculative and plain tokens differ", turn.substr(0, 60));
    ++category.turns;
    return alone;
  });
}

void bench_ask(const AskFlags& flags) {
  init_logging("outrider", "warn");
  const std::vector<Conversations> questions = read_question_file(flags.file, flags.limit);
  const PairPaths pair = flags.model.pair();
  const TextSide text = load_text_side(open_model(pair.backbone));
  const DraftLength drafts = or_throw(parse_draft_length(flags.draft_length));
  TransportContext context(flags.cluster.security);
  const ClusterOptions options = flags.cluster.options(flags.model, pair, /*drafts_wanted=*/true);
  ClusterClient cluster = or_throw(connect_or_start(context, flags.cluster.connect, options));
  const Asker asker(cluster.client, text, flags.max_tokens);
  Answers warm_up;  // first use compiles kernels and maps pages
  asker.ask(user_turns(text, {questions[0].turns[0].substr(0, 200)}).front(), drafts, warm_up);

  std::vector<Category> categories;
  std::int64_t too_long = 0;
  std::optional<Progress> progress(std::in_place, "bench ask, questions", static_cast<int>(questions.size()));
  for (const Conversations& question : questions) {
    auto category = std::ranges::find(categories, question.category, &Category::name);
    if (category == categories.end()) category = categories.insert(category, Category{.name = question.category});
    too_long += !ask(question, text, asker, drafts, *category);
    progress->step();
  }
  progress.reset();
  Category all{.name = "all"};
  std::vector<Row> rows;
  for (const Category& category : categories) {
    if (category.turns == 0) continue;
    rows.push_back(category.row());
    all.add(category);
  }
  if (rows.empty()) throw CommandError("{}: every question is longer than the context", flags.file.string());
  rows.push_back(all.row());
  Row report = {{"file", flags.file.string()},
                {"model", pair.backbone.string()},
                {"draft_length", flags.draft_length},
                {"questions", questions.size()},
                {"questions_cut_short_by_the_context", too_long},
                {"categories", rows}};
  if (flags.cluster.connect.empty()) {  // else unknown
    report.push_back({"dtype", to_string(options.weight_type)});
    report.add(machine_row(options.verifier.threads));
  }
  write_report(flags.report, report, key_lines(report) + table(rows));
}

}  // namespace

void add_bench_ask_command(Command& bench) {
  Command* command = bench.add_subcommand(
      "ask",
      "Answer a file of questions with and without drafts: acceptance, tokens per round and speed-up by category");
  auto flags = std::make_shared<AskFlags>();
  command
      ->add_option(
          "FILE", flags->file,
          "Questions in the format of MT-bench and Spec-Bench: lines {\"category\": \"...\", \"turns\": [\"...\"]}")
      ->required();
  flags->model.add_to(*command);
  command->add_option("--draft-length", flags->draft_length, "Draft length or policy, as for run")
      ->check(check_draft_length)
      ->capture_default_str();
  add_number(*command, "--max-tokens", flags->max_tokens, 1, 1 << 20, "Maximum number of tokens per answer");
  add_number(*command, "--limit", flags->limit, 0, 1 << 30, "Use only the first N questions; 0: all");
  flags->report.add_to(*command);
  flags->cluster.add_to(*command);
  command->callback([flags] { bench_ask(*flags); });
}

}  // namespace outrider
