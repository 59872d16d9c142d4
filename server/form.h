#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// One part of a multipart/form-data body.
struct FormPart {
  std::string name, filename;
  std::string_view content;  ///< within the body
};
/// @return nothing for what is not such a body.
std::optional<std::vector<FormPart>> parse_form(std::string_view body);

}  // namespace outrider
