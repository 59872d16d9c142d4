#pragma once

#include <string>
#include <string_view>
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

/// A field of a request that nobody knows.
struct UnknownField {
  std::string name, problem;  ///< the problem names the nearest field that is known
};
/// The first kUnknownFieldsMax of them. docs/http.md says which are known.
/// @param known  besides those of the tables here
/// @param path  the endpoint's, whose API has words of its own
std::vector<UnknownField> unknown_fields(const nlohmann::json& request, std::vector<std::string> known,
                                         std::string_view path);
inline constexpr std::size_t kUnknownFieldsMax = 8;

}  // namespace outrider
