#include "common/policy/policies.h"

#include <charconv>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/names.h"
#include "common/policy/governor.h"
#include "common/policy/tree_shape.h"

namespace outrider {
namespace {

/// A session's way to what UCB1 knows.
class SharedUcb1 : public DraftLengthPolicy {
 public:
  explicit SharedUcb1(Ucb1Length& shared) : shared_(shared) {}
  DraftChoice choose(const DraftLimits& limits) override { return shared_.choose(limits); }
  void observe(const RoundOutcome& outcome) override { shared_.observe(outcome); }

 private:
  Ucb1Length& shared_;
};

/// @return none unless it is 0 to `most` in digits.
std::optional<int> parse_number(std::string_view text, int most) {
  int number = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end && number >= 0 && number <= most ? std::optional(number) : std::nullopt;
}

constexpr DraftPolicy kChoosing[] = {DraftPolicy::kAuto, DraftPolicy::kHeuristic, DraftPolicy::kUcb1,
                                     DraftPolicy::kThompson};

}  // namespace

std::string choosing_policies() { return names_of(kChoosing); }

Result<DraftLength> parse_draft_length(const std::string& text) {
  const std::string_view all = text, name = all.substr(0, all.find_first_of("@+"));
  DraftLength wanted;
  bool known = false;
  for (const DraftPolicy policy : kChoosing) {
    if (name != to_string(policy)) continue;
    wanted = {.policy = policy, .length = kChosenLengthMax};
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
    const std::string_view said = !wanted.added.table ? "+ngram" : wanted.added.ngram ? "+ngram+table" : "+table";
    const bool takes_them = wanted.policy == DraftPolicy::kFixed || wanted.policy == DraftPolicy::kTree;
    known = known && rest == said && takes_them && wanted.length > 0;
  }
  if (known) return wanted;
  return Error(Errc::kInvalidArgument,
               "draft length '{}', wanted 0 to {}, tree:1 to tree:{}, {}, then perhaps +ngram, +table or "
               "+ngram+table behind a number or a tree, or @0 to @{}, but for trees",
               text.substr(0, 40), kDraftLengthMax, kDraftLengthMax, choosing_policies(), kDraftAheadMax);
}

Policies::Policies(std::uint64_t seed, bool table) : ucb1_(default_arms(table)), thompson_(default_arms(table), seed) {}

std::unique_ptr<DraftLengthPolicy> Policies::make(DraftPolicy policy, int length, const CostModel& costs,
                                                  BatchGoodput& batch, bool governed) {
  switch (policy) {
    case DraftPolicy::kFixed: {
      auto fixed = std::make_unique<FixedLength>(length);
      if (!governed || length == 0) return fixed;
      return std::make_unique<Governor>(std::move(fixed), costs, batch);
    }
    case DraftPolicy::kTree: return std::make_unique<TreeShape>(length, costs);
    case DraftPolicy::kAuto: return make_auto_policy(costs, batch);
    case DraftPolicy::kHeuristic: return std::make_unique<HeuristicLength>();
    case DraftPolicy::kUcb1: return std::make_unique<SharedUcb1>(ucb1_);
    case DraftPolicy::kThompson: return std::make_unique<ThompsonLength>(thompson_, costs);
  }
  CHECK(false, "draft policy {}", static_cast<int>(policy));
}

std::string Policies::save() const { return fmt::format("[{},\n {}]\n", ucb1_.save(), thompson_.save()); }

Result<void> Policies::load(const std::string& json) {
  // What is written from a tree of brackets is made by recursion: none grows deeper than save()'s.
  constexpr int kDepthMax = 8;
  const nlohmann::json list = nlohmann::json::parse(
      json, [](int depth, auto, auto&) { return depth <= kDepthMax; }, /*allow_exceptions=*/false);
  if (!list.is_array() || list.size() != 2)
    return Error{Errc::kMalformed, "bandit state: not a JSON list of the states of 'ucb1' and 'thompson'"};
  Ucb1Length ucb1 = ucb1_;
  RETURN_IF_ERROR(ucb1.load(list[0].dump()));
  RETURN_IF_ERROR(thompson_.load(list[1].dump()));
  ucb1_ = std::move(ucb1);
  return {};
}

}  // namespace outrider
