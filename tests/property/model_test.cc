// Whatever way a text got into the caches, the model gives the same bits: in chunks, beside other
// sessions, after drafts that were rejected; and a drafter that was sent the rows in pieces drafts the
// same. Greedy losslessness is this and the verification rule (docs/numerics.md).
#include <cmath>
#include <numeric>

#include "common/base/token_tree.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/team.h"
#include "common/compute/kernels/team_sizer.h"
#include "common/model/checkpoint/pack.h"
#include "tests/support/model_at.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

constexpr std::int64_t kRowsMax = 72;  // beyond kPromptHeight

class ModelProperty : public testing::TestWithParam<TestPair> {
 protected:
  /// Loaded once per pair: packing takes longer than most tests.
  static Backbone& backbone() {
    static std::string loaded;
    static std::unique_ptr<Backbone> model;
    if (const std::string name = pair_name({GetParam(), 0}); loaded != name) {
      model.reset();
      model = load_backbone(GetParam(), kRowsMax);
      loaded = name;
    }
    return *model;
  }
  const TextConfig& config() const { return backbone().config(); }
  bool tiny() const { return config().sliding_window < 16; }
  /// Fewer where each takes ten times as long.
  std::uint64_t seeds() const { return !tiny() ? 1 : active_isa() == Isa::kScalar ? 2 : 6; }
  /// Long enough that the sliding rings (W + 1 + kRowsMax rows) wrap: twice over where that is cheap.
  std::int64_t long_text() const {
    const std::int64_t ring = drafter_window(config().sliding_window) + kRowsMax;
    return tiny() ? 2 * ring + 20 : ring + 5;
  }
  static std::int64_t between(CounterRng& rng, std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
  }
};
INSTANTIATE_TEST_SUITE_P(Each, ModelProperty, testing::ValuesIn(every_pair()), pair_name);

TEST_P(ModelProperty, APromptInAnyChunksGivesTheSameBits) {
  for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CounterRng rng(seed);
    const std::vector<TokenId> text = random_tokens(rng, long_text(), config());
    KvCache reference = backbone().make_cache(), chunked = backbone().make_cache();
    const std::vector<OutputRow> expected = prefill(backbone(), reference, text);
    for (std::size_t at = 0; at < text.size();) {
      const std::int64_t most = rng.below(3) == 0 ? kRowsMax : 9;
      const auto rows = std::min<std::size_t>(static_cast<std::size_t>(between(rng, 1, most)), text.size() - at);
      const std::vector<OutputRow> actual = forward(backbone(), chunked, std::span(text).subspan(at, rows));
      for (std::size_t r = 0; r < rows; ++r)
        ASSERT_TRUE(same_bits(actual[r], expected[at + r])) << "position " << at + r << ", chunk of " << rows;
      at += rows;
    }
  }
}

// A sizer that tries much, on a team of more threads than the host may have cores.
TEST_P(ModelProperty, ThreadsThatAreFoundGiveTheSameBits) {
  CounterRng rng(11);
  const std::vector<TokenId> text = random_tokens(rng, 40, config());
  const auto rows_and_steps = [&] {
    KvCache cache = backbone().make_cache();
    std::vector<OutputRow> outputs = prefill(backbone(), cache, text);
    for (std::size_t i = 0; i < text.size(); ++i)
      for (OutputRow& row : forward(backbone(), cache, std::span(text).subspan(i, 1)))
        outputs.push_back(std::move(row));
    return outputs;
  };
  const int threads = team_size();
  set_team_size(1);
  const std::vector<OutputRow> expected = rows_and_steps();
  TeamSizer sizer(5, config().layers.size());
  backbone().set_team_sizer(&sizer);
  const std::vector<OutputRow> actual = rows_and_steps();
  backbone().set_team_sizer(nullptr);
  set_team_size(threads);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t r = 0; r < actual.size(); ++r) ASSERT_TRUE(same_bits(actual[r], expected[r])) << "row " << r;
}

