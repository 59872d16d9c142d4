#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"

namespace outrider {

/// Parses an untrusted JSON text; discarded: a syntax error, or too deep (json_nesting.h). Integers beyond 64 bits keep
/// their digits: such a value is neither number nor text (is_binary()), and to_text() writes it unchanged.
nlohmann::json parse_json(std::string_view text);
/// Returns the digits of such a value.
std::string_view digits_of(const nlohmann::json& long_integer);

/// Serialises JSON without throwing: invalid UTF-8 is replaced. @param indent  -1: all on one line
std::string to_text(const nlohmann::json& value, int indent = -1);

/// Formats a value for a message: one line, cut short. Omits nested values, since a printer recurses.
std::string show(const nlohmann::json& value);

/// Returns the member of an object; a shared null if there is none, or `object` is not an object.
const nlohmann::json& member(const nlohmann::json& object, const char* key);

/// @param file  its name in messages
/// @param bytes_max  by default a config.json with the types of all experts' matrices, a hundred bytes each, fits
/// @return kMalformed unless the text is one JSON object of limited depth, kOutOfRange if it exceeds `bytes_max`
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view file,
                                         std::size_t bytes_max = 16 << 20);

/// The first error in a file or a request. Reading continues with defaults, so that the reading code needs no branches;
/// the result must not be used before the error has been checked.
struct FirstError {
  std::string file;  ///< its name in messages; empty: none
  std::optional<Error> error = {};
  std::string key = {};  ///< the wrong key, if any: "text_config.hidden_size"

  void set(Errc code, std::string_view problem, std::string_view wrong_key = "");
};

/// Reads the keys of one JSON object. A null value counts as an absent key, as in Hugging Face's classes. A key without
/// a fallback is required. Errors read "FILE: KEY is SEEN, wanted WANTED".
class JsonFields {
 public:
  /// @param object, first_error  outlive this object @param prefix  precedes a key in messages, such as "text_config."
  JsonFields(const nlohmann::json& object, std::string prefix, FirstError& first_error)
      : object_(object), prefix_(std::move(prefix)), first_error_(first_error) {}

  /// Returns true if the key is there, null or not.
  bool contains(const char* key) const { return object_.contains(key); }
  /// Null if the key is absent.
  const nlohmann::json* find(const char* key) const;

  /// Reads an integer in [low, high].
  std::int64_t integer(const char* key, std::optional<std::int64_t> fallback, std::int64_t low,
                       std::int64_t high) const;
  double number(const char* key, std::optional<double> fallback, double low, double high) const;
  bool boolean(const char* key, std::optional<bool> fallback = {}) const;
  std::string text(const char* key, std::optional<std::string> fallback = {},
                   std::string_view wanted = "a string") const;
  /// Reads a string that is one of `allowed`; another one is kUnsupported.
  std::string choice(const char* key, std::optional<std::string> fallback,
                     std::initializer_list<const char*> allowed) const;
  /// Requires the only supported value of a flag.
  void only(const char* key, bool wanted) const;
  /// Returns the keys of a nested object; no keys if it is absent or not an object.
  JsonFields object(const char* key) const;
  /// Returns the elements of an array.
  const nlohmann::json& array(const char* key) const;
  /// Reads the objects of an array one by one, until the first error; none if the key is absent.
  void each(const char* key, std::string_view wanted, const std::function<void(const JsonFields&)>& read) const;

  /// The object's name in messages, such as "messages[0].content[1]"; empty for the root.
  std::string name() const { return prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1); }
  /// The object itself, for iteration.
  const nlohmann::json& raw() const { return object_; }

  void fail(Errc code, const char* key, const nlohmann::json& seen, std::string_view wanted) const;
  /// Reports that the key is missing, or is not what was wanted.
  void wrong(const char* key, std::string_view wanted) const;
  /// Reports a problem with the key, such as "is only for stream: true".
  void refuse(const char* key, std::string_view problem, Errc code = Errc::kInvalidArgument) const;
  /// Refuses every other key, and suggests the nearest known one. @pre `known` is not empty
  void refuse_others(const std::vector<std::string>& known) const;

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  FirstError& first_error_;
};

/// Returns what `read(fields, first_error)` reads from a text.
/// @return errors as parse_json_object(), or the first error
template <typename Read, typename T = std::invoke_result_t<Read, const JsonFields&, FirstError&>>
Result<T> read_json_object(std::string_view text, std::string_view file, Read read) {
  ASSIGN_OR_RETURN(const nlohmann::json object, parse_json_object(text, file));
  FirstError first_error{.file = std::string(file)};
  T value = read(JsonFields(object, "", first_error), first_error);
  if (first_error.error) return *first_error.error;
  return value;
}

}  // namespace outrider
