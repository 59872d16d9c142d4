#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/client/client.h"
#include "common/client/text_side.h"
#include "common/decoding/drafting/policies.h"
#include "common/decoding/sampling/params.h"
#include "launch/command_line.h"

namespace outrider {

/// An answer's --max-tokens. Without it an answer continues to its end, like the HTTP server's chats.
struct MaxTokensFlag {
  std::optional<std::int64_t> given;

  void add_to(Command& command);
  void set(Generate& request) const;
  /// Explains an answer's end to a person; empty: the model ended it.
  std::string cut_off(const Generation& generation) const;
};

/// Adds --plain to commands that show rounds at a terminal.
Option* add_plain(Command& command, bool& plain);

/// Sampling options. The default is greedy; above temperature 0 the rule is `match`.
struct SamplingFlags {
  SamplingParams params;  ///< as given; see of()
  std::vector<std::string> logit_bias;
  std::filesystem::path json_schema, grammar;
  bool sample = false, rejection = false, typical = false;
  std::map<std::string, Option*> options;  ///< of the numbers, by the parameter's name
  std::vector<Option*> of_draws;           ///< without effect at temperature 0

  void add_to(Command& command);
  /// @return the parameters for this model, with a seed if one is needed
  SamplingParams of(const TextSide& text) const;
};

/// A check for Option::check. @return the reason that this is not a draft length, if it is not
std::string check_draft_length(const std::string& text);

/// The option for the length of drafts.
struct DraftLengthFlag {
  std::string text = "auto";
  bool no_governor = false;

  void add_to(Command& command);
  /// Already validated.
  DraftLength value() const { return or_throw(parse_draft_length(text)); }
};

}  // namespace outrider
