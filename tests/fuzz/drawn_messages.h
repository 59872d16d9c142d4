#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/wire/messages/messages.h"
#include "tests/support/message_fields.h"

namespace outrider {

/// Numbers that the bytes of an input say, and zeros when these are used up.
class Drawer {
 public:
  explicit Drawer(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return at_ >= bytes_.size(); }
  std::uint8_t byte() { return empty() ? std::uint8_t{0} : bytes_[at_++]; }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

/// Messages as the codec lets them in, of small numbers mostly, so that they often mean something: what somebody who
/// got in may say.
class MessageDrawer : public MessageFields<MessageDrawer> {
 public:
  using MessageFields::operator();

  explicit MessageDrawer(Drawer& drawer) : draw_(drawer) {}

  Message message() {
    const auto near = [&](std::uint64_t base) { return draw_.byte() < 224 ? base + draw_.byte() % 4 : draw_.number(); };
    Message result{.session = SessionId{near(draw_.byte() % 2 == 0 ? 50 : 0)},
                   .round = RoundId{static_cast<std::uint32_t>(near(0))},
                   .base = number<Position>(kPositions),
                   .body = {}};
    result.body = body(draw_.byte() % std::variant_size_v<Body>);
    return result;
  }

  void operator()(const char*, std::uint64_t& field) { field = draw_.byte() < 224 ? draw_.byte() % 4 : draw_.number(); }
  void operator()(const char*, std::int64_t& field) {
    field = static_cast<std::int64_t>(draw_.byte() < 224 ? draw_.byte() : draw_.number());
  }
  template <typename T>
  void operator()(const char* name, std::optional<T>& field, const auto&... allowed) {
    if (!coin()) return field.reset();
    (*this)(name, field.emplace(), allowed...);
  }
  void operator()(const char*, std::string& field, Count count) { text(field, count.max); }
  void operator()(const char*, std::string& field, Verbatim bytes) { text(field, bytes.max); }
  void operator()(const char*, std::vector<LogitBias>& field, Count count) {
    field.resize(length(count));
    for (LogitBias& entry : field) entry = {.token = static_cast<TokenId>(draw_.byte()), .bias = 1};
  }
  void operator()(const char*, std::vector<TokenLogprobs>& field, Count count) {
    field.resize(length(count));
    for (TokenLogprobs& entry : field) entry.logprob = -1;
  }
  void operator()(const char*, WireTensor& field, Rank rank) {
    field.dtype = static_cast<DType>(draw_.byte() % (static_cast<int>(kLastWireDType) + 1));
    field.shape.clear();
    std::size_t count = block_elements(field.dtype);
    const std::size_t axes = rank.min + draw_.byte() % (rank.max - rank.min + 1);
    for (std::size_t i = 0; i < axes; ++i) {
      field.shape.push_back(draw_.byte() % 8);
      count *= static_cast<std::size_t>(field.shape.back());
    }
    field.shape.back() *= static_cast<std::int64_t>(block_elements(field.dtype));
    const std::size_t bytes = stored_bytes(field.dtype, count);
    const auto owner = std::make_shared<std::vector<std::byte>>(bytes, static_cast<std::byte>(draw_.byte()));
    field.data = SharedBytes(owner, *owner);
  }

 private:
  friend class MessageFields<MessageDrawer>;

  bool coin() { return draw_.byte() % 2 == 1; }
  int below(int count) { return draw_.byte() % count; }
  void settle(auto&) {}
  template <typename T, typename Limit>
  T number(const Range<Limit>& range) {
    if constexpr (std::is_floating_point_v<T>) {
      const double low = std::max<double>(range.min, -16), high = std::min<double>(range.max, 16);
      return static_cast<T>(low + (high - low) * draw_.byte() / 255);
    } else {
      // Unsigned: the whole of int64 is as far across as no int64 can say.
      const auto low = static_cast<std::uint64_t>(static_cast<std::int64_t>(range.min));
      const std::uint64_t across =
          std::min(static_cast<std::uint64_t>(range.max), static_cast<std::uint64_t>(std::numeric_limits<T>::max())) -
          low;
      const std::uint8_t kind = draw_.byte();
      const std::uint64_t offset = kind < 224 ? kind % 8 : kind < 250 ? draw_.byte() : across;
      return static_cast<T>(low + std::min(offset, across));
    }
  }
  std::size_t length(Count count) {
    return std::min<std::size_t>(std::max<std::size_t>(count.min, draw_.byte() % 8), count.max);
  }
  void text(std::string& field, std::size_t max) {
    field.resize(std::min<std::size_t>(draw_.byte() % 16, max));
    for (char& c : field) c = static_cast<char>(draw_.byte());
  }

  Drawer& draw_;
};

}  // namespace outrider
