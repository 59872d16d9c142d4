#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "tests/support/model_at.h"

namespace outrider {

/// A checkpoint pair of this repository, computed in one weight type.
struct TestPair {
  const char* name;
  const char* backbone;
  const char* assistant;
  WeightType type;
};

inline std::filesystem::path in_source(const char* path) { return std::filesystem::path(OUTRIDER_SOURCE_DIR) / path; }
inline std::string pair_name(const testing::TestParamInfo<TestPair>& param_info) {
  return std::string(param_info.param.name) + "_" + to_string(param_info.param.type);
}

/// "tiny": random weights, sliding window 8, per-layer inputs, shared K/V. "tiny_moe": K as V and experts.
/// "tiny_odd": all of these, window 5. "nano": trained, window 128.
inline std::vector<TestPair> every_pair() {
  std::vector<TestPair> pairs;
  for (const WeightType type : kWeightTypes) {
    pairs.push_back({"tiny", "tests/goldens/e4b/backbone", "tests/goldens/e4b/assistant", type});
    pairs.push_back({"tiny_moe", "tests/goldens/moe-26b-a4b/backbone", "tests/goldens/moe-26b-a4b/assistant", type});
    pairs.push_back({"tiny_odd", "tests/goldens/odd/backbone", "tests/goldens/odd/assistant", type});
    pairs.push_back({"nano", "models/nano/backbone", "models/nano/assistant", type});
  }
  return pairs;
}

inline std::unique_ptr<Backbone> load_backbone(const TestPair& pair, std::int64_t rows_max, Shards* shards = nullptr) {
  return Backbone::load(model_at(in_source(pair.backbone)), pair.type, rows_max, shards).value();
}

inline std::vector<TokenId> random_tokens(CounterRng& rng, std::int64_t count, const TextConfig& config) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(config.vocab_size)));
  return tokens;
}

/// Those of a TokenTree, often with branches.
inline std::vector<std::int32_t> random_depths(CounterRng& rng, std::int64_t drafts) {
  std::vector<std::int32_t> depths;
  for (std::int32_t before = 0; std::ssize(depths) < drafts; before = depths.back()) {
    const auto deepest = static_cast<std::uint64_t>(before) + 1;
    depths.push_back(static_cast<std::int32_t>(rng.below(2) == 0 ? deepest : 1 + rng.below(deepest)));
  }
  return depths;
}

/// What a row of a forward pass gave.
struct OutputRow {
  std::vector<float> hidden, logits;
};

inline std::vector<OutputRow> copy_rows(const Backbone::Output& output) {
  std::vector<OutputRow> rows;
  for (std::int64_t r = 0; r < output.logits.size(0); ++r) {
    const auto hidden = output.hidden[r].span(), logits = output.logits[r].span();
    rows.push_back({{hidden.begin(), hidden.end()}, {logits.begin(), logits.end()}});
  }
  return rows;
}

/// Appends tokens to a cache in one forward; an output row for each.
inline std::vector<OutputRow> forward(Backbone& backbone, KvCache& cache, std::span<const TokenId> tokens) {
  const Segment segment{&cache, tokens, static_cast<std::int64_t>(tokens.size())};
  return copy_rows(backbone.forward({&segment, 1}));
}

/// The reference: all rows of a text in forwards of at most 16 rows on a new cache.
inline std::vector<OutputRow> prefill(Backbone& backbone, KvCache& cache, std::span<const TokenId> tokens) {
  std::vector<OutputRow> rows;
  constexpr std::size_t kChunk = 16;
  for (std::size_t i = 0; i < tokens.size(); i += kChunk) {
    for (OutputRow& row : forward(backbone, cache, tokens.subspan(i, std::min(kChunk, tokens.size() - i))))
      rows.push_back(std::move(row));
  }
  return rows;
}

inline testing::AssertionResult same_bits(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size())
    return testing::AssertionFailure() << "sizes " << actual.size() << ", " << expected.size();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(expected[i])) continue;
    return testing::AssertionFailure() << "element " << i << " of " << actual.size() << ": " << actual[i]
                                       << ", expected " << expected[i];
  }
  return testing::AssertionSuccess();
}
inline testing::AssertionResult same_bits(const OutputRow& actual, const OutputRow& expected) {
  if (auto hidden = same_bits(actual.hidden, expected.hidden); !hidden) return hidden << " of the hidden row";
  return same_bits(actual.logits, expected.logits);
}

/// Stored rows [first, first + count) of a layer: K's bytes, then V's.
inline std::vector<std::byte> raw_rows(const LayerKv& layer, Position first, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * layer.row_bytes();
  std::vector<std::byte> rows(2 * bytes);
  layer.read_raw(first, count, rows.data(), rows.data() + bytes);
  return rows;
}

}  // namespace outrider
