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

/// A JSON text of anybody; discarded: it is none. Integers that 64 bits do not hold keep their digits: such a value is
/// neither number nor text (is_binary()), and to_text() writes it as it came.
nlohmann::json parse_json(std::string_view text);
/// The digits of such a value.
std::string_view digits_of(const nlohmann::json& long_integer);

/// JSON as it goes out: what is not UTF-8 in it is replaced, never thrown.
/// @param indent  -1: all on one line
std::string to_text(const nlohmann::json& value, int indent = -1);

/// A value for a message: one line, cut short. Nothing nested is printed, since a printer recurses.
std::string show(const nlohmann::json& value);

/// The member of an object; a shared null where there is none, or `object` is something else.
const nlohmann::json& member(const nlohmann::json& object, const char* key);

/// @param file  its name in messages.
/// @return kMalformed unless the text is one JSON object, kOutOfRange if it is longer than `bytes_max`.
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view file, std::size_t bytes_max = 1 << 20);

/// The first thing that was wrong with a file or a request. Reading goes on with defaults after it, so that the code
/// that reads need not branch on errors; nothing is used before the error has been looked at.
struct FirstError {
  std::string file;  ///< its name in messages; empty: they go without
  std::optional<Error> error = {};
  std::string key = {};  ///< the one that was wrong, if it was one: "text_config.hidden_size"

  void set(Errc code, std::string_view problem, std::string_view wrong_key = "");
};

/// The keys of one JSON object. A null value counts as an absent key, as in Hugging Face's classes. A
/// key without a fallback must be there. What is wrong is said as "FILE: KEY is SEEN, wanted WANTED".
class JsonFields {
 public:
  /// @param object, first_error  outlive this.
  /// @param prefix  what to put before a key in messages, such as "text_config.".
  JsonFields(const nlohmann::json& object, std::string prefix, FirstError& first_error)
      : object_(object), prefix_(std::move(prefix)), first_error_(first_error) {}

  /// Whether the key is there, null or not.
  bool contains(const char* key) const { return object_.contains(key); }
  /// Null if the key is absent.
  const nlohmann::json* find(const char* key) const;

  /// In [low, high].
  std::int64_t integer(const char* key, std::optional<std::int64_t> fallback, std::int64_t low,
                       std::int64_t high) const;
  double number(const char* key, std::optional<double> fallback, double low, double high) const;
  bool boolean(const char* key, std::optional<bool> fallback = {}) const;
  std::string text(const char* key, std::optional<std::string> fallback = {},
                   std::string_view wanted = "a string") const;
  /// A string that is one of `allowed`; another one is kUnsupported.
  std::string choice(const char* key, std::optional<std::string> fallback,
                     std::initializer_list<const char*> allowed) const;
  /// The one value of a flag that we implement.
  void only(const char* key, bool wanted) const;
  /// The keys of a nested object; of an empty one if the key is absent or not an object.
  JsonFields object(const char* key) const;
  /// The elements of an array.
  const nlohmann::json& array(const char* key) const;
  /// Reads the objects of an array one by one, until one is wrong; none if the key is absent.
  void each(const char* key, std::string_view wanted, const std::function<void(const JsonFields&)>& read) const;

  /// What the object is called in messages, such as "messages[0].content[1]"; empty for the whole.
  std::string name() const { return prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1); }
  /// The object itself, for iteration.
  const nlohmann::json& raw() const { return object_; }

  void fail(Errc code, const char* key, const nlohmann::json& seen, std::string_view wanted) const;
  /// Says that the key is missing, or is not what was wanted.
  void wrong(const char* key, std::string_view wanted) const;
  /// Says of the key that it "is only for stream: true", or what else `problem` has.
  void refuse(const char* key, std::string_view problem, Errc code = Errc::kInvalidArgument) const;
  /// Refuses every key but these, each with the nearest of them. @pre there is one
  void refuse_others(const std::vector<std::string>& known) const;

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  FirstError& first_error_;
};

/// What `read(fields, first_error)` takes from a text. @return as parse_json_object(), or the first error
template <typename Read, typename T = std::invoke_result_t<Read, const JsonFields&, FirstError&>>
Result<T> read_json_object(std::string_view text, std::string_view file, Read read) {
  ASSIGN_OR_RETURN(const nlohmann::json object, parse_json_object(text, file));
  FirstError first_error{.file = std::string(file)};
  T value = read(JsonFields(object, "", first_error), first_error);
  if (first_error.error) return *first_error.error;
  return value;
}

}  // namespace outrider
