#include "common/decoding/drafting/policies.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/decoding/drafting/goodput.h"
#include "common/decoding/drafting/governor.h"

namespace outrider {
namespace {

/// @return none unless `text` is 0 to `most` in digits
std::optional<int> parse_number(std::string_view text, int most) {
  const auto number = to_number<int>(text);
  return number && *number >= 0 && *number <= most ? number : std::nullopt;
}

/// Chooses the size of token trees. The drafter picks the nodes of each tree by its own probabilities; this class sets
/// the least worth of a node: as many tokens as the sequence emits in the time of the node's row and drafting
/// (tree_draft_price_s).
class TreeShape : public DraftLengthPolicy {
 public:
  TreeShape(int most, const Estimates& estimates) : most_(most), estimates_(estimates) {}

  DraftPlan choose(const DraftLimits& limits) override {
    const int most = std::min(most_, limits.assistant);
    // Trees of half the size now and then, so that forward passes of different sizes are seen.
    const bool probe = ++rounds_ % 16 == 0;
    const double rate = seconds_.value() > 0 ? tokens_.value() / seconds_.value() : 0;
    const double price_s = most > 0 ? tree_draft_price_s(estimates_, most) : 0;
    return {.length = probe ? (most + 1) / 2 : most, .tree = true, .worth = std::min(1.0, rate * price_s)};
  }
  void observe(const DraftPlan& /*plan*/, const RoundOutcome& outcome) override {
    tokens_.observe(outcome.accepted + 1);
    seconds_.observe(outcome.round_s);
  }

 private:
  int most_;  ///< nodes of a tree
  const Estimates& estimates_;
  std::int64_t rounds_ = 0;
  FadingMean tokens_{keeps::kTreeRate}, seconds_{keeps::kTreeRate};
};

}  // namespace

Result<DraftLength> parse_draft_length(const std::string& text) {
  const std::string_view all = text, name = all.substr(0, all.find_first_of("@+"));
  DraftLength wanted;
  bool known = false;
  if (name == to_string(DraftPolicy::kAuto)) {
    wanted = {.policy = DraftPolicy::kAuto, .length = kChosenLengthMax};
    known = true;
  }
  if (const auto length = parse_number(name, kDraftLengthMax)) {
    wanted.length = *length;
    known = true;
  }
  constexpr std::string_view kTree = "tree:";
  if (name.starts_with(kTree)) {
    const auto drafts = parse_number(name.substr(kTree.size()), kDraftLengthMax);
    wanted = {.policy = DraftPolicy::kTree, .length = drafts.value_or(0)};
    known = wanted.length > 0;
  }
  const std::string_view rest = all.substr(name.size());
  if (rest.starts_with('@')) {
    wanted.ahead = parse_number(rest.substr(1), kDraftAheadMax);
    known = known && wanted.ahead && wanted.policy != DraftPolicy::kTree;
  } else if (rest.starts_with('+')) {
    wanted.added = {.ngram = rest.starts_with("+ngram"), .table = rest.ends_with("+table")};
    const std::string_view suffix = !wanted.added.table ? "+ngram" : wanted.added.ngram ? "+ngram+table" : "+table";
    const bool takes_them = wanted.policy == DraftPolicy::kFixed || wanted.policy == DraftPolicy::kTree;
    known = known && rest == suffix && takes_them && wanted.length > 0;
  }
  if (known) return wanted;
  return Error(Errc::kInvalidArgument, "draft length '{}', wanted auto, 0 to {} or tree:1 to tree:{}",
               text.substr(0, 40), kDraftLengthMax, kDraftLengthMax);
}

std::unique_ptr<DraftLengthPolicy> make_policy(DraftPolicy policy, int length, const Estimates& estimates,
                                               BatchGoodput& batch, bool governed) {
  switch (policy) {
    case DraftPolicy::kFixed: {
      auto fixed = std::make_unique<FixedLength>(length);
      if (!governed || length == 0) return fixed;
      return std::make_unique<Governor>(std::move(fixed), estimates, batch);
    }
    case DraftPolicy::kTree: return std::make_unique<TreeShape>(length, estimates);
    case DraftPolicy::kAuto:
      return std::make_unique<Governor>(std::make_unique<GoodputLength>(estimates, batch), estimates, batch);
  }
  CHECK(false, "draft policy {}", static_cast<int>(policy));
}

}  // namespace outrider
