#include "common/model/gemma4/draft_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/text.h"

namespace outrider {

DraftVocabulary::DraftVocabulary(std::int64_t size, std::int64_t vocab_size)
    : size_(size), last_use_(static_cast<std::size_t>(vocab_size)), chosen_(last_use_.size()) {
  CHECK(size >= 1 && size <= vocab_size, "{} of {} tokens", size, vocab_size);
  for (std::size_t id = 0; id < last_use_.size(); ++id) last_use_[id] = -1 - static_cast<std::int64_t>(id);
  select();
}

void DraftVocabulary::learn(std::span<const TokenId> tokens, bool answer) {
  static const double kKept = std::exp2(-1 / kHalfLife);
  for (const TokenId token : tokens) {
    const auto id = static_cast<std::size_t>(token);
    const bool missed = !chosen_[id];
    stale_ |= missed;
    last_use_[id] = ++clock_;
    if (answer) missed_ = kKept * missed_ + (missed ? 1 - kKept : 0);
  }
  // Prompts of any length are added at once, with the first tokens of their answer.
  if (answer && stale_ && clock_ >= selected_at_ + kRenewal) select();
}

void DraftVocabulary::select() {
  std::vector<TokenId> all(last_use_.size());
  std::iota(all.begin(), all.end(), 0);
  std::ranges::nth_element(all, all.begin() + (size_ - 1), std::greater<>(),
                           [&](TokenId id) { return last_use_[static_cast<std::size_t>(id)]; });
  ids_.assign(all.begin(), all.begin() + size_);
  std::ranges::sort(ids_);
  chosen_.assign(chosen_.size(), false);
  for (const TokenId id : ids_) chosen_[static_cast<std::size_t>(id)] = true;
  ++version_;
  selected_at_ = clock_;
  stale_ = false;
}

std::string DraftVocabulary::to_text() {
  if (stale_) select();
  return fmt::format("{}\n{}\n", missed_, fmt::join(ids_, "\n"));
}

Result<void> DraftVocabulary::restore(std::string_view text) {
  const std::vector<std::string> lines = lines_of(text);
  const auto missed = to_number<double>(lines.empty() ? "" : lines[0]);
  if (!missed || !(*missed >= 0 && *missed <= 1))
    return Error(Errc::kMalformed, "line 1 is '{}', wanted a share", lines.empty() ? "" : lines[0].substr(0, 40));
  std::vector<TokenId> tokens;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto id = to_number<TokenId>(lines[i]);
    if (!id || *id < 0 || *id >= std::ssize(last_use_)) {
      return Error(Errc::kMalformed, "line {} is '{}', wanted a token below {}", i + 1, lines[i].substr(0, 40),
                   last_use_.size());
    }
    tokens.push_back(*id);
  }
  std::ranges::reverse(tokens);  // the lowest ids count as used last, as at the start
  learn(tokens, /*answer=*/false);
  missed_ = *missed;
  select();
  return {};
}

}  // namespace outrider
