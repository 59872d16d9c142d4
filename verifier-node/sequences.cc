#include "verifier-node/sequences.h"

#include <bit>
#include <cstring>
#include <utility>

namespace outrider {
namespace {

/// Words per row in the shards' gather().
constexpr std::int64_t kWordsPerRow = 1024;

std::int64_t low(SessionId id) { return static_cast<std::int32_t>(value(id)); }
std::int64_t high(SessionId id) { return static_cast<std::int32_t>(value(id) >> 32); }

/// Views words as floats for gather(), which only copies them.
Matrix<float> as_floats(std::vector<std::int32_t>& words, std::int64_t rows, std::int64_t columns) {
  return {reinterpret_cast<float*>(words.data()), {rows, columns}};
}

}  // namespace

/// Reads the words of calls in order.
struct Sequences::CallReader {
  std::span<const std::int32_t> words;

  std::int32_t number() {
    const std::int32_t first = words.front();
    words = words.subspan(1);
    return first;
  }
  SessionId id() {
    const auto low = static_cast<std::uint32_t>(number()), high = static_cast<std::uint32_t>(number());
    return SessionId{std::uint64_t{high} << 32 | low};
  }
  std::span<const std::int32_t> some(std::int64_t count) {
    const auto first = words.first(static_cast<std::size_t>(count));
    words = words.subspan(first.size());
    return first;
  }
};

void Sequences::record(Call call, std::initializer_list<std::int64_t> numbers) {
  if (!leads()) return;
  calls_.push_back(static_cast<std::int32_t>(call));
  record(numbers);
}

void Sequences::record(std::initializer_list<std::int64_t> numbers) {
  for (const std::int64_t number : numbers) {
    DCHECK(std::in_range<std::int32_t>(number), "{}", number);
    calls_.push_back(static_cast<std::int32_t>(number));
  }
}

void Sequences::open(SessionId sequence) {
  record(Call::kOpen, {low(sequence), high(sequence)});
  caches_.emplace(sequence, backbone_->make_cache());
}

void Sequences::copy(SessionId sequence, SessionId from, Position length, const std::function<void()>* between_layers) {
  record(Call::kCopy, {low(sequence), high(sequence), low(from), high(from), length});
  KvCache cache = backbone_->make_cache();
  cache.copy_from(caches_.at(from), length, between_layers);
  caches_.emplace(sequence, std::move(cache));
}

void Sequences::rename(SessionId from, SessionId to) {
  record(Call::kRename, {low(from), high(from), low(to), high(to)});
  auto node = caches_.extract(from);
  node.key() = to;
  caches_.insert(std::move(node));
}

void Sequences::release(SessionId sequence) {
  record(Call::kRelease, {low(sequence), high(sequence)});
  caches_.erase(sequence);
}

void Sequences::record(std::span<const Rows> all) {
  record(Call::kForward, {std::ssize(all)});
  for (const Rows& rows : all) {
    record({low(rows.sequence), high(rows.sequence), std::ssize(rows.tokens), rows.output_rows, std::ssize(rows.depths),
            std::ssize(rows.soft)});
    record(rows.tokens);
    record(rows.depths);
    for (const SoftRows& soft : rows.soft) {
      record({soft.first, soft.values.size(0), soft.values.size(1), std::int64_t{soft.both_ways}});
      for (std::int64_t r = 0; r < soft.values.size(0); ++r)
        for (const float x : soft.values[r].span()) calls_.push_back(std::bit_cast<std::int32_t>(x));
    }
  }
}

Backbone::Output Sequences::forward(std::span<const Rows> all, const std::function<void()>* between_layers) {
  if (leads()) {
    record(all);
    send();
  }
  segments_.clear();
  for (const Rows& rows : all)
    segments_.push_back({&caches_.at(rows.sequence), rows.tokens, rows.output_rows, rows.soft, rows.depths});
  return backbone_->forward(segments_, nullptr, between_layers);
}

void Sequences::apply_forward(CallReader& calls) {
  follower_rows_ = std::vector<FollowerRows>(static_cast<std::size_t>(calls.number()));
  std::vector<Rows> all;
  for (FollowerRows& own : follower_rows_) {
    Rows& rows = all.emplace_back(Rows{.sequence = calls.id(), .tokens = {}});
    const std::int64_t tokens = calls.number();
    rows.output_rows = calls.number();
    const std::int64_t depths = calls.number(), soft = calls.number();
    const auto copy = [&](std::int64_t count) {
      const auto words = calls.some(count);
      return std::vector<std::int32_t>(words.begin(), words.end());
    };
    own.tokens = copy(tokens);
    own.depths = copy(depths);
    own.values.reserve(static_cast<std::size_t>(soft));
    for (std::int64_t i = 0; i < soft; ++i) {
      const std::int64_t first = calls.number(), height = calls.number(), width = calls.number();
      const bool both_ways = calls.number() != 0;
      Matrix<float> values = own.values.emplace_back(height, width).view();
      std::memcpy(values.data(), calls.some(height * width).data(), static_cast<std::size_t>(height * width) * 4);
      own.soft.push_back({first, values, both_ways});
    }
    rows.tokens = own.tokens;
    rows.depths = own.depths;
    rows.soft = own.soft;
  }
  forward(all, nullptr);
}

void Sequences::keep_path(std::size_t i, std::int64_t row) {
  record(Call::kKeepPath, {static_cast<std::int64_t>(i), row});
  backbone_->keep_path(segments_, i, row);
}

void Sequences::send() {
  Shards& shards = *backbone_->shards();
  const auto own = [&](std::int64_t columns) { return leads() ? Columns{0, columns} : Columns{columns, 0}; };
  std::vector<std::int32_t> size = {static_cast<std::int32_t>(calls_.size())};
  shards.gather(as_floats(size, 1, 1), own(1));
  const std::int64_t rows = (size[0] + kWordsPerRow - 1) / kWordsPerRow;
  calls_.resize(static_cast<std::size_t>(rows * kWordsPerRow));
  shards.gather(as_floats(calls_, rows, kWordsPerRow), own(kWordsPerRow));
  if (leads())
    calls_.clear();
  else
    calls_.resize(static_cast<std::size_t>(size[0]));
}

void Sequences::follow() {
  for (;;) {
    send();
    for (CallReader calls{calls_}; !calls.words.empty();) apply(calls);
  }
}

void Sequences::apply(CallReader& calls) {
  switch (static_cast<Call>(calls.number())) {
    case Call::kOpen: return open(calls.id());
    case Call::kCopy: {
      const SessionId sequence = calls.id(), from = calls.id();
      return copy(sequence, from, calls.number(), nullptr);
    }
    case Call::kRename: {
      const SessionId from = calls.id(), to = calls.id();
      return rename(from, to);
    }
    case Call::kRelease: return release(calls.id());
    case Call::kForward: return apply_forward(calls);
    case Call::kKeepPath: {
      const auto i = static_cast<std::size_t>(calls.number());
      return keep_path(i, calls.number());
    }
  }
}

}  // namespace outrider
