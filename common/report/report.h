#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/transport/client.h"

namespace outrider {

/// Tokens after the first per second of decoding; the prompt's time is not in it. 0 for one token.
double tokens_per_second(const Generation& generation);

/// Every number of a request under its name; what is kept in nanoseconds as milliseconds, drafting as "draft_ms".
nlohmann::json counts_json(const RequestMetrics& metrics);

/// The headline metrics (README.md) and the counts that stand behind them. Milliseconds of the headline are means over
/// rounds.
nlohmann::json metrics_json(const Generation& generation);

/// The same for people, one "name value" line each. Of an answer without drafts its own rate is the backbone's alone.
std::string metrics_text(const Generation& generation, std::optional<double> backbone_only_tok_per_sec);

}  // namespace outrider
