#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "common/client/client.h"

namespace outrider {

/// Decoding rate: tokens after the first per second, without the prompt's time. 0 for one token.
double tokens_per_second(const Generation& generation);

/// All numbers of a request by name; nanoseconds are given in milliseconds, drafting as "draft_ms".
nlohmann::json counts_json(const RequestMetrics& metrics);

/// The headline metrics (README.md) and the counts behind them. Milliseconds of the headline are means over rounds.
nlohmann::json metrics_json(const Generation& generation);

/// The same in words for people, a line each. @param plain_tok_per_sec  rate of plain decoding, to compare with
std::string metrics_text(const Generation& generation, std::optional<double> plain_tok_per_sec);

/// Summarises an answer in one line: "981.7 tok/s (1.67 times plain), 85 of 92 drafts accepted (92 %), 25 rounds for
/// 111 tokens". @param plain_tok_per_sec  rate of plain decoding, if known
std::string summary_text(const Generation& generation, std::optional<double> plain_tok_per_sec);

/// Explains with figures why most rounds went without drafts; empty if at least half of them had drafts.
/// @param isa  instruction set of the verifier; empty: not known
/// @param drafter_there  whether a drafter was there that had room for it; none: not known
std::string why_left_out(std::span<const RoundOutcome> rounds, std::string_view isa,
                         std::optional<bool> drafter_there = {});

}  // namespace outrider
