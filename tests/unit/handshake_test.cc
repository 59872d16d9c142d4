#include "coordinator-node/handshake.h"

#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "common/compute/tensor/decode.h"
#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

TEST(PairFacts, MismatchNamesBothSides) {
  PairFacts other = small_facts();
  EXPECT_EQ(mismatch(small_facts(), other), std::nullopt);
  other.vocab_size = 99;
  EXPECT_EQ(*mismatch(small_facts(), other), "vocab_size: verifier has 100, drafter has 99");
  other = small_facts();
  other.donors[1].layer = 3;
  EXPECT_NE(mismatch(small_facts(), other)->find("layer 3"), std::string::npos);
  other = small_facts();
  other.embedding_fingerprint = 8;
  EXPECT_NE(mismatch(small_facts(), other)->find("fingerprint"), std::string::npos);
  other = small_facts();
  other.context_max = 5;  // the verifier's holds
  EXPECT_EQ(mismatch(small_facts(), other), std::nullopt);
}

TEST(PairFacts, ADrafterThatNeedsTokensMustMeanTheSameByThem) {
  PairFacts verifier = small_facts();
  verifier.tokenizer_fingerprint = 5;
  PairFacts drafter = token_hello().facts;
  const auto why = [&] { return mismatch(verifier, drafter, "drafter", DraftInput::kTokens).value_or(""); };
  EXPECT_EQ(why(), "");
  drafter.tokenizer_fingerprint = 6;
  EXPECT_EQ(why(), "tokenizer fingerprint: verifier has 0000000000000005, drafter has 0000000000000006");
  drafter.vocab_size = 99;
  EXPECT_EQ(why(), "vocab_size: verifier has 100, drafter has 99");
  EXPECT_NE(mismatch(verifier, token_hello().facts), std::nullopt) << "an assistant needs more";
}

TEST(PairFacts, ABlockDrafterNeedsTheRowsThatAreKept) {
  const auto with_layers = [](const std::vector<int>& layers) {
    PairFacts facts = small_facts();
    facts.donors = {hidden_rows_donor(layers, 4)};
    return facts;
  };
  const PairFacts verifier = with_layers({1, 4});
  EXPECT_EQ(mismatch(verifier, with_layers({1, 4})), std::nullopt);
  for (const std::vector<int>& other : {std::vector{4, 1}, {1, 5}, {1}})
    EXPECT_NE(mismatch(verifier, with_layers(other)).value_or("").find("what is sent: verifier has hidden rows of 2"),
              std::string::npos);
  PairFacts huge = with_layers({1, 4});
  huge.donors[0].head_dim = std::numeric_limits<std::int32_t>::max();
  EXPECT_NE(mismatch(verifier, huge).value_or("").find("4294967294 numbers each"), std::string::npos);
  EXPECT_NE(mismatch(verifier, small_facts()).value_or("").find("drafter has K/V rows of an assistant's"),
            std::string::npos);
  EXPECT_EQ(mismatch(verifier, token_hello().facts, "drafter", DraftInput::kTokens), std::nullopt);
}

TEST(PairFacts, RowsOfTokensAreOfTheVocabulary) {
  const auto check = [](KvRows kv) { return check_rows(small_facts(), kv, DraftInput::kTokens).has_value(); };
  EXPECT_TRUE(check({.from = 2, .to = 4, .tokens = {0, 99}}));
  EXPECT_FALSE(check({.from = 2, .to = 4, .tokens = {0, 100}}));
  EXPECT_FALSE(check(rows(2, 4))) << "rows of the target";
  EXPECT_FALSE(check_rows(small_facts(), {.from = 2, .to = 4, .tokens = {0, 1}})) << "tokens for an assistant";
  EXPECT_FALSE(KvRows({.from = 2, .to = 4, .tokens = {1}}).settle());
  EXPECT_FALSE(KvRows({.from = 2, .to = 4}).settle());
  EXPECT_EQ(rows_from({.from = 2, .to = 4, .tokens = {5, 6}}, 3).tokens, std::vector<TokenId>{6});
}

TEST(PairFacts, RowsMustFitTheHandshakeAndReachTheWindow) {
  EXPECT_TRUE(check_rows(small_facts(), rows(0, 9)));
  KvRows late = rows(0, 9);
  late.donors[0] = {7, zeros({2, 1, 2}), zeros({2, 1, 2})};  // a draft at 9 sees rows 5..8
  EXPECT_FALSE(check_rows(small_facts(), late));
  KvRows wide = rows(0, 9);
  wide.donors[1].value = zeros({9, 2, 2});
  EXPECT_FALSE(check_rows(small_facts(), wide));
  KvRows one = rows(0, 9);
  one.donors.pop_back();
  EXPECT_FALSE(check_rows(small_facts(), one));
}

