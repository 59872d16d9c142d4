#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// One part of a multipart/form-data body.
struct FormPart {
  std::string name, filename;
  std::string_view content;  ///< a view of the body
};
/// @return none if it is not such a body, or has more than 64 parts or 8 KiB in the head of one
std::optional<std::vector<FormPart>> parse_form(std::string_view body);

}  // namespace outrider
