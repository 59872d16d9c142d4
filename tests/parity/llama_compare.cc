// How near each rounding is to the exact result, beside llama.cpp on the same GGUF file: nano's weights, teacher-forced
// on a text. Exact is our f32 of that file. Built only where llama.cpp's source is.
//
// llama.cpp lets shared layers read K/V of the last two layers that have their own, which nano's do not all do. So the
// file is of nano with six shared layers instead of four: two layers read other K/V than they were trained with.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <llama.h>
#include <nlohmann/json.hpp>

#include "common/compute/kernels/ops.h"
#include "common/model/gemma4/backbone.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/files.h"
#include "lab/in_process_pair.h"
#include "lab/reporting.h"
#include "launch/command_line.h"
#include "launch/model_flags.h"
#include "tests/support/gguf_writer.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kBest = 5;

struct CompareFlags {
  fs::path text;
  std::string type = "Q8_0", theirs;
  std::size_t tokens = 10000;
  int threads = 2;
};

const std::map<std::string, DType> kFileTypes = {
    {"F32", DType::kF32}, {"BF16", DType::kBf16}, {"Q8_0", DType::kQ8_0}, {"Q4_0", DType::kQ4_0}};
const std::vector<std::string> kDTypes = {"bf16", "int8", "int4", "q4"};

/// nano's backbone with six shared layers as one GGUF file in `folder`.
fs::path write_file(const fs::path& nano, const fs::path& folder, DType type) {
  const fs::path model = folder / "nano-6-shared";
  fs::create_directories(model);
  for (const fs::directory_entry& entry : fs::directory_iterator(nano)) {
    const fs::path link = model / entry.path().filename();
    fs::remove(link);
    fs::create_symlink(fs::absolute(entry.path()), link);
  }
  json config = json::parse(std::ifstream(nano / "config.json"));
  config["text_config"]["num_kv_shared_layers"] = 6;
  fs::remove(model / "config.json");
  std::ofstream(model / "config.json") << config.dump(1);
  return write_gguf(model, folder / fmt::format("nano-{}.gguf", to_string(type)), {.type = type});
}

/// log p of all tokens of one row, from logits that are softcapped already.
std::vector<double> log_probabilities(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  std::vector<double> all(logits.begin(), logits.end());
  for (double& x : all) x -= largest + std::log(sum);
  return all;
}

/// An engine's differences from the exact rows, summed.
struct Sums {
  double best = 0, divergence = 0, surprise = 0, error = 0, size = 0;
  std::int64_t rows = 0, same = 0;

  void add(std::span<const float> exact, std::span<const float> logits, TokenId next) {
    const std::vector<double> p = log_probabilities(exact), q = log_probabilities(logits);
    std::vector<std::size_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::partial_sort(order, order.begin() + kBest, std::greater<>(), [&](std::size_t i) { return p[i]; });
    for (std::size_t i = 0; i < kBest; ++i) best += std::abs(q[order[i]] - p[order[i]]) / kBest;
    const double mean = std::accumulate(exact.begin(), exact.end(), 0.0) / static_cast<double>(exact.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      divergence += std::exp(p[i]) * (p[i] - q[i]);
      error += std::pow(static_cast<double>(logits[i]) - exact[i], 2), size += std::pow(exact[i] - mean, 2);
    }
    surprise -= q[static_cast<std::size_t>(next)];
    same += order[0] == static_cast<std::size_t>(argmax(logits)) ? 1 : 0;
    ++rows;
  }
  Row row(const std::string& name) const {
    const auto n = static_cast<double>(rows);
    return {{"", name, "engine"},
            {"", rows, "tokens"},
            {"", best / n, "five best differ by", 4},
            {"", std::sqrt(error / size), "logit error", 4},
            {"", divergence / n, "KL divergence", 5},
            {"", static_cast<double>(same) / n, "same argmax", 4},
            {"", std::exp(surprise / n), "perplexity", 4}};
  }
};

/// All rows' softcapped logits [rows x vocab_size] of one window.
using Logits = std::vector<float>;

Logits our_logits(Backbone& model, std::span<const TokenId> window) {
  const std::int64_t vocab = model.config().vocab_size;
  Logits all;
  InProcessPair text(model);
  for (const std::span<const TokenId> chunk : prefill_chunks(window)) {
    const Matrix<const float> logits = text.forward(chunk, std::ssize(chunk)).logits;
    for (std::int64_t r = 0; r < std::ssize(chunk); ++r)
      all.insert(all.end(), logits[r].data(), logits[r].data() + vocab);
  }
  if (const float softcap = model.config().final_logit_softcapping; softcap > 0) {
    kernels().softcap(all.data(), softcap, std::ssize(all));
  }
  return all;
}

