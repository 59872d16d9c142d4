#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "common/base/ids.h"
#include "common/decoding/grammar/pattern.h"

namespace outrider {

/// Returns `text` as an EBNF literal.
std::string literal(std::string_view text);

/// Writes the values that XGrammar's schema converter writes wrongly, or only as JSON: texts, names and constants. One
/// form is JSON. The other is that of Gemma 4's calls: raw texts between two quote tokens, and plain names without
/// quotes. Each function returns a part of a rule's body.
class ValueText {
 public:
  /// @param quote  the quote token of calls; none: JSON
  explicit ValueText(std::optional<TokenId> quote);

  std::string constant(const nlohmann::ordered_json& value) const;
  std::string name(const std::string& name) const;
  /// @param most  in characters, -1: unbounded
  std::string text(int least, int most);
  /// @pre something matches
  std::string pattern(const Pattern& pattern) const;

  /// Returns the rules that those parts need, once each. They replace XGrammar's rules of the same names.
  const std::string& rules() const { return rules_; }

 private:
  std::string quoted(std::string_view text) const;
  std::string bounded(int least, int most);

  bool json_;
  std::string quote_;            ///< begins and ends a text
  const char *plain_, *escape_;  ///< one character of a text; escape null: none
  std::set<std::string> known_ = {};
  std::string rules_;
};

}  // namespace outrider