TEST_P(ModelProperty, HowManyRowsWantOutputsDoesNotChangeThem) {
  CounterRng rng(1);
  const std::vector<TokenId> text = random_tokens(rng, 40, config());
  KvCache reference = backbone().make_cache();
  const std::vector<OutputRow> expected = prefill(backbone(), reference, text);
  for (const std::int64_t outputs : {0, 1, 2, 7, 39}) {
    KvCache cache = backbone().make_cache();
    const Segment segment{&cache, text, outputs};
    const std::vector<OutputRow> actual = copy_rows(backbone().forward({&segment, 1}));
    ASSERT_EQ(static_cast<std::int64_t>(actual.size()), outputs);
    for (std::size_t r = 0; r < actual.size(); ++r)
      ASSERT_TRUE(same_bits(actual[r], expected[40 - actual.size() + r])) << r << " of " << outputs;
  }
}

// Rounds of a token and drafts, of which a prefix is kept, over several windows.
TEST_P(ModelProperty, RejectedRowsLeaveNoTrace) {
  for (std::uint64_t seed = 100; seed < 100 + seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CounterRng rng(seed);
    const std::vector<TokenId> text = random_tokens(rng, long_text(), config());
    KvCache reference = backbone().make_cache(), cache = backbone().make_cache();
    const std::vector<OutputRow> expected = prefill(backbone(), reference, text);
    while (cache.length() < static_cast<Position>(text.size())) {
      const Position base = cache.length();
      // Now and then as many rejected rows as the rings have slack for, or the whole round.
      const std::int64_t rows = rng.below(12) == 0 ? kRowsMax : between(rng, 2, 9);
      const std::int64_t kept =
          std::min<std::int64_t>(rng.below(6) == 0 ? 0 : between(rng, 1, std::min<std::int64_t>(rows, 6)),
                                 static_cast<std::int64_t>(text.size()) - base);
      std::vector<TokenId> tokens = random_tokens(rng, rows, config());
      std::copy_n(text.begin() + base, kept, tokens.begin());
      const std::vector<OutputRow> actual = forward(backbone(), cache, tokens);
      for (std::int64_t r = 0; r < kept; ++r) {
        ASSERT_TRUE(same_bits(actual[static_cast<std::size_t>(r)], expected[static_cast<std::size_t>(base + r)]))
            << "position " << base + r << ", " << rows << " rows";
      }
      cache.truncate(base + kept);
    }
    // The donors' rows, as far back as a drafter looks, are those of the fresh prefill.
    for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
      const std::size_t donor = backbone().donor_cache(kind);
      const std::int64_t count = kind == AttentionKind::kFull
                                     ? cache.length()
                                     : std::min(cache.length(), drafter_window(config().sliding_window));
      EXPECT_EQ(raw_rows(cache.layer(donor), cache.length() - count, count),
                raw_rows(reference.layer(donor), cache.length() - count, count));
    }
  }
}

std::vector<TokenId> tokens_of(const TokenTree& tree, std::int64_t row, std::span<const TokenId> tokens) {
  std::vector<TokenId> path;
  for (const std::int64_t at : tree.path(row)) path.push_back(tokens[static_cast<std::size_t>(at)]);
  return path;
}