class LlamaCpp {
 public:
  LlamaCpp(const fs::path& file, int threads) {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    model_.reset(llama_model_load_from_file(file.c_str(), llama_model_default_params()));
    if (!model_) throw std::runtime_error(fmt::format("{}: llama.cpp cannot load it", file.string()));
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = kTextWindow;
    params.n_threads = params.n_threads_batch = threads;
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) throw std::runtime_error("llama.cpp makes no context");
  }

  Logits logits(std::span<const TokenId> window, std::int64_t vocab) {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(window.size()), 0, 1);
    for (std::size_t i = 0; i < window.size(); ++i) {
      batch.token[i] = window[i], batch.pos[i] = static_cast<llama_pos>(i), batch.logits[i] = 1;
      batch.n_seq_id[i] = 1, batch.seq_id[i][0] = 0;
    }
    batch.n_tokens = static_cast<std::int32_t>(window.size());
    const int rc = llama_decode(context_.get(), batch);
    llama_batch_free(batch);
    if (rc != 0) throw std::runtime_error(fmt::format("llama_decode: {}", rc));
    const float* first = llama_get_logits(context_.get());
    return {first, first + std::ssize(window) * vocab};
  }

 private:
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
  };
  std::unique_ptr<llama_model, Free> model_;
  std::unique_ptr<llama_context, Free> context_;
};

void compare_engines(const CompareFlags& flags) {
  const auto write = [](const std::string& type) {
    return write_file(or_throw(pair_paths({})).backbone, fs::temp_directory_path() / "llama_compare",
                      kFileTypes.at(type));
  };
  const fs::path file = write(flags.type);
  const ModelFiles files = open_model(file);
  const Tokenizer tokenizer = or_throw(Tokenizer::load(files));
  std::vector<TokenId> text = tokenizer.encode(or_throw(read_text(flags.text)));
  text.resize(std::min(text.size(), flags.tokens));
  const auto load = [&](WeightType type) { return or_throw(Backbone::load(files, type, kRowsMax)); };
  const std::unique_ptr<Backbone> exact = load(WeightType::kF32);
  const std::int64_t vocab = exact->config().vocab_size;
  std::vector<std::unique_ptr<Backbone>> ours;
  for (const std::string& name : kDTypes) ours.push_back(load(or_throw(parse_weight_type(name))));
  LlamaCpp theirs(flags.theirs.empty() ? file : write(flags.theirs), flags.threads);

  std::vector<Sums> sums(ours.size() + 1);
  for (const std::vector<TokenId>& window : text_windows(*tokenizer.find("<bos>"), text)) {
    const std::span<const TokenId> rows = std::span(window).first(window.size() - 1);
    const Logits wanted = our_logits(*exact, rows);
    for (std::size_t e = 0; e < sums.size(); ++e) {
      const Logits found = e < ours.size() ? our_logits(*ours[e], rows) : theirs.logits(rows, vocab);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto row_of = [&](const Logits& all) {
          return std::span(all).subspan(r * static_cast<std::size_t>(vocab), static_cast<std::size_t>(vocab));
        };
        sums[e].add(row_of(wanted), row_of(found), window[r + 1]);
      }
    }
  }
  std::vector<Row> table_rows;
  for (std::size_t e = 0; e < sums.size(); ++e) {
    table_rows.push_back(sums[e].row(e < ours.size() ? kDTypes[e] : "llama.cpp"));
  }
  std::fputs(table(table_rows).c_str(), stdout);
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  CLI::App app("How near roundings are to f32, beside llama.cpp on the same GGUF file", "llama_compare");
  outrider::CompareFlags flags;
  app.add_option("TEXT", flags.text, "What both read")->required();
  app.add_option("--type", flags.type, "Of the file's matrices")
      ->check(CLI::IsMember(std::vector<std::string>{"F32", "BF16", "Q8_0", "Q4_0"}))
      ->capture_default_str();
  app.add_option("--theirs", flags.theirs, "Of a file for llama.cpp alone (default: the same file)")
      ->check(CLI::IsMember(std::vector<std::string>{"F32", "BF16", "Q8_0", "Q4_0"}));
  app.add_option("--tokens", flags.tokens, "Of the text")->capture_default_str();
  outrider::add_number(app, "--threads", flags.threads, 1, 1024, "llama.cpp's");
  app.callback([&] { outrider::compare_engines(flags); });
  return outrider::run_command_line(app, argc, argv);
}
