#include "common/model/gemma4/draft_vocabulary.h"

#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/os/files.h"

namespace outrider {

Result<std::vector<TokenId>> draft_vocabulary(const std::string& wanted, const std::filesystem::path& assistant,
                                              std::int64_t vocab_size) {
  if (wanted == "all") return std::vector<TokenId>();
  const std::optional<std::int64_t> most = to_number<std::int64_t>(wanted);
  if (most && (*most < 1 || *most > vocab_size)) {
    return Error(Errc::kOutOfRange, "draft vocabulary of {} tokens, wanted 1 to {}, a file, or all", *most, vocab_size);
  }
  const std::filesystem::path folder = is_directory(assistant) ? assistant : assistant.parent_path();
  const std::filesystem::path file = most ? folder / kDraftVocabularyFile : std::filesystem::path(wanted);
  const Result<std::string> text = read_text(file);
  if (!text) {
    return Error(text.error().code, "{} (`outrider draft-vocabulary` makes a draft vocabulary of texts)",
                 text.error().message);
  }
  std::vector<TokenId> ids;
  std::unordered_set<TokenId> seen;
  for (const std::string& line : lines_of(*text)) {
    if (most && std::ssize(ids) == *most) break;
    const std::optional<std::int64_t> id = to_number<std::int64_t>(line);
    if (!id || *id < 0 || *id >= vocab_size || !seen.insert(static_cast<TokenId>(*id)).second) {
      return file_error(Errc::kMalformed, file, "line {} is '{}', wanted an id below {} that is there once",
                        ids.size() + 1, line.substr(0, 40), vocab_size);
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  if (ids.empty() || (most && std::ssize(ids) < *most))
    return file_error(Errc::kMalformed, file, "{} ids, wanted {} or more", ids.size(), most.value_or(1));
  return ids;
}

}  // namespace outrider