/// Rounds of token trees beside a chain of another text, over several windows: every row is that of the chain of its
/// path, and of what is kept nothing shows that it grew in a tree.
TEST_P(ModelProperty, ARowOfATreeIsThatOfTheChainOfItsPath) {
  for (std::uint64_t seed = 400; seed < 400 + (seeds() + 1) / 2; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CounterRng rng(seed);
    const std::vector<TokenId> prompt = random_tokens(rng, between(rng, 1, 20), config());
    const std::vector<TokenId> other = random_tokens(rng, 400, config());
    KvCache cache = backbone().make_cache(), chain = backbone().make_cache(), beside = backbone().make_cache();
    prefill(backbone(), cache, prompt);
    prefill(backbone(), chain, prompt);
    const int rounds = tiny() ? 30 : 3;
    std::int64_t branches = 0;
    for (int round = 0; round < rounds; ++round) {
      const Position base = cache.length();
      const std::int64_t drafts = between(rng, 0, 24);
      const std::vector<TokenId> tokens = random_tokens(rng, drafts + 1, config());
      const std::vector<std::int32_t> depths = random_depths(rng, drafts);
      const TokenTree tree(drafts, depths);
      const auto rows = std::min<std::int64_t>(between(rng, 1, 5), std::ssize(other) - beside.length());
      const std::span<const TokenId> more =
          std::span(other).subspan(static_cast<std::size_t>(beside.length()), static_cast<std::size_t>(rows));
      const bool first = rng.below(2) == 0;
      std::vector<Segment> segments = {{&cache, tokens, drafts + 1, {}, depths}, {&beside, more, 0}};
      if (!first) std::swap(segments[0], segments[1]);
      const std::vector<OutputRow> actual = copy_rows(backbone().forward(segments));
      const auto kept = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(drafts) + 1));
      backbone().keep_path(segments, first ? 0 : 1, kept);
      for (std::int64_t row = 0; row <= drafts; ++row) {
        branches += row > 0 && tree.depth(row) <= tree.depth(row - 1);
        if (row % 4 != round % 4) continue;  // each costs a chain
        ASSERT_TRUE(same_bits(actual[static_cast<std::size_t>(row)],
                              forward(backbone(), chain, tokens_of(tree, row, tokens)).back()))
            << "row " << row << " of " << drafts + 1 << ", depth " << tree.depth(row) << ", base " << base;
        chain.truncate(base);
      }
      forward(backbone(), chain, tokens_of(tree, kept, tokens));
      ASSERT_EQ(cache.length(), chain.length());
      for (std::size_t layer = 0; layer < cache.layer_count(); ++layer) {
        const std::int64_t ring = cache.layer(layer).ring_rows();
        const std::int64_t seen =
            ring == 0 ? cache.length() : std::min(cache.length(), drafter_window(config().sliding_window));
        ASSERT_EQ(raw_rows(cache.layer(layer), cache.length() - seen, seen),
                  raw_rows(chain.layer(layer), chain.length() - seen, seen))
            << "layer " << layer << " after row " << kept;
      }
    }
    EXPECT_GT(branches, rounds);
  }
}

TEST_P(ModelProperty, SessionsInOneForwardAreAsAlone) {
  for (std::uint64_t seed = 200; seed < 200 + seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CounterRng rng(seed);
    struct Session {
      std::vector<TokenId> text;
      std::vector<OutputRow> expected;
      KvCache cache;
    };
    std::vector<Session> sessions;
    for (int s = 0; s < 5; ++s) {
      Session session{random_tokens(rng, between(rng, 5, tiny() ? 90 : 60), config()), {}, backbone().make_cache()};
      KvCache alone = backbone().make_cache();
      session.expected = prefill(backbone(), alone, session.text);
      sessions.push_back(std::move(session));
    }
    for (bool more = true; more;) {
      // Any of the sessions that have something left, in any order, with any number of rows and outputs.
      std::vector<Segment> segments;
      std::vector<std::pair<Session*, std::size_t>> wanted;  // session and position of each output row
      std::int64_t room = kRowsMax;
      const std::size_t first = rng.below(sessions.size());
      more = false;
      for (std::size_t i = 0; i < sessions.size(); ++i) {
        Session& s = sessions[(first + i) % sessions.size()];
        const auto at = static_cast<std::size_t>(s.cache.length());
        const auto left = static_cast<std::int64_t>(s.text.size() - at);
        more = more || left > 0;
        if (left == 0 || room == 0 || rng.below(4) == 0) continue;
        const std::int64_t rows =
            between(rng, 1, std::min({left, room, rng.below(3) == 0 ? kRowsMax : std::int64_t{5}}));
        const std::int64_t outputs = between(rng, 0, rows);
        segments.push_back({&s.cache, std::span(s.text).subspan(at, static_cast<std::size_t>(rows)), outputs});
        for (std::int64_t o = outputs; o > 0; --o) wanted.push_back({&s, at + static_cast<std::size_t>(rows - o)});
        room -= rows;
      }
      if (segments.empty()) continue;
      const std::vector<OutputRow> actual = copy_rows(backbone().forward(segments));
      ASSERT_EQ(actual.size(), wanted.size());
      for (std::size_t r = 0; r < actual.size(); ++r) {
        const auto& [session, position] = wanted[r];
        ASSERT_TRUE(same_bits(actual[r], session->expected[position]))
            << "session " << session - sessions.data() << ", position " << position << ", " << segments.size()
            << " sessions";
      }
    }
  }
}

