#include "common/os/json_lines.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace outrider {
namespace {

bool is_key(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

/// Returns true if a quoted value ends before `behind`: values may contain quotes.
bool ends_value(std::string_view behind) {
  if (behind.empty() || behind.starts_with(" (")) return true;
  if (behind[0] != ' ') return false;
  std::size_t key = 1;
  while (key < behind.size() && is_key(behind[key])) ++key;
  return key > 1 && key < behind.size() && behind[key] == '=';
}

/// Returns the text's fields, in order, and the rest.
std::pair<std::vector<std::pair<std::string, std::string>>, std::string> split(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> fields;
  std::string rest;
  while (!text.empty()) {
    std::size_t key = 0;
    while (key < text.size() && is_key(text[key])) ++key;
    if (key > 0 && key < text.size() && text[key] == '=') {
      const std::string name(text.substr(0, key));
      text.remove_prefix(key + 1);
      const bool quoted = text.starts_with('"');
      std::size_t end = quoted ? 1 : 0;
      if (quoted) {
        while (end < text.size() && !(text[end] == '"' && ends_value(text.substr(end + 1)))) ++end;
        fields.emplace_back(name, text.substr(1, end - 1));
        text.remove_prefix(std::min(end + 1, text.size()));
      } else {
        end = std::min(text.find(' '), text.size());
        fields.emplace_back(name, text.substr(0, end));
        text.remove_prefix(end);
      }
    } else {
      const std::size_t end = std::min(text.find(' '), text.size());
      if (!rest.empty() && end > 0) rest += ' ';
      rest += text.substr(0, end);
      text.remove_prefix(end);
    }
    if (text.starts_with(' ')) text.remove_prefix(1);
  }
  return {std::move(fields), std::move(rest)};
}

}  // namespace

std::string json_log_line(std::string_view time, std::string_view name, std::string_view level, std::string_view text,
                          std::size_t bytes_max) {
  const auto [fields, rest] = split(text);
  std::size_t value_bytes_max = bytes_max;
  while (true) {
    nlohmann::ordered_json line = {{"time", time}, {"name", name}, {"level", level}};
    const auto add = [&](const std::string& key, const std::string& value) {
      if (line.contains(key)) return;
      line[key] = value.size() > value_bytes_max ? value.substr(0, value_bytes_max) + "..." : value;
    };
    for (const auto& [key, value] : fields) add(key, value);
    if (!rest.empty()) add("message", rest);
    std::string json = line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    if (json.size() <= bytes_max || value_bytes_max == 0) return json;
    value_bytes_max /= 2;
  }
}

}  // namespace outrider
