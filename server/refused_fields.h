#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"

namespace outrider {

/// llama.cpp's samplers that Outrider lacks, each with the value that disables it, which /completion reports as its
/// setting.
const std::vector<std::pair<const char*, nlohmann::json>>& foreign_samplers();

/// Refuses features of OpenAI, Anthropic, vLLM or llama.cpp that Outrider lacks and that would change the answer or the
/// reply. docs/http.md lists these fields, and the harmless ones.
void refuse_unsupported(const JsonFields& fields);

/// An unknown field of a request.
struct UnknownField {
  std::string name, problem;  ///< the problem names the nearest known field
};
/// Returns the first kUnknownFieldsMax unknown fields. docs/http.md lists the known ones.
/// @param known  besides the tables here
/// @param path  the endpoint's: selects the API's own fields
std::vector<UnknownField> unknown_fields(const nlohmann::json& request, std::vector<std::string> known,
                                         std::string_view path);
inline constexpr std::size_t kUnknownFieldsMax = 8;

}  // namespace outrider