/// Copies donor rows [from, to) of a backbone's cache, those of the sliding donor from `sliding_from` on.
void append(DonorReplica& replica, const Backbone& backbone, const KvCache& cache, Position sliding_from, Position from,
            Position to) {
  const auto copy = [&](AttentionKind kind, LayerKv& layer, Position first) {
    const std::vector<std::byte> rows = raw_rows(cache.layer(backbone.donor_cache(kind)), first, to - first);
    layer.write_raw(first, to - first, rows.data(), rows.data() + rows.size() / 2);
  };
  copy(AttentionKind::kSliding, replica.sliding, sliding_from);
  copy(AttentionKind::kFull, replica.full, from);
  replica.length = to;
}

TEST_P(ModelProperty, AReplicaFilledByDeltasDraftsAsOneFilledAtOnce) {
  const auto weights = open_weights(model_at(in_source(GetParam().backbone)), GetParam().type).value();
  const auto assistant =
      Assistant::load(model_at(in_source(GetParam().assistant)), config(), *weights, GetParam().type).value();
  const std::int64_t window = drafter_window(config().sliding_window);
  for (std::uint64_t seed = 300; seed < 300 + seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CounterRng rng(seed);
    const std::vector<TokenId> text = random_tokens(rng, long_text(), config());
    KvCache cache = backbone().make_cache();
    DonorReplica by_deltas = assistant->make_replica();
    while (cache.length() < static_cast<Position>(text.size())) {
      const Position from = cache.length();
      const std::int64_t left = static_cast<std::int64_t>(text.size()) - from;
      const std::int64_t rows = between(rng, 1, std::min(left, rng.below(4) == 0 ? kRowsMax : std::int64_t{9}));
      const OutputRow last =
          forward(backbone(), cache,
                  std::span(text).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(rows)))
              .back();
      const Position to = cache.length();
      // A delta longer than the window leaves out what no draft can see; or, as here now and then, does not.
      append(by_deltas, backbone(), cache, rng.below(2) == 0 ? from : std::max(from, to - window), from, to);
      if (rng.below(3) != 0 && to < static_cast<Position>(text.size())) continue;

      DonorReplica at_once = assistant->make_replica();
      append(at_once, backbone(), cache, std::max<Position>(0, to - window), 0, to);
      const TokenId token = text[static_cast<std::size_t>(rng.below(text.size()))];
      const Assistant::Step one = assistant->draft_step(token, last.hidden, by_deltas);
      const Assistant::Step other = assistant->draft_step(token, last.hidden, at_once);
      ASSERT_TRUE(same_bits(one.logits, other.logits)) << "position " << to;
      ASSERT_TRUE(same_bits(one.state, other.state)) << "position " << to;
      const std::vector<TokenId> drafts = assistant->draft({token, last.hidden, by_deltas, 5});
      ASSERT_EQ(drafts, assistant->draft({token, last.hidden, at_once, 5})) << "position " << to;
      ASSERT_EQ(drafts.size(), 5u);
      ASSERT_EQ(drafts.front(), one.token);
      // A stop token ends a draft, itself included; fewer steps give a prefix.
      const auto stop = std::find(drafts.begin(), drafts.end(), drafts[2]);
      ASSERT_EQ(assistant->draft({token, last.hidden, at_once, 5, {&drafts[2], 1}}),
                std::vector<TokenId>(drafts.begin(), stop + 1));
      ASSERT_EQ(assistant->draft({token, last.hidden, at_once, 2}),
                std::vector<TokenId>(drafts.begin(), drafts.begin() + 2));
    }
    ASSERT_GT(cache.length(), window) << "the replica's ring did not wrap";
  }
}

