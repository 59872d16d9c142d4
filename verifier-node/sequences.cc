#include "verifier-node/sequences.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/base/token_tree.h"

namespace outrider {
namespace {

/// Words per row in the shards' gather().
constexpr std::int64_t kWordsPerRow = 1024;
/// Most words of the calls between two passes.
constexpr std::int64_t kWordsMax = 1 << 28;

/// Ends following the first shard: its bytes may come from another host, and must not break this process.
void require(bool sound) {
  if (!sound) throw std::runtime_error("the verifier's calls make no sense");
}

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
    require(!words.empty());
    const std::int32_t first = words.front();
    words = words.subspan(1);
    return first;
  }
  SessionId id() {
    const auto low = static_cast<std::uint32_t>(number()), high = static_cast<std::uint32_t>(number());
    return SessionId{std::uint64_t{high} << 32 | low};
  }
  std::span<const std::int32_t> some(std::int64_t count) {
    require(0 <= count && count <= std::ssize(words));
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
  segments_.clear();  // which point at caches
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
  const std::int64_t sequences = calls.number();
  require(0 < sequences && sequences <= backbone_->rows_max());
  follower_rows_ = std::vector<FollowerRows>(static_cast<std::size_t>(sequences));
  std::vector<Rows> all;
  std::int64_t left = backbone_->rows_max();
  for (FollowerRows& own : follower_rows_) {
    const SessionId sequence = calls.id();
    require(has(sequence) && std::ranges::find(all, sequence, &Rows::sequence) == all.end());
    Rows& rows = all.emplace_back(Rows{.sequence = sequence, .tokens = {}});
    const std::int64_t tokens = calls.number();
    left -= tokens;
    require(0 < tokens && 0 <= left);
    rows.output_rows = calls.number();
    const std::int64_t depths = calls.number(), soft = calls.number();
    const auto copy = [&](std::int64_t count) {
      const auto words = calls.some(count);
      return std::vector<std::int32_t>(words.begin(), words.end());
    };
    own.tokens = copy(tokens);
    own.depths = copy(depths);
    const auto is_known = [&](TokenId id) { return 0 <= id && id < backbone_->config().vocab_size; };
    require(std::ranges::all_of(own.tokens, is_known) && 0 <= rows.output_rows && rows.output_rows <= tokens &&
            TokenTree(tokens - 1, own.depths).check() && 0 <= soft && soft <= std::ssize(calls.words));
    own.values.reserve(static_cast<std::size_t>(soft));
    for (std::int64_t i = 0; i < soft; ++i) {
      const std::int64_t first = calls.number(), height = calls.number(), width = calls.number();
      const bool both_ways = calls.number() != 0;
      require(0 <= first && 0 < height && first + height <= tokens && width == backbone_->config().hidden_size);
      const std::span<const std::int32_t> words = calls.some(height * width);
      Matrix<float> values = own.values.emplace_back(height, width).view();
      std::memcpy(values.data(), words.data(), words.size_bytes());
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
  require(0 <= size[0] && size[0] <= kWordsMax);
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
      const Position length = calls.number();
      require(!has(sequence) && has(from) && cache(from).holds(length));
      return copy(sequence, from, length, nullptr);
    }
    case Call::kRename: {
      const SessionId from = calls.id(), to = calls.id();
      require(has(from) && !has(to));
      return rename(from, to);
    }
    case Call::kRelease: return release(calls.id());
    case Call::kForward: return apply_forward(calls);
    case Call::kKeepPath: {
      const auto i = static_cast<std::size_t>(calls.number());
      const std::int64_t row = calls.number();
      require(i < segments_.size() && 0 <= row && row < std::ssize(segments_[i].tokens));
      const TokenTree tree(std::ssize(segments_[i].tokens) - 1, segments_[i].depths);
      const Position base = segments_[i].cache->length() - tree.height() - 1;
      require(base >= 0 && segments_[i].cache->holds(base + tree.depth(row) + 1));
      return keep_path(i, row);
    }
  }
}

}  // namespace outrider
