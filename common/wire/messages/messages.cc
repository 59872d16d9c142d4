#include "common/wire/messages/messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace outrider {
namespace {

Result<void> check_logprobs(const std::vector<TokenLogprobs>& logprobs, std::size_t tokens) {
  if (logprobs.empty() || logprobs.size() == tokens) return {};
  return Error(Errc::kMalformed, "{} logprobs for {} tokens, wanted as many or none", logprobs.size(), tokens);
}

}  // namespace

Result<void> KvRows::settle() const {
  if (from > to) return Error(Errc::kMalformed, "from is {}, wanted at most its to, {}", from, to);
  if (empty() ? !donors.empty() || !tokens.empty() : donors.empty() && tokens.empty()) {
    return Error(Errc::kMalformed, "[{}, {}) has {} donors and {} tokens, wanted {}", from, to, donors.size(),
                 tokens.size(), empty() ? "none" : "either or both");
  }
  if (!tokens.empty() && std::ssize(tokens) != to - from)
    return Error(Errc::kMalformed, "[{}, {}) has {} tokens, wanted {}", from, to, tokens.size(), to - from);
  for (const auto& [first, key, value] : donors) {
    if (first < from || first > to)
      return Error(Errc::kMalformed, "donor's first is {}, wanted {} to {}", first, from, to);
    if (key.shape != value.shape || key.dtype != value.dtype) {
      return Error(Errc::kMalformed, "key is {} [{}], value is {} [{}], wanted the same", to_string(key.dtype),
                   fmt::join(key.shape, ", "), to_string(value.dtype), fmt::join(value.shape, ", "));
    }
    if (key.shape[0] != to - first)
      return Error(Errc::kMalformed, "donor has {} rows from {} on, wanted them to end at {}", key.shape[0], first, to);
  }
  return {};
}

Result<void> Verdict::settle() const { return check_logprobs(logprobs, static_cast<std::size_t>(accepted) + 1); }

Result<void> Tokens::settle() const { return check_logprobs(logprobs, tokens.size()); }

Result<void> RoundReport::settle() {
  outcome.drafted = static_cast<int>(drafts.size());
  if (outcome.accepted <= outcome.drafted) return {};
  return Error(Errc::kMalformed, "accepted is {}, wanted 0 to {}", outcome.accepted, outcome.drafted);
}

Result<void> RequestMetrics::settle() const {
  if (drafted_per_position.size() == accepted_per_position.size()) return {};
  return Error(Errc::kMalformed,
               "drafted_per_position and accepted_per_position have {} and {} entries, wanted as many",
               drafted_per_position.size(), accepted_per_position.size());
}

namespace {

struct Parts {
  std::vector<std::int64_t*> numbers;
  std::vector<std::vector<std::int64_t>*> lists;
  void operator()(const char*, std::int64_t& number, auto&&...) { numbers.push_back(&number); }
  void operator()(const char*, std::vector<std::int64_t>& list, auto&&...) { lists.push_back(&list); }
};

}  // namespace

void add(RequestMetrics& sum, const RequestMetrics& one) {
  RequestMetrics summand = one;
  Parts to, from;
  RequestMetrics::fields(to, sum);
  RequestMetrics::fields(from, summand);
  for (std::size_t i = 0; i < to.numbers.size(); ++i) *to.numbers[i] += *from.numbers[i];
  for (std::size_t i = 0; i < to.lists.size(); ++i) {
    to.lists[i]->resize(std::max(to.lists[i]->size(), from.lists[i]->size()));
    for (std::size_t j = 0; j < from.lists[i]->size(); ++j) (*to.lists[i])[j] += (*from.lists[i])[j];
  }
}

}  // namespace outrider