// As published: E2B's checkpoint of quantisation-aware training has no k_norm there, and no k_proj.
TEST(SharedKv, ALayerThatReadsAnothersNeedsNoKOfItsOwn) {
  const std::filesystem::path e2b = in_source("tests/goldens/e2b/backbone");
  const Checkpoint checkpoint = Checkpoint::open(e2b).value();
  const auto has = [&](int layer, const char* part) {
    return checkpoint.find(fmt::format("model.language_model.layers.{}.self_attn.{}.weight", layer, part)) != nullptr;
  };
  for (int layer = 0; layer < 10; ++layer)
    for (const char* const part : {"k_norm", "k_proj"}) EXPECT_EQ(has(layer, part), layer < 5) << layer << part;
  const auto backbone = Backbone::load(model_at(e2b), WeightType::kQ4, kRowsMax).value();
  KvCache cache = backbone->make_cache();
  CounterRng rng(9);
  const OutputRow last = forward(*backbone, cache, random_tokens(rng, 9, backbone->config())).back();
  EXPECT_TRUE(std::ranges::all_of(last.logits, [](float x) { return std::isfinite(x); }));
}

// A matrix that lies on the grid, and the table of its scales, which lies on none.
TEST(Q4Weights, KeepWhatIsOffTheGridAsItIsAlsoInAPack) {
  const std::filesystem::path golden = in_source("tests/goldens/quantized/w4a16");
  const TemporaryDir dir;
  const std::vector<WeightSource::Part> on{{"layers.0.proj.weight", 64}}, off{{"layers.0.proj.weight_scale", 64}};
  {
    const std::unique_ptr<PackWriter> writer = PackWriter::create(dir / "pack").value();
    const auto packing = packing_weights(open_weights(model_at(golden), WeightType::kQ4).value(), *writer);
    ASSERT_TRUE(packing->linear(WeightType::kQ4, 128, on));
    ASSERT_TRUE(packing->linear(WeightType::kQ4, 4, off));
    ASSERT_TRUE(writer->finish({.dtype = "q4", .source = "", .fingerprint = 1, .embedding_fingerprint = 1}));
  }
  Tensor x(kGemmHeight, 128);
  CounterRng rng(3);
  for (float& value : x.view()[0].span()) value = static_cast<float>(2 * rng.uniform() - 1);
  std::vector<std::vector<float>> products;
  for (const std::filesystem::path& path : {golden, dir / "pack"}) {
    const auto weights = open_weights(model_at(path), WeightType::kQ4).value();
    for (const auto& [parts, in, type] :
         {std::tuple(on, 128, WeightType::kQ4), std::tuple(off, 4, WeightType::kBf16)}) {
      const Linear linear = weights->linear(WeightType::kQ4, in, parts).value();
      EXPECT_EQ(linear.type(), type) << path;
      Tensor y(kGemmHeight, 64);
      linear.forward({x.view().data(), {1, in}}, y.view().rows(0, 1));
      products.emplace_back(y.view()[0].span().begin(), y.view()[0].span().end());
    }
  }
  EXPECT_TRUE(same_bits(products[0], products[2]));
  EXPECT_TRUE(same_bits(products[1], products[3]));
}

}  // namespace
}  // namespace outrider