TEST(KvCost, PositionsAreTheMostThatFit) {
  for (const KvCost cost : {KvCost{.bytes_per_position = 100},
                            KvCost{.bytes_per_position = 100, .ring_bytes_per_position = 50, .ring_rows = 10},
                            KvCost{.ring_bytes_per_position = 50, .ring_rows = 10}, KvCost{}}) {
    for (const std::int64_t bytes : {0, 99, 149, 150, 499, 500, 1499, 1500, 1599, 1600, 1 << 20}) {
      const Position most = cost.positions(bytes);
      EXPECT_LE(most == std::numeric_limits<Position>::max() ? cost.bytes(1000) : cost.bytes(most), bytes);
      if (most != std::numeric_limits<Position>::max()) {
        EXPECT_GT(cost.bytes(most + 1), bytes);
      }
    }
  }
}

WireTensor filled(std::vector<std::int64_t> shape, float value) {
  const std::size_t count = zeros(shape).data.bytes().size() / sizeof(float);
  const auto owner = std::make_shared<std::vector<float>>(count);
  owner->back() = value;
  return {.dtype = DType::kF32, .shape = std::move(shape), .data = {owner, std::as_bytes(std::span(*owner))}};
}

TEST(DonorRows, HoldFiniteNumbersOnly) {
  for (const float value : {1e38f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    KvRows kv = rows(0, 9);
    kv.donors[1].value = filled({9, 1, 2}, value);
    EXPECT_EQ(check_rows(small_facts(), kv).has_value(), std::isfinite(value)) << value;
    EXPECT_EQ(check_hidden(small_facts(), filled({2}, value)).has_value(), std::isfinite(value)) << value;
  }
  EXPECT_FALSE(check_hidden(small_facts(), zeros({3})));
  EXPECT_FALSE(check_hidden(small_facts(), zeros({1, 2})));
}

TEST(DonorRows, MayBeRoundedOfWhateverTypeTheModelIs) {
  PairFacts facts = small_facts();
  facts.hidden_size = 64;
  for (DonorFacts& donor : facts.donors) donor.head_dim = 32;
  const auto rounded = [](std::vector<std::int64_t> shape, DType type, float value) {
    const WireTensor floats = filled(shape, value);
    const std::span<const std::byte> bytes = floats.data.bytes();
    const std::span<const float> numbers(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
    const auto owner = std::make_shared<std::vector<std::byte>>(stored_bytes(type, numbers.size()));
    encode(type, numbers, owner->data());
    return WireTensor{.dtype = type, .shape = std::move(shape), .data = {owner, *owner}};
  };
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    for (const float value : {1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      KvRows kv{.from = 0, .to = 2, .donors = {}};
      for (int i = 0; i < 2; ++i)
        kv.donors.push_back({0, rounded({2, 1, 32}, type, 1), rounded({2, 1, 32}, type, value)});
      EXPECT_EQ(check_rows(facts, kv).has_value(), std::isfinite(value)) << value;
      EXPECT_EQ(check_hidden(facts, rounded({64}, type, value)).has_value(), std::isfinite(value)) << value;
      kv.donors[1].key = rounded({2, 1, 64}, type, 1);
      EXPECT_FALSE(check_rows(facts, kv)) << "of another size";
    }
  }
  EXPECT_FALSE(check_hidden(facts, rounded({32}, DType::kQ8_0, 1)));
  WireTensor halves = filled({32}, 0);
  halves.dtype = DType::kF16;
  halves.shape = {64};
  EXPECT_FALSE(check_hidden(facts, halves)) << "of no form";
}

TEST(DonorRows, WhatIsNotWholeBlocksTravelsAsItIs) {
  EXPECT_EQ(wire_dtype(WireForm::kExact, DType::kBf16, 256), DType::kBf16);
  EXPECT_EQ(wire_dtype(WireForm::kInt8, DType::kBf16, 256), DType::kQ8_0);
  EXPECT_EQ(wire_dtype(WireForm::kInt4, DType::kF32, 32), DType::kQ4_0);
  EXPECT_EQ(wire_dtype(WireForm::kInt4, DType::kF32, 48), DType::kF32);
}

}  // namespace
}  // namespace outrider
