#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/compute/tensor/tensor.h"
#include "common/model/gemma4/backbone.h"

namespace outrider {

/// A backbone and the K/V of sequences by id. With several shards, the first one leads: calls here are repeated on the
/// others, in the same order, since all of them follow(). Calls are collected until the next one that computes, and
/// sent together with it.
class Sequences {
 public:
  explicit Sequences(std::shared_ptr<Backbone> backbone) : backbone_(std::move(backbone)) {}

  const Backbone& backbone() const { return *backbone_; }
  bool has(SessionId sequence) const { return caches_.contains(sequence); }
  const KvCache& cache(SessionId sequence) const { return caches_.at(sequence); }

  /// Adds a sequence without K/V.
  void open(SessionId sequence);
  /// Adds a sequence with a copy of another's first rows. @param between_layers  see KvCache::copy_from()
  void copy(SessionId sequence, SessionId from, Position length, const std::function<void()>* between_layers);
  /// Changes the id of a sequence.
  void rename(SessionId from, SessionId to);
  void release(SessionId sequence);

  /// A Segment for a sequence by id.
  struct Rows {
    SessionId sequence{};
    std::span<const TokenId> tokens;
    std::int64_t output_rows = 0;
    std::span<const SoftRows> soft = {};
    std::span<const std::int32_t> depths = {};
  };
  /// Runs one pass of the backbone. Memory that `rows` point at must stay valid until the next pass.
  Backbone::Output forward(std::span<const Rows> rows, const std::function<void()>* between_layers);
  /// Calls Backbone::keep_path() for the i-th rows of the last pass.
  void keep_path(std::size_t i, std::int64_t row);

  /// Repeats the first shard's calls until the shards' gather() throws.
  [[noreturn]] void follow();

 private:
  enum class Call : std::int32_t { kOpen, kCopy, kRename, kRelease, kForward, kKeepPath };
  struct CallReader;
  bool leads() const { return backbone_->shards() != nullptr && backbone_->shards()->place().rank == 0; }
  void record(Call call, std::initializer_list<std::int64_t> numbers);
  /// Records numbers of at most 32 bits; ids are split in halves.
  void record(std::initializer_list<std::int64_t> numbers);
  void record(std::span<const std::int32_t> words) { calls_.insert(calls_.end(), words.begin(), words.end()); }
  void record(std::span<const Rows> rows);
  /// Sends the first shard's `calls_` to all.
  void send();
  void apply(CallReader& calls);
  void apply_forward(CallReader& calls);

  std::shared_ptr<Backbone> backbone_;
  std::map<SessionId, KvCache> caches_;
  std::vector<Segment> segments_;  ///< of the last pass
  struct FollowerRows {
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> depths;
    std::vector<Tensor> values;
    std::vector<SoftRows> soft;
  };
  std::vector<FollowerRows> follower_rows_;  ///< on a following shard: memory that the segments point at
  std::vector<std::int32_t> calls_;
};

}  // namespace outrider
