#pragma once

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"

namespace outrider {

/// The ways of sampling that llama.cpp has and Outrider has not, each with the value that leaves it out, which
/// /completion reports as its setting.
const std::vector<std::pair<const char*, nlohmann::json>>& foreign_samplers();

/// Refuses what OpenAI, Anthropic, vLLM or llama.cpp would do for a request and Outrider does not, where the answer or
/// the reply would be another than asked for. docs/http.md lists these fields, and those that are harmless.
void refuse_unsupported(const JsonFields& fields);

}  // namespace outrider
