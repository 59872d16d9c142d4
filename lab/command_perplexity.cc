// perplexity: what the rounding of a type costs, on text, against the same model in f32.
#include <cmath>
#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "common/base/files.h"
#include "common/kernels/ops.h"
#include "common/kernels/team.h"
#include "common/logging/logging.h"
#include "common/model/backbone.h"
#include "common/tokenizer/tokenizer.h"
#include "lab/in_process_pair.h"
#include "lab/reporting.h"
#include "launch/command_support.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

/// Sums over the predicted tokens of one text.
struct Sums {
  std::int64_t tokens = 0, same_argmax = 0;
  double surprise = 0, exact_surprise = 0;  ///< -log p of the token that follows, of the type and of f32
  double squared_error = 0,
         squared_size = 0;  ///< of f32's logits: the type's difference, and themselves around their mean

  void add(const Sums& other) {
    tokens += other.tokens, same_argmax += other.same_argmax;
    surprise += other.surprise, exact_surprise += other.exact_surprise;
    squared_error += other.squared_error, squared_size += other.squared_size;
  }
  double perplexity() const { return std::exp(surprise / static_cast<double>(tokens)); }
  double exact_perplexity() const { return std::exp(exact_surprise / static_cast<double>(tokens)); }
  double percent_above() const { return 100 * (perplexity() / exact_perplexity() - 1); }

  Row row(const std::string& name, const std::string& type) const {
    return {{"", name, "text"},
            {"", tokens, "tokens"},
            {"", exact_perplexity(), "f32", 4},
            {"", perplexity(), type.c_str(), 4},
            {"", percent_above(), "difference %", 3},
            {"", std::sqrt(squared_error / squared_size), "logit error", 4},
            {"", static_cast<double>(same_argmax) / static_cast<double>(tokens), "same argmax", 4}};
  }
};

double surprise_of(std::span<const float> logits, TokenId token) {
  const float largest = logits[static_cast<std::size_t>(argmax(logits))];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  return std::log(sum) + largest - logits[static_cast<std::size_t>(token)];
}

/// What row r of both models says about the token that follows it. Softcapped logits.
Sums compare_row(std::span<const float> exact, std::span<const float> rounded, TokenId next) {
  Sums sums{.tokens = 1,
            .same_argmax = argmax(exact) == argmax(rounded) ? 1 : 0,
            .surprise = surprise_of(rounded, next),
            .exact_surprise = surprise_of(exact, next)};
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double x = exact[i], error = rounded[i] - exact[i];
    sum += x, squares += x * x, sums.squared_error += error * error;
  }
  sums.squared_size = squares - sum * sum / static_cast<double>(exact.size());
  return sums;
}

/// Both models over one text, window by window.
Sums compare(Backbone& exact, Backbone& rounded, TokenId bos, std::span<const TokenId> text) {
  const float softcap = exact.config().final_logit_softcapping;
  const auto vocab = static_cast<std::size_t>(exact.config().vocab_size);
  Sums total;
  for (const std::vector<TokenId>& window : text_windows(bos, text)) {
    InProcessPair exact_text(exact), rounded_text(rounded);
    for (const std::span<const TokenId> chunk : prefill_chunks(std::span(window).first(window.size() - 1))) {
      const auto rows = std::ssize(chunk);
      const Matrix<const float> exact_logits = exact_text.forward(chunk, rows).logits,
                                rounded_logits = rounded_text.forward(chunk, rows).logits;
      std::vector<Sums> row_sums(chunk.size());
      team_run(rows, 1, [&](std::int64_t begin, std::int64_t end) {
        Tensor both(2, static_cast<std::int64_t>(vocab));
        for (std::int64_t r = begin; r < end; ++r) {
          std::copy_n(exact_logits[r].data(), vocab, both.view()[0].data());
          std::copy_n(rounded_logits[r].data(), vocab, both.view()[1].data());
          for (const int i : {0, 1}) {
            if (softcap > 0) kernels().softcap(both.view()[i].data(), softcap, static_cast<std::int64_t>(vocab));
          }
          // The token after a chunk's last one is the window's next.
          row_sums[static_cast<std::size_t>(r)] =
              compare_row(both.view()[0].span(), both.view()[1].span(), chunk.data()[r + 1]);
        }
      });
      for (const Sums& sums : row_sums) total.add(sums);
    }
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
  fs::path model;
  std::string dtype = "int8";
  double within = 0;
};

void perplexity(const PerplexityFlags& flags) {
  init_logging("outrider", "warn");
  const ModelFiles files = open_model(or_throw(pair_paths(flags.model)).backbone);
  const Tokenizer tokenizer = or_throw(Tokenizer::load(files));
  const std::unique_ptr<Backbone> exact = or_throw(Backbone::load(files, WeightType::kF32, kPrefillChunk));
  const std::unique_ptr<Backbone> rounded =
      or_throw(Backbone::load(files, or_throw(parse_weight_type(flags.dtype)), kPrefillChunk));
  if (tokenizer.vocab_size() > exact->config().vocab_size) {
    throw CommandError("{}: a tokenizer of {} tokens, the model has {}", tokenizer.name(), tokenizer.vocab_size(),
                       exact->config().vocab_size);
  }
  const std::optional<TokenId> bos = tokenizer.find("<bos>");
  if (!bos) throw CommandError("{}: no token <bos>", tokenizer.name());
  Sums all;
  std::vector<Row> rows;
  for (const fs::path& file : flags.files) {
    const Sums sums = compare(*exact, *rounded, *bos, tokenizer.encode(read_file(file)));
    rows.push_back(sums.row(file.filename().string(), flags.dtype));
    all.add(sums);
  }
  if (flags.files.size() > 1) rows.push_back(all.row("all", flags.dtype));
  std::fputs(table(rows).c_str(), stdout);
  if (flags.within > 0 && !(all.percent_above() <= flags.within)) {
    throw CommandError("perplexity of {} is {:.3f} % above that of f32, wanted at most {} %", flags.dtype,
                       all.percent_above(), flags.within);
  }
}

}  // namespace

void add_perplexity_command(Command& app) {
  Command* command = app.add_subcommand(
      "perplexity", "What a type's rounding costs on text, against f32: perplexity, logits, most probable tokens");
  auto flags = std::make_shared<PerplexityFlags>();
  command->add_option("FILE", flags->files, "Texts; control tokens are recognised")->required();
  command->add_option("--model", flags->model, "Directory of a pair, not packed (default: the nano pair)");
  ModelFlags::add_dtype(*command, flags->dtype);
  command
      ->add_option("--within", flags->within, "Fail if the perplexity of all texts is more percent above that of f32")
      ->check(CLI::PositiveNumber);
  command->callback([flags] { perplexity(*flags); });
}

}  // namespace outrider
