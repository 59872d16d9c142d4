#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/transport/client.h"

namespace outrider {

/// Tokens after the first per second of decoding; the prompt's time is not in it. 0 for one token.
double tokens_per_second(const Generation& generation);

/// The metrics that README.md explains, and what stands behind them. Milliseconds are
/// means over rounds.
nlohmann::json metrics_json(const Generation& generation);

/// The same for people, one "name value" line each.
std::string metrics_text(const Generation& generation, std::optional<double> backbone_only_tok_per_sec);

}  // namespace outrider
