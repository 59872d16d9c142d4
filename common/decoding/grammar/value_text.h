#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "common/base/ids.h"
#include "common/decoding/grammar/pattern.h"

namespace outrider {

/// `text` as a literal of EBNF.
std::string literal(std::string_view text);

/// How values are written that XGrammar's converter of schemas writes wrongly, or only as JSON: texts, names and
/// constants. One form is JSON's. The other is that of Gemma 4's calls: texts as they are between two quote tokens,
/// plain names without quotes. Each function returns what matches, as a part of a rule's body.
class ValueText {
 public:
  /// @param quote  the quote token of calls; none: JSON
  explicit ValueText(std::optional<TokenId> quote);

  std::string constant(const nlohmann::ordered_json& value) const;
  std::string name(const std::string& name) const;
  /// @param most  characters, -1: any number
  std::string text(int least, int most);
  /// @pre something matches
  std::string pattern(const Pattern& pattern) const;

  /// The rules that those need, of each once. They replace what XGrammar has by the same names.
  const std::string& rules() const { return rules_; }

 private:
  std::string quoted(std::string_view text) const;
  std::string bounded(int least, int most);

  bool json_;
  std::string quote_;            ///< what begins and ends a text
  const char *plain_, *escape_;  ///< one character of a text; escape: null: there are none
  std::set<std::string> known_ = {};
  std::string rules_;
};

}  // namespace outrider
