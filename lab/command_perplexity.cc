// perplexity: the cost of a type's or a file's rounding, on text, relative to the same model in f32 or another file.
#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "common/compute/kernels/ops.h"
#include "common/compute/kernels/team.h"
#include "common/model/gemma4/backbone.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/files.h"
#include "common/os/logging.h"
#include "common/os/progress.h"
#include "lab/divergence.h"
#include "lab/in_process_pair.h"
#include "lab/reporting.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

/// Only the second half of a window counts, as in llama.cpp, so that each token has some text before it.
constexpr std::int64_t kFirstCounted = kTextWindow / 2;

Row row_of(const Divergence& found, const std::string& name) {
  return {{"text", name, "text"},
          {"tokens", found.tokens, "tokens"},
          {"base_perplexity", found.base_perplexity(), "PPL of the base", 4},
          {"perplexity", found.perplexity(), "PPL", 4},
          {"percent_above", found.percent_above(), "difference %", 3},
          {"mean_kld", found.mean_kl_divergence(), "mean KLD", 6},
          {"kld_99_9", found.kl_divergence_quantile(0.999), "99.9 % KLD", 5},
          {"rms_delta_p_percent", found.rms_delta_p_percent(), "RMS delta p %", 3},
          {"same_top_percent", found.same_top_percent(), "same top %", 3},
          {"logit_error", found.logit_error(), "logit error", 4}};
}

/// Compares both models on one text, window by window. @param name  the text's
Divergence compare(Backbone& base, Backbone& model, TokenId bos, std::span<const TokenId> text,
                   const std::string& name) {
  const auto vocab = static_cast<std::size_t>(base.config().vocab_size);
  Divergence total;
  const auto windows = text_windows(bos, text);
  if (windows.empty())
    throw CommandError("{}: the text has {} tokens, wanted at least {}", name, text.size(), kTextWindow - 1);
  Progress progress(name + ", windows", static_cast<int>(windows.size()));
  const auto softcapped = [&](std::span<const float> logits, float softcap, std::span<float> out) {
    std::copy_n(logits.data(), vocab, out.data());
    if (softcap > 0) kernels().softcap(out.data(), softcap, static_cast<std::int64_t>(vocab));
  };
  for (const std::vector<TokenId>& window : windows) {
    InProcessPair base_text(base), text_of_model(model);
    std::int64_t begin = 0;
    for (const std::span<const TokenId> chunk : prefill_chunks(std::span(window).first(window.size() - 1))) {
      const std::int64_t end = begin + std::ssize(chunk);
      const std::int64_t rows = std::clamp(end - kFirstCounted, std::int64_t{0}, std::ssize(chunk));
      const Matrix<const float> base_logits = base_text.forward(chunk, rows).logits,
                                logits = text_of_model.forward(chunk, rows).logits;
      std::vector<Divergence> of_rows(static_cast<std::size_t>(rows));
      team_run(rows, 1, [&](std::int64_t from, std::int64_t to) {
        Tensor both(2, static_cast<std::int64_t>(vocab));
        for (std::int64_t r = from; r < to; ++r) {
          softcapped(base_logits[r].span(), base.config().final_logit_softcapping, both.view()[0].span());
          softcapped(logits[r].span(), model.config().final_logit_softcapping, both.view()[1].span());
          of_rows[static_cast<std::size_t>(r)].add(both.view()[0].span(), both.view()[1].span(),
                                                   window[static_cast<std::size_t>(end - rows + r + 1)]);
        }
      });
      for (const Divergence& one : of_rows) total.add(one);
      begin = end;
    }
    progress.step();
  }
  return total;
}

std::string read_file(const fs::path& path) {
  std::string text = or_throw(read_text(path));
  if (text.empty()) throw CommandError("{}: is empty", path.string());
  return text;
}

struct PerplexityFlags {
  std::vector<fs::path> files;
  ModelFlags model;
  fs::path base;
  std::string base_dtype = "f32";
  double within = 0;
  ReportFlags report;
};

