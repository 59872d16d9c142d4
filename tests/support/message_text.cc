#include "tests/support/message_text.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/random.h"

namespace outrider {
namespace {

/// Prints the fields of one struct as `name=value`, each after a space.
template <Described M>
std::string fields_of(const M& m);

template <typename T>
std::string value_text(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return to_string(value);
  } else if constexpr (Described<const T>) {
    const std::string fields = fields_of(value);
    return "{" + (fields.empty() ? fields : fields.substr(1)) + "}";
  } else {
    return fmt::format("{}", value);
  }
}

std::string value_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    text += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text + "\"";
}

std::string value_text(const WireTensor& tensor) {
  std::string text = fmt::format("{}[{}]", to_string(tensor.dtype), fmt::join(tensor.shape, ","));
  const bool zeros = std::ranges::all_of(tensor.data.bytes(), [](std::byte byte) { return byte == std::byte{0}; });
  return zeros ? text : text + fmt::format("#{:016x}", fnv1a(tensor.data.bytes()));
}

template <typename T>
std::string value_text(const std::optional<T>& value) {
  return value ? value_text(*value) : "none";
}

template <typename T>
std::string value_text(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const T& value : values) texts.push_back(value_text(value));
  return fmt::format("[{}]", fmt::join(texts, " "));
}

struct Printer {
  std::vector<std::pair<const char*, std::string>> fields;
  template <typename T>
  void operator()(const char* name, const T& value, const auto&...) {
    fields.emplace_back(name, value_text(value));
  }
};

template <Described M>
std::string fields_of(const M& m) {
  Printer printer, defaults;
  M::fields(printer, m);
  const M none{};
  M::fields(defaults, none);
  std::string text;
  for (std::size_t i = 0; i < printer.fields.size(); ++i) {
    const auto& [name, value] = printer.fields[i];
    if (value != defaults.fields[i].second) text += fmt::format(" {}={}", name, value);
  }
  return text;
}

}  // namespace

std::string to_text(const Message& message) {
  std::string text = name_of(message);
  if (message.session != SessionId{}) text += fmt::format(" session={}", value(message.session));
  if (message.round != RoundId{}) text += fmt::format(" round={}", value(message.round));
  if (message.base != 0) text += fmt::format(" base={}", message.base);
  return text + std::visit([](const auto& body) { return fields_of(body); }, message.body);
}

}  // namespace outrider
