#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "common/base/random.h"
#include "common/model/block_drafter/block_config.h"
#include "common/model/checkpoint/model_files.h"
#include "common/wire/messages/messages.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {

/// The target of a small random drafter, such as "block/dspark" in tests/goldens.
inline ModelFiles target_of(std::string_view drafter) {
  return model_at(in_source("tests/goldens") /
                  (drafter.starts_with("deepspec") ? "unified-12b/backbone" : "e4b/backbone"));
}

/// A row of a text's hidden states, any numbers.
inline std::vector<float> row_of(std::uint64_t text, Position at, std::int64_t width) {
  CounterRng rng(text * 1000 + static_cast<std::uint64_t>(at));
  std::vector<float> row(static_cast<std::size_t>(width));
  for (float& x : row) x = static_cast<float>(2 * rng.uniform() - 1);
  return row;
}

/// The token at a position of the text.
inline TokenId token_of(std::uint64_t text, Position at, std::int64_t vocab) {
  CounterRng rng(text * 1000 + static_cast<std::uint64_t>(at) + 1'000'000);
  return static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(vocab)));
}

/// A text's rows [from, to) with their tokens, as a coordinator forwards them.
inline KvRows rows_of(std::uint64_t text, const BlockConfig& config, Position from, Position to) {
  std::vector<float> halves[2];
  for (Position at = from; at < to; ++at) {
    const std::vector<float> row = row_of(text, at, config.target_row());
    const auto middle = row.begin() + std::ssize(row) / 2;
    halves[0].insert(halves[0].end(), row.begin(), middle);
    halves[1].insert(halves[1].end(), middle, row.end());
  }
  const auto tensor = [&](std::vector<float> numbers) {
    const auto owner = std::make_shared<const std::vector<float>>(std::move(numbers));
    return WireTensor{.dtype = DType::kF32,
                      .shape = {to - from, std::ssize(config.hidden_layers), config.hidden_size / 2},
                      .data = SharedBytes(owner, std::as_bytes(std::span(*owner)))};
  };
  std::vector<TokenId> tokens;
  for (Position at = from; at < to; ++at) tokens.push_back(token_of(text, at, config.vocab_size));
  return {.from = from,
          .to = to,
          .donors = {{from, tensor(std::move(halves[0])), tensor(std::move(halves[1]))}},
          .tokens = std::move(tokens)};
}

}  // namespace outrider