/// @return a row per text, and one for all
Row report_of(const PerplexityFlags& flags, Divergence& all, std::vector<Row>& rows) {
  const PairPaths paths{or_throw(pair_paths(flags.model.model)).backbone, {}};
  const ModelFiles files = open_model(paths.backbone);
  const ModelFiles base_files = flags.base.empty() ? files : open_model(or_throw(pair_paths(flags.base)).backbone);
  const Tokenizer tokenizer = or_throw(Tokenizer::load(files));
  if (!flags.base.empty() && or_throw(Tokenizer::load(base_files)).fingerprint() != tokenizer.fingerprint())
    throw CommandError("{}: its tokenizer differs from that of {}", flags.base.string(), tokenizer.name());
  const auto load = [](const ModelFiles& of, WeightType type) { return or_throw(Backbone::load(of, type, kRowsMax)); };
  const std::unique_ptr<Backbone> base = load(base_files, or_throw(parse_weight_type(flags.base_dtype))),
                                  model = load(files, flags.model.type_to_load(paths));
  for (const Backbone* one : {base.get(), model.get()}) {
    if (tokenizer.vocab_size() > one->config().vocab_size || one->config().vocab_size != base->config().vocab_size) {
      throw CommandError("{}: a tokenizer of {} tokens, the model has {}", tokenizer.name(), tokenizer.vocab_size(),
                         one->config().vocab_size);
    }
  }
  const std::optional<TokenId> bos = tokenizer.find("<bos>");
  if (!bos) throw CommandError("{}: no token <bos>", tokenizer.name());
  for (const fs::path& file : flags.files) {
    const std::string name = file.filename().string();
    const Divergence found = compare(*base, *model, *bos, tokenizer.encode(read_file(file)), name);
    rows.push_back(row_of(found, name));
    all.add(found);
  }
  if (flags.files.size() > 1) rows.push_back(row_of(all, "all"));
  // Only the matrices that a token reads; the base's have 32 bits a weight, or 16.
  const auto bytes = static_cast<double>(model->weight_bytes());
  const double base_bits = flags.base_dtype == "f32" ? 32 : 16;
  return {{"type", to_string(model->weights().type())},
          {"base_type", flags.base_dtype},
          {"bits_per_weight", base_bits * bytes / static_cast<double>(base->weight_bytes())},
          {"weight_bytes_per_token", model->weight_bytes()},
          {"texts", rows}};
}

void perplexity(const PerplexityFlags& flags) {
  init_logging("outrider", "warn");
  Divergence all;
  std::vector<Row> rows;
  const Row report = report_of(flags, all, rows);
  write_report(flags.report, report, table(rows) + key_lines(report));
  if (flags.within > 0 && !(all.percent_above() <= flags.within)) {
    throw CommandError("perplexity is {:.3f} % above that of {}, wanted at most {} %", all.percent_above(),
                       flags.base_dtype, flags.within);
  }
}

}  // namespace

void add_perplexity_command(Command& app) {
  Command* command = app.add_subcommand(
      "perplexity",
      "Measure the loss of a weight type on text: perplexity, KL divergence and equal top tokens against f32");
  auto flags = std::make_shared<PerplexityFlags>();
  command->add_option("FILE", flags->files, "Text files; control tokens in them are recognised")->required();
  command->add_option("--model", flags->model.model,
                      "A Hugging Face directory or a .gguf file, or the directory of a pair; not packed (default: the "
                      "nano pair)");
  ModelFlags::add_dtype(*command, flags->model.dtype);
  command->add_option("--base", flags->base, "Model to compare with (default: the same)");
  command->add_option("--base-dtype", flags->base_dtype, "Weight type of the base: f32 or bf16")
      ->check(CLI::IsMember(std::vector<std::string>{"f32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--within", flags->within,
                   "Fail if the perplexity of all texts exceeds the base's by more than this percentage")
      ->check(CLI::PositiveNumber);
  flags->report.add_to(*command);
  command->callback([flags] { perplexity(*flags); });
}

}  // namespace outrider
