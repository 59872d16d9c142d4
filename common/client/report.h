#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "common/client/client.h"

namespace outrider {

/// Tokens after the first per second of decoding; the prompt's time is not in it. 0 for one token.
double tokens_per_second(const Generation& generation);

/// Every number of a request under its name; what is kept in nanoseconds as milliseconds, drafting as "draft_ms".
nlohmann::json counts_json(const RequestMetrics& metrics);

/// The headline metrics (README.md) and the counts that stand behind them. Milliseconds of the headline are means over
/// rounds.
nlohmann::json metrics_json(const Generation& generation);

/// The same for people, one "name value" line each. Of an answer without drafts its own rate is the backbone's alone,
/// unless another's is given to compare with.
std::string metrics_text(const Generation& generation, std::optional<double> backbone_only_tok_per_sec);

/// What an answer brought, in one line: "981.7 tok/s (1.67 times plain), 85 of 92 drafts accepted (92 %), 25 rounds for
/// 111 tokens".
/// @param plain_tok_per_sec  of plain decoding, where that is known
std::string brought_text(const Generation& generation, std::optional<double> plain_tok_per_sec);

/// Why most rounds of an answer went without drafts, though it was to have some: a sentence with its figures. Empty
/// where at least half of them had drafts.
/// @param isa  instruction set of the verifier; empty: not known
/// @param drafter_there  whether a drafter was there that had room for it; none: not known
std::string why_left_out(std::span<const RoundOutcome> rounds, std::string_view isa,
                         std::optional<bool> drafter_there = {});

}  // namespace outrider
