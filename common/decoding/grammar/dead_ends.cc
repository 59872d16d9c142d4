#include "common/decoding/grammar/dead_ends.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/decoding/grammar/pattern.h"

namespace outrider {
namespace {

/// XGrammar's kinds of expressions (its GrammarExprType) that occur here.
enum Expression : std::int32_t {
  kClass = 1,
  kEmpty = 3,
  kRule = 4,
  kSequence = 5,
  kChoices = 6,
  kRepeat = 8,
  kRegex = 12
};

bool class_has_characters(std::span<const std::int32_t> data) {
  CharRanges ranges;
  for (std::size_t i = 1; i + 1 < data.size(); i += 2)
    ranges.emplace_back(static_cast<std::uint32_t>(data[i]), static_cast<std::uint32_t>(data[i + 1]));
  return data[0] != 0 ? !all_but(std::move(ranges)).empty() : !ranges.empty();
}

bool regex_has_texts(std::span<const std::int32_t> data) {
  std::string text;
  for (const std::int32_t byte : data.subspan(1)) text += static_cast<char>(byte);
  const Result<Pattern> pattern = read_pattern(text);
  return !pattern || !pattern->matches_nothing();
}

/// Finds the expressions and rules that match some text, as the least fixed point.
class Productive {
 public:
  explicit Productive(nlohmann::json& parts)
      : data_(parts["grammar_expr_data"].get<std::vector<std::int32_t>>()),
        begins_(parts["grammar_expr_indptr"].get<std::vector<std::size_t>>()),
        needs_(begins_.size() + parts["rules"].size(), 1),
        users_(needs_.size()) {
    for (std::size_t i = 0; i < begins_.size(); ++i) read(i);
    for (std::size_t i = 0; i < parts["rules"].size(); ++i) uses(rule(i), parts["rules"][i][1].get<std::size_t>());
    while (!found_.empty()) {
      const std::size_t one = found_.back();
      found_.pop_back();
      for (const std::size_t user : users_[one]) {
        if (needs_[user] > 0 && --needs_[user] == 0) found_.push_back(user);
      }
    }
  }

  bool has_rule(std::size_t index) const { return needs_[rule(index)] == 0; }

  /// Removes from `parts` those that match no text. @return true if there were any
  bool take_out(nlohmann::json& parts) {
    bool any = false;
    for (std::size_t i = 0; i < begins_.size(); ++i) {
      const std::span<std::int32_t> data = at(i);
      std::int32_t* const head = &data_[begins_[i]];
      if (head[0] == kRepeat && !has_rule(static_cast<std::size_t>(data[0])) && needs_[i] == 0) {
        head[0] = kEmpty;
        head[1] = 0;
        any = true;
      }
      if (head[0] != kChoices || needs_[i] != 0) continue;
      const auto dead =
          std::ranges::remove_if(data, [&](std::int32_t part) { return needs_[static_cast<std::size_t>(part)] != 0; });
      any = any || !dead.empty();
      head[1] -= static_cast<std::int32_t>(dead.size());
    }
    if (any) parts["grammar_expr_data"] = data_;
    return any;
  }

 private:
  std::span<std::int32_t> at(std::size_t expression) {
    const std::size_t begin = begins_[expression];
    return std::span(data_).subspan(begin + 2, static_cast<std::size_t>(data_[begin + 1]));
  }
  std::size_t rule(std::size_t index) const { return begins_.size() + index; }
  void uses(std::size_t user, std::size_t used) { users_[used].push_back(user); }

  void read(std::size_t i) {
    const std::span<const std::int32_t> data = at(i);
    switch (data_[begins_[i]]) {
      case kSequence:
      case kChoices:
        if (data_[begins_[i]] == kSequence) needs_[i] = data.size();
        for (const std::int32_t part : data) uses(i, static_cast<std::size_t>(part));
        if (needs_[i] == 0) found_.push_back(i);
        return;
      case kRule:
      case kRepeat:
        if (data_[begins_[i]] == kRule || data[1] > 0) return uses(i, rule(static_cast<std::size_t>(data[0])));
        break;
      case kClass:
        if (!class_has_characters(data)) return;
        break;
      case kRegex:
        if (!regex_has_texts(data)) return;
        break;
      default: break;
    }
    needs_[i] = 0;
    found_.push_back(i);
  }

  std::vector<std::int32_t> data_;
  std::vector<std::size_t> begins_;  ///< offset of each expression in data_: its kind, its length, its parts
  std::vector<std::size_t> needs_;   ///< per expression, then per rule: number of parts still undecided
  std::vector<std::vector<std::size_t>> users_;
  std::vector<std::size_t> found_ = {};  ///< productive, with users not yet updated
};

}  // namespace

Result<std::optional<xgrammar::Grammar>> without_dead_ends(const xgrammar::Grammar& grammar) {
  using Rest = std::optional<xgrammar::Grammar>;
  nlohmann::json parts = nlohmann::json::parse(grammar.SerializeJSON());
  Productive productive(parts);
  if (!productive.has_rule(parts["root_rule_id"].get<std::size_t>()))
    return Error{Errc::kNotFound, "the grammar has no text"};
  if (!productive.take_out(parts)) return Rest();
  auto rest = xgrammar::Grammar::DeserializeJSON(parts.dump());
  if (auto* const made = std::get_if<xgrammar::Grammar>(&rest)) return Rest(std::move(*made));
  return Error{Errc::kUnsupported, "the grammar has dead ends that cannot be taken out"};
}

}  // namespace outrider
