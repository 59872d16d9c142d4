// draft-vocabulary: the most frequent tokens, as the only ones that an assistant drafts.
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "common/model/gemma4/draft_vocabulary.h"
#include "common/model/gemma4/generation_config.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "launch/command_support.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

struct DraftVocabularyFlags {
  std::vector<fs::path> files;
  fs::path model, out = kDraftVocabularyFile;
};

void make_draft_vocabulary(const DraftVocabularyFlags& flags) {
  const ModelFiles files = open_model(or_throw(pair_paths(flags.model)).backbone);
  const Tokenizer tokenizer = or_throw(Tokenizer::load(files));
  std::map<TokenId, std::int64_t> counts;
  std::int64_t total = 0;
  for (const fs::path& file : flags.files) {
    const std::vector<TokenId> text = tokenizer.encode(or_throw(read_text(file)));
    for (const TokenId id : text) ++counts[id];
    total += std::ssize(text);
  }
  if (total == 0) throw std::runtime_error("the texts are empty");
  // Every answer ends with one of these, which come first. Among equally frequent tokens the lowest comes first.
  const std::vector<TokenId> ends = or_throw(load_generation_config(files)).eos_token_ids;
  for (const TokenId id : ends)
    if (id < tokenizer.vocab_size()) counts.try_emplace(id, 0);
  std::vector<TokenId> ids;
  for (const auto& [id, count] : counts) ids.push_back(id);
  std::ranges::stable_sort(ids, std::greater<>(), [&](TokenId id) {
    return std::pair(std::ranges::find(ends, id) != ends.end(), counts.at(id));
  });
  std::string lines;
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    lines += fmt::format("{}\n", ids[i]);
    covered += counts.at(ids[i]);
    if ((i + 1) % 1024 == 0 || i + 1 == ids.size())
      fmt::print("{} tokens: {:.4f} of the texts\n", i + 1, static_cast<double>(covered) / static_cast<double>(total));
  }
  or_throw(replace_text(flags.out, lines));
}

}  // namespace

void add_draft_vocabulary_command(Command& app) {
  Command* command = app.add_subcommand(
      "draft-vocabulary", "Write the most frequent tokens of texts, one per line, for a drafter's --draft-vocabulary");
  auto flags = std::make_shared<DraftVocabularyFlags>();
  command->add_option("FILE", flags->files, "Text files; control tokens in them are recognised")->required();
  command->add_option("--model", flags->model, "Directory of a pair, for its tokenizer (default: the nano pair)");
  command->add_option("-o,--out", flags->out, "File to write")->capture_default_str();
  command->callback([flags] { make_draft_vocabulary(*flags); });
}

}  // namespace outrider
