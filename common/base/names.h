#pragma once

#include <functional>
#include <iterator>
#include <string>

namespace outrider {

/// Joins names for people: "f32, bf16, int8 or int4". @param name  of one of the values: a function or a member
template <typename Values, typename Name>
std::string names_of(const Values& values, Name name) {
  std::string names;
  for (auto left = std::size(values); const auto& value : values) {
    names += std::invoke(name, value);
    if (--left > 0) names += left == 1 ? " or " : ", ";
  }
  return names;
}
/// @param values  enumerators with a to_string()
template <typename Values>
std::string names_of(const Values& values) {
  return names_of(values, [](auto value) { return to_string(value); });
}

}  // namespace outrider
