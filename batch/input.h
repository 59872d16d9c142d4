#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "batch/hash.h"
#include "batch/line_reader.h"
#include "common/base/result.h"

namespace outrider {

/// A part of a job: a range of the input's lines; all parts are nearly equal.
struct Shard {
  std::uint32_t index = 1, count = 1;  ///< index from 1

  /// @param text  "I/N", where 0/N is N/N @return kInvalidArgument
  static Result<Shard> parse(const std::string& text);
  std::string text() const { return std::to_string(index) + "/" + std::to_string(count); }
  std::uint32_t begin(std::uint32_t lines) const {
    return static_cast<std::uint32_t>(std::uint64_t{lines} * (index - 1) / count);
  }
  std::uint32_t end(std::uint32_t lines) const {
    return static_cast<std::uint32_t>(std::uint64_t{lines} * index / count);
  }
};

/// Index of a batch's lines. 20 bytes a line in memory, and 48 during open().
class BatchInput {
 public:
  enum class Order { kInput, kPrefix };

  /// Reads the file once.
  /// @return kNotFound or kIo if it cannot be read; kInvalidArgument if two lines have one custom_id: both are named
  static Result<BatchInput> open(const std::filesystem::path& path, Order order);

  /// Includes blank lines.
  std::uint32_t lines() const { return static_cast<std::uint32_t>(lengths_.size()); }
  bool blank(std::uint32_t line) const { return lengths_[line] == 0; }
  /// Any thread. @return kOutOfRange for a line that is too long; kMismatch for a line that changed since open(); kIo
  Result<std::string> read(std::uint32_t line) const;
  /// Returns the non-blank lines of a shard, in sending order.
  std::vector<std::uint32_t> to_send(const Shard& shard) const;

  std::uint64_t bytes() const { return bytes_; }
  const Hash128& hash() const { return hash_; }

 private:
  BatchInput(DurableFile file, Order order) : file_(std::move(file)), order_(order) {}

  DurableFile file_;
  Order order_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint32_t> lengths_;  ///< kTooLong: not indexed
  std::vector<std::uint64_t> hashes_;   ///< 0: not indexed
  std::vector<std::uint64_t> prefixes_;
  std::uint64_t bytes_ = 0;
  Hash128 hash_{};
};

}  // namespace outrider
