// bake-table: counts the n-grams of a model's own answers, for a coordinator's --draft-table.
#include <optional>

#include <fmt/format.h>

#include "common/decoding/drafting/draft_table.h"
#include "common/model/gemma4/weights.h"
#include "common/os/durable_file.h"
#include "common/os/logging.h"
#include "common/os/progress.h"
#include "lab/questions.h"
#include "launch/cluster_flags.h"
#include "launch/local_cluster.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

struct BakeTableFlags {
  ModelFlags model;
  ClusterOptions cluster;
  std::vector<fs::path> files;
  fs::path out;
  std::int64_t max_tokens = 256;
  int order = kTableOrder;
};

void bake_table(const BakeTableFlags& flags) {
  init_logging("outrider", "warn");
  // Checked first, since a failure after hours would lose the work.
  if (!fs::is_directory(fs::absolute(flags.out).parent_path()))
    throw CommandError("{}: the folder does not exist", flags.out.string());
  std::vector<Conversations> questions;
  for (const fs::path& file : flags.files) {
    const std::vector<Conversations> more = read_question_file(file);
    questions.insert(questions.end(), more.begin(), more.end());
  }
  ClusterOptions options = flags.cluster;
  options.pair = flags.model.pair();
  options.weight_type = flags.model.type_to_load(options.pair);
  options.drafters = flags.model.wants_drafter(options.pair, /*drafts_wanted=*/true) ? 1 : 0;
  const ModelFiles files = open_model(options.pair.backbone);
  const TextSide text = load_text_side(files);
  const std::uint64_t fingerprint = or_throw(open_weights(files, options.weight_type))->fingerprint();
  TransportContext context;
  ClusterClient cluster = or_throw(connect_or_start(context, /*connect=*/"", options));
  const Asker asker(cluster.client, text, flags.max_tokens);
  DraftTableCounts counts(flags.order);
  Answers answers;
  const DraftLength drafts = or_throw(parse_draft_length("auto"));
  std::optional<Progress> progress(std::in_place, "bake-table, questions", static_cast<int>(questions.size()));
  for (const Conversations& question : questions) {
    ask_turns(question, text, [&](const std::string&, const Question& asked) {
      std::vector<TokenId> answer = asker.ask(asked, drafts, answers);
      std::vector<TokenId> all = asked.prompt;
      all.insert(all.end(), answer.begin(), answer.end());
      counts.add(all, asked.prompt.size());
      return answer;
    });
    progress->step();
  }
  progress.reset();
  if (counts.contexts() == 0) throw std::runtime_error("every question is longer than the context");
  const std::string file = counts.file(fingerprint);
  or_throw(replace_text(flags.out, file));
  fmt::print("{} conversations, {} tokens of answers: {} contexts of {} to {} tokens in {} bytes\n", questions.size(),
             answers.tokens, counts.contexts(), kTableOrderMin, flags.order, file.size());
}

}  // namespace

void add_bake_table_command(Command& app) {
  Command* command =
      app.add_subcommand("bake-table", "Write a table of how a model's own answers continue, for --draft-table");
  auto flags = std::make_shared<BakeTableFlags>();
  command->add_option("MODEL", flags->model.model, "A model, or the directory of a pair")->required();
  command
      ->add_option("FILE", flags->files,
                   "Questions whose greedy answers are counted, in the format of MT-bench and Spec-Bench: lines "
                   "{\"category\": \"...\", \"turns\": [\"...\"]}")
      ->required();
  command->add_option("-o,--out", flags->out, "File to write")->required();
  add_number(*command, "--order", flags->order, kTableOrderMin, kTableOrderMax,
             "Length of the longest counted context, in tokens");
  add_number(*command, "--max-tokens", flags->max_tokens, 1, 1 << 20, "Maximum number of tokens per answer");
  ModelFlags::add_dtype(*command, flags->model.dtype);
  add_node_options(*command, flags->cluster.verifier, named({"--threads"}));
  command->callback([flags] { bake_table(*flags); });
}

}  // namespace outrider
