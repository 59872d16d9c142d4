#pragma once

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// Draws the fields of messages, as a visitor of them (common/base/fields.h): what is alike wherever the numbers come
/// from. @tparam Source  derives from it and has coin(), below(n) in 0 .. n - 1, number<T>(range), length(count), and
///   settle(field) for the fields of a struct that depend on each other; and draws what is not here.
template <class Source>
class MessageFields {
 public:
  void operator()(const char*, bool& field) { field = self().coin(); }
  template <typename T>
    requires std::is_arithmetic_v<T>
  void operator()(const char*, T& field, const auto& range, std::type_identity_t<T> = {}) {
    field = self().template number<T>(range);
  }
  template <typename Enum>
    requires std::is_enum_v<Enum>
  void operator()(const char*, Enum& field, Enum last) {
    field = static_cast<Enum>(self().below(static_cast<int>(last) + 1));
  }
  template <typename T>
    requires std::is_arithmetic_v<T>
  void operator()(const char* name, std::vector<T>& field, Count count) {
    self()(name, field, count, kNatural);
  }
  template <typename T>
    requires std::is_arithmetic_v<T>
  void operator()(const char*, std::vector<T>& field, Count count, const auto& range) {
    field.resize(self().length(count));
    for (T& entry : field) entry = self().template number<T>(range);
  }
  template <Described T>
  void operator()(const char* name, std::vector<T>& field, Count count) {
    field.resize(self().length(count));
    for (T& entry : field) self()(name, entry);
  }
  template <Described T>
  void operator()(const char*, T& field) {
    T::fields(self(), field);
    self().settle(field);
  }

 protected:
  /// Alternative `type` of Body.
  template <std::size_t I = 0>
  Body body(std::size_t type) {
    if constexpr (I + 1 < std::variant_size_v<Body>) {
      if (type != I) return body<I + 1>(type);
    }
    std::variant_alternative_t<I, Body> result;
    self()("", result);
    return result;
  }

 private:
  Source& self() { return static_cast<Source&>(*this); }
};

}  // namespace outrider
