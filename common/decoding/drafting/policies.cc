#include "common/decoding/drafting/policies.h"

#include <string_view>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/decoding/drafting/goodput.h"
#include "common/decoding/drafting/governor.h"
#include "common/decoding/drafting/tree_shape.h"

namespace outrider {
namespace {

/// @return none unless `text` is 0 to `most` in digits
std::optional<int> parse_number(std::string_view text, int most) {
  const auto number = to_number<int>(text);
  return number && *number >= 0 && *number <= most ? number : std::nullopt;
}

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
    case DraftPolicy::kAuto: return make_auto_policy(estimates, batch);
    case DraftPolicy::kHeuristic:
    case DraftPolicy::kUcb1:
    case DraftPolicy::kThompson: break;
  }
  CHECK(false, "draft policy {}", static_cast<int>(policy));
}

}  // namespace outrider
