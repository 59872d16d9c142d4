#include "tests/support/message_parser.h"

#include <charconv>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace outrider {
namespace {

[[noreturn]] void fail(std::string_view what, std::string_view where) {
  throw std::invalid_argument(fmt::format("{} at '{}'", what, where));
}

template <typename T>
T number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) fail("a number is wanted", text);
  return value;
}

/// Takes the next word off the text: up to a space that is in no bracket and no string. None at the end.
std::optional<std::string_view> next_word(std::string_view& text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  int depth = 0;
  bool quoted = false;
  std::size_t end = 0;
  for (; end < text.size() && (depth > 0 || quoted || text[end] != ' '); ++end) {
    if (text[end] == '"') quoted = !quoted;
    if (!quoted && (text[end] == '[' || text[end] == '{')) ++depth;
    if (!quoted && (text[end] == ']' || text[end] == '}')) --depth;
  }
  if (end == 0) return std::nullopt;
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

std::string_view inside(std::string_view text, char open, char close) {
  if (text.size() < 2 || text.front() != open || text.back() != close) fail("brackets are wanted", text);
  return text.substr(1, text.size() - 2);
}

/// Sets the fields of one struct from `name=value` words.
class Parser {
 public:
  explicit Parser(std::string_view text) {
    while (const auto word = next_word(text)) {
      const std::size_t equals = word->find('=');
      if (equals == std::string_view::npos) fail("name=value is wanted", *word);
      words_[std::string(word->substr(0, equals))] = word->substr(equals + 1);
    }
  }
  template <typename T>
  void operator()(const char* name, T& field, const auto&... allowed) {
    if (const auto word = words_.find(name); word != words_.end()) {
      set(field, word->second, allowed...);
      words_.erase(word);
    }
  }
  void expect_all_used() const {
    if (!words_.empty()) fail("no such field", words_.begin()->first);
  }

 private:
  template <typename T>
  void set(T& field, std::string_view text, const auto&... allowed) {
    if constexpr (std::is_same_v<T, bool>) {
      field = text == "true";
    } else if constexpr (std::is_enum_v<T>) {
      for (int i = 0; i <= static_cast<int>((allowed, ...)); ++i) {
        field = static_cast<T>(i);
        if (text == to_string(field)) return;
      }
      fail("an enumerator is wanted", text);
    } else if constexpr (Described<T>) {
      Parser fields(inside(text, '{', '}'));
      T::fields(fields, field);
      fields.expect_all_used();
      if constexpr (requires { field.settle(); }) (void)field.settle();
    } else {
      field = number<T>(text);
    }
  }
  void set(std::string& field, std::string_view text, const auto&) { field = inside(text, '"', '"'); }
  void set(WireTensor& field, std::string_view text, Rank) {
    const std::size_t bracket = text.find('[');
    const auto dtype = parse_dtype(text.substr(0, bracket));
    if (bracket == std::string_view::npos || !dtype) fail("a tensor is wanted", text);
    std::string extents(inside(text.substr(bracket), '[', ']'));
    for (char& c : extents) c = c == ',' ? ' ' : c;
    std::size_t count = 1;
    std::string_view rest = extents;
    while (const auto extent = next_word(rest)) {
      field.shape.push_back(number<std::int64_t>(*extent));
      count *= static_cast<std::size_t>(field.shape.back());
    }
    field.dtype = *dtype;
    const auto owner = std::make_shared<std::vector<std::byte>>(stored_bytes(*dtype, count));
    field.data = SharedBytes(owner, *owner);
  }
  template <typename T>
  void set(std::optional<T>& field, std::string_view text, const auto&... allowed) {
    set(field.emplace(), text, allowed...);
  }
  template <typename T>
  void set(std::vector<T>& field, std::string_view text, Count, const auto&...) {
    std::string_view rest = inside(text, '[', ']');
    while (const auto word = next_word(rest)) {
      if constexpr (std::is_arithmetic_v<T>) {
        const std::size_t dots = word->find(".."), times = word->find('*');
        const T first = number<T>(word->substr(0, std::min(dots, times)));
        const T last = dots == std::string_view::npos ? first : number<T>(word->substr(dots + 2));
        const int repeat = times == std::string_view::npos ? 1 : number<int>(word->substr(times + 1));
        for (int i = 0; i < repeat; ++i)
          for (T value = first; value <= last; ++value) field.push_back(value);
      } else {
        set(field.emplace_back(), *word);
      }
    }
  }

  std::map<std::string, std::string_view> words_;
};

template <std::size_t I = 0>
Body body_named(std::string_view name) {
  if constexpr (I < std::variant_size_v<Body>) {
    using M = std::variant_alternative_t<I, Body>;
    if (name == kBodyNames[I]) return M{};
    return body_named<I + 1>(name);
  } else {
    fail("no such message", name);
  }
}

}  // namespace

Message parse_message(std::string_view text) {
  const auto name = next_word(text);
  if (!name) fail("a message is wanted", text);
  Message message{.body = body_named(*name)};
  Parser fields(text);
  std::uint64_t session = 0;
  std::uint32_t round = 0;
  fields("session", session);
  fields("round", round);
  fields("base", message.base);
  message.session = SessionId{session};
  message.round = RoundId{round};
  std::visit([&](auto& body) { body.fields(fields, body); }, message.body);
  fields.expect_all_used();
  return message;
}

}  // namespace outrider
