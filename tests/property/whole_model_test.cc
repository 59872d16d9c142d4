// A whole model as a drafter: whatever was drafted, rejected and drafted ahead before, and whoever else is in a pass,
// its drafts are what it would say after the committed tokens by itself.
#include "drafter-node/families.h"

#include <algorithm>
#include <array>

#include "common/compute/kernels/ops.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/gemma4/backbone.h"
#include "drafter-node/draft_engine.h"
#include "tests/support/model_at.h"
#include "tests/support/test_assistant.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

/// Counts what the engine asks a model, and the passes that this takes.
class CountingModel final : public DraftModel {
 public:
  /// @param guesses_likeliest  its assistant guesses so, whatever the round draws with
  CountingModel(std::unique_ptr<DraftModel> model, std::int64_t* points, std::int64_t* passes = nullptr,
                bool guesses_likeliest = false)
      : model_(std::move(model)), points_(points), passes_(passes), guesses_likeliest_(guesses_likeliest) {}
  DraftTraits traits() const override { return model_->traits(); }
  std::int64_t vocab_size() const override { return model_->vocab_size(); }
  std::unique_ptr<DraftSequence> open() const override { return model_->open(); }
  bool step_each(std::span<const DraftPoint> points, const VisitPoint& visit,
                 const std::function<void()>& between_steps) override {
    *points_ += std::ssize(points);
    std::vector<DraftPoint> asked(points.begin(), points.end());
    for (DraftPoint& point : asked)
      if (guesses_likeliest_) point.choose = {};
    const bool passed = model_->step_each(asked, visit, between_steps);
    if (passes_ != nullptr) *passes_ += int{passed};
    return passed;
  }

 private:
  std::unique_ptr<DraftModel> model_;
  std::int64_t* points_;
  std::int64_t* passes_;
  bool guesses_likeliest_;
};

/// The model alone, on a cache of its own: what the drafter must not differ from.
class Reference {
 public:
  explicit Reference(const TestPair& pair) : model_(load_backbone(pair, 16)) {}
  const TextConfig& config() const { return model_->config(); }
  /// Scores after a text, with the softcap.
  std::vector<float> scores(std::span<const TokenId> tokens) {
    KvCache cache = model_->make_cache();
    std::vector<float> scores = prefill(*model_, cache, tokens).back().logits;
    if (const float cap = config().final_logit_softcapping; cap > 0)
      softcap_in_place(Matrix<float>(scores.data(), {1, std::ssize(scores)}), cap);
    return scores;
  }
  std::vector<TokenId> greedy(std::vector<TokenId> tokens, std::size_t count) {
    std::vector<TokenId> drafts;
    KvCache cache = model_->make_cache();
    OutputRow last = prefill(*model_, cache, tokens).back();
    for (;;) {
      drafts.push_back(static_cast<TokenId>(argmax(last.logits)));
      if (drafts.size() == count) return drafts;
      last = forward(*model_, cache, std::span(drafts).last(1)).back();
    }
  }

 private:
  std::unique_ptr<Backbone> model_;
};

std::unique_ptr<DraftModel> load_whole(const TestPair& pair, bool cascade = false) {
  return make_draft_model(load_backbone(pair, kWholeModelRows), cascade ? load_assistant(pair) : nullptr);
}

/// A text as its coordinator goes on with it.
struct Text {
  SessionId session;
  std::vector<TokenId> tokens;  ///< committed, then the one that drafts follow
  Position sent = 0;
  std::uint32_t round = 0;
  std::vector<Candidates> drafts = {};  ///< of the last round, what was asked for first
  bool over = true;
  Position base() const { return std::ssize(tokens) - 1; }
  DraftTurn turn() const { return {session, RoundId{round}, base()}; }

  /// What the drafter is sent for the next round.
  void begin(DraftEngine& engine, Draft draft) {
    engine.run({.session = session,
                .kv = {.from = sent, .to = base(), .tokens = {tokens.begin() + sent, tokens.begin() + base()}}});
    sent = base();
    ++round;
    draft.token = tokens.back();
    engine.run({.kind = DraftWork::Kind::kDraft,
                .session = session,
                .round = RoundId{round},
                .base = base(),
                .draft = std::move(draft)});
    drafts.clear();
    over = false;
  }
  void take(DraftProgress progress) {
    over = !progress.more;
    for (Candidates& made : progress.drafts) {
      made.draft_ns = made.passes = made.pass_rows = 0;
      drafts.push_back(std::move(made));
    }
  }
  void finish(DraftEngine& engine) {
    while (!over) take(std::move(engine.step(std::array{turn()})[0]));
  }
  /// A verdict keeps so many of the drafts, and adds a token.
  void verdict(std::size_t kept, TokenId next) {
    const std::vector<TokenId>& made = drafts.at(0).tokens;
    tokens.insert(tokens.end(), made.begin(), made.begin() + static_cast<std::ptrdiff_t>(std::min(kept, made.size())));
    tokens.push_back(next);
  }
};

std::vector<TokenId> with(std::vector<TokenId> tokens, std::span<const TokenId> more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

std::vector<TestPair> some_pairs() {
  std::vector<TestPair> pairs = every_pair();
  std::erase_if(pairs, [](const TestPair& pair) {
    return pair.type != WeightType::kBf16 && !(pair.name == std::string("nano") && pair.type == WeightType::kInt4);
  });
  return pairs;
}

/// Each alone, and as a cascade with its assistant, which may not change a bit.
class WholeModelProperty : public testing::TestWithParam<std::tuple<TestPair, bool>> {
 protected:
  const TestPair& pair() const { return std::get<0>(GetParam()); }
  std::unique_ptr<DraftModel> load() const { return load_whole(pair(), std::get<1>(GetParam())); }
};
std::vector<std::tuple<TestPair, bool>> alone_and_cascades() {
  std::vector<std::tuple<TestPair, bool>> all;
  for (const TestPair& pair : some_pairs()) {
    all.emplace_back(pair, false);
    if (pair.type == WeightType::kBf16) all.emplace_back(pair, true);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Each, WholeModelProperty, testing::ValuesIn(alone_and_cascades()),
                         [](const auto& each) {
                           return pair_name(testing::TestParamInfo<TestPair>(std::get<0>(each.param), each.index)) +
                                  (std::get<1>(each.param) ? "Cascade" : "");
                         });

TEST_P(WholeModelProperty, DraftsAndWhatIsMadeAheadAreTheModelsOwn) {
  Reference reference(pair());
  std::int64_t points = 0;
  DraftEngine engine(std::make_unique<CountingModel>(load(), &points), {});
  CounterRng rng(3);
  Text text{.session = SessionId{1}, .tokens = random_tokens(rng, 70, reference.config())};
  std::int64_t guesses = 0;
  std::optional<Candidates> known;
  for (int i = 0; i < 8; ++i) {
    Draft draft{.draft_length = static_cast<std::int32_t>(1 + rng.below(6)),
                .ahead = static_cast<std::int32_t>(rng.below(4))};
    if (known) draft.known = known->tokens, draft.draft_length = static_cast<std::int32_t>(known->tokens.size());
    const std::int64_t before = points;
    text.begin(engine, draft);
    text.finish(engine);
    std::span<const Candidates> ahead = text.drafts;
    if (!known) {
      ASSERT_FALSE(text.drafts.empty());
      EXPECT_EQ(text.drafts[0].tokens, reference.greedy(text.tokens, static_cast<std::size_t>(draft.draft_length)));
      EXPECT_GE(points, before + (draft.ahead > 0 ? 0 : 1));
      ahead = ahead.subspan(1);
    } else {
      text.drafts.insert(text.drafts.begin(), *known);
      ahead = std::span<const Candidates>(text.drafts).subspan(1);
    }
    known.reset();
    for (const Candidates& guess : ahead) {
      ++guesses;
      EXPECT_EQ(guess.tokens, reference.greedy(with(text.tokens, guess.after), guess.tokens.size()));
    }
    // The model is its own target as often as not.
    const std::vector<TokenId> right =
        with(text.drafts[0].tokens, reference.greedy(with(text.tokens, text.drafts[0].tokens), 1));
    const std::size_t kept = rng.below(2) == 0 ? right.size() - 1 : rng.below(right.size());
    const TokenId next = rng.below(4) > 0 ? right[kept] : random_tokens(rng, 1, reference.config())[0];
    std::vector<TokenId> emitted(text.drafts[0].tokens.begin(),
                                 text.drafts[0].tokens.begin() + static_cast<std::ptrdiff_t>(kept));
    emitted.push_back(next);
    for (const Candidates& guess : ahead)
      if (guess.after == emitted) known = guess;
    text.verdict(kept, next);
  }
  EXPECT_GT(guesses, 3);
}

// Along the way that a verdict confirms nothing is computed twice, however far ahead the drafter went.
TEST(WholeModel, NoPassIsTakenForWhatWasSaidBefore) {
  const TestPair nano{"nano", "models/nano/backbone", "models/nano/assistant", WeightType::kBf16};
  Reference reference(nano);
  std::int64_t points = 0;
  DraftEngine engine(std::make_unique<CountingModel>(load_whole(nano), &points), {});
  CounterRng rng(4);
  int confirmed = 0;
  for (std::uint64_t i = 1; i <= 40 && confirmed < 3; ++i) {
    Text text{.session = SessionId{i}, .tokens = random_tokens(rng, 5, reference.config())};
    text.tokens = with(text.tokens, reference.greedy(text.tokens, 20));
    text.begin(engine, {.draft_length = 4, .ahead = 1});
    text.finish(engine);
    ASSERT_EQ(text.drafts.size(), 2u);
    const Candidates guess = text.drafts[1];
    // Where it is sure of itself the likeliest end is that all drafts hold.
    if (guess.after.size() != 5) continue;
    text.verdict(4, guess.after.back());
    const std::int64_t before = points;
    text.begin(engine, {.draft_length = 4, .ahead = 1, .known = guess.tokens});
    while (text.drafts.empty()) text.take(std::move(engine.step(std::array{text.turn()})[0]));
    if (text.drafts[0].after.size() != 5) continue;
    ++confirmed;
    EXPECT_EQ(points, before) << "it had gone on along its own path";
    EXPECT_EQ(text.drafts[0].tokens, reference.greedy(with(text.tokens, text.drafts[0].after), 4));
    // Where the coordinator has lost the drafts it asks for them, and they are there.
    text.begin(engine, {.draft_length = 4, .ahead = 1});
    text.take(std::move(engine.step(std::array{text.turn()})[0]));
    ASSERT_FALSE(text.drafts.empty());
    EXPECT_EQ(text.drafts[0].tokens, guess.tokens);
    EXPECT_EQ(points, before);
  }
  EXPECT_EQ(confirmed, 3);
}

TEST_P(WholeModelProperty, TextsInOnePassGetWhatTheyGetAlone) {
  DraftEngine engine(load(), {});
  const TextConfig config = load_backbone(pair(), 1)->config();
  CounterRng rng(5);
  std::vector<Text> alone, together;
  for (std::uint64_t i = 1; i <= 8; ++i)
    alone.push_back(
        {.session = SessionId{i}, .tokens = random_tokens(rng, static_cast<std::int64_t>(1 + rng.below(90)), config)});
  together = alone;
  for (Text& text : together) text.session = SessionId{static_cast<std::uint64_t>(text.session) + 100};
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < alone.size(); ++i) {
      Draft draft{.draft_length = static_cast<std::int32_t>(1 + rng.below(5)),
                  .ahead = static_cast<std::int32_t>(rng.below(3))};
      if (round == 0)
        draft.sampling = SamplingParams{.temperature = 0.8f, .seed = i, .rule = static_cast<SamplingRule>(i % 3)};
      else
        draft.sampling_known = true;
      alone[i].begin(engine, draft);
      alone[i].finish(engine);
      together[i].begin(engine, draft);
    }
    while (std::ranges::any_of(together, [](const Text& text) { return !text.over; })) {
      std::vector<DraftTurn> turns;
      std::vector<Text*> texts;
      for (Text& text : together) {
        if (text.over || rng.below(4) == 0) continue;
        turns.push_back(text.turn());
        texts.push_back(&text);
      }
      std::vector<DraftProgress> progress = engine.step(turns);
      for (std::size_t i = 0; i < texts.size(); ++i) texts[i]->take(std::move(progress[i]));
    }
    for (std::size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(together[i].drafts, alone[i].drafts) << "text " << i << ", round " << round;
      const std::size_t kept = rng.below(alone[i].drafts[0].tokens.size() + 1);
      const TokenId next = random_tokens(rng, 1, config)[0];
      alone[i].verdict(kept, next);
      together[i].verdict(kept, next);
    }
  }
}

// What a draft is said to be drawn from is the model's distribution, softcap and all, and under `match` it is drawn
// with the target's own noise.
TEST_P(WholeModelProperty, DraftsAreDrawnFromTheModelsOwnDistribution) {
  Reference reference(pair());
  DraftEngine engine(load(), {});
  CounterRng rng(6);
  SamplingScratch scratch;
  for (const SamplingRule rule : {SamplingRule::kMatch, SamplingRule::kRejection}) {
    Text text{.session = SessionId{1 + static_cast<std::uint64_t>(rule)},
              .tokens = random_tokens(rng, 30, reference.config())};
    const SamplingParams sampling{.temperature = 0.9f, .top_k = 20, .seed = 11, .rule = rule};
    text.begin(engine, {.draft_length = 4, .sampling = sampling, .index = 3});
    text.finish(engine);
    const Candidates& made = text.drafts.at(0);
    ASSERT_EQ(made.q.size(), rule == SamplingRule::kRejection ? 4u : 0u);
    for (std::size_t i = 0; i < 4; ++i) {
      Distribution expected;
      make_distribution(reference.scores(with(text.tokens, std::span(made.tokens).first(i))), sampling, scratch,
                        &expected);
      const bool rejection = rule == SamplingRule::kRejection;
      if (rejection) {
        EXPECT_EQ(made.q[i], expected) << i;
      }
      const Noise noise(11, 3 + static_cast<std::int64_t>(i), rejection ? Noise::Stream::kDraft : Noise::Stream::kDraw);
      EXPECT_EQ(made.tokens[i], draw(expected, noise)) << i;
    }
  }
}

// A cascade's drafts are the model's own, in fewer passes: under `match` too, because its assistant draws with the same
// noise as the model. Likeliest guesses would change no draft either, but hold less often.
TEST(WholeModel, ItsOwnAssistantSavesPasses) {
  const TestPair nano{"nano", "models/nano/backbone", "models/nano/assistant", WeightType::kBf16};
  Reference reference(nano);
  for (const std::optional<SamplingParams>& sampling :
       {std::optional<SamplingParams>(), std::optional(SamplingParams{.temperature = 1.5f, .seed = 9})}) {
    std::int64_t points = 0, passes[3] = {}, drafts = 0;
    DraftEngine alone(std::make_unique<CountingModel>(load_whole(nano), &points, &passes[0]), {});
    DraftEngine cascade(std::make_unique<CountingModel>(load_whole(nano, true), &points, &passes[1]), {});
    DraftEngine likeliest(std::make_unique<CountingModel>(load_whole(nano, true), &points, &passes[2], true), {});
    CounterRng rng(12);
    Text text{.session = SessionId{1}, .tokens = random_tokens(rng, 5, reference.config())};
    text.tokens = with(text.tokens, reference.greedy(text.tokens, 30));
    Text other = text, third = text;
    std::int64_t index = 0;
    for (int round = 0; round < 24; ++round) {
      Draft draft{.draft_length = static_cast<std::int32_t>(1 + rng.below(12)), .index = index};
      if (round == 0)
        draft.sampling = sampling;
      else
        draft.sampling_known = sampling.has_value();
      for (auto [engine, drafted] : {std::pair(&alone, &text), {&cascade, &other}, {&likeliest, &third}}) {
        drafted->begin(*engine, draft);
        drafted->finish(*engine);
      }
      ASSERT_EQ(other.drafts, text.drafts) << "round " << round;
      ASSERT_EQ(third.drafts, text.drafts) << "round " << round;
      const std::vector<TokenId>& made = text.drafts.at(0).tokens;
      drafts += std::ssize(made);
      // Half of the rounds keep all drafts; a rejected one is replaced by a token that was not drafted.
      const std::size_t kept = rng.below(2) == 0 ? made.size() : rng.below(made.size());
      const TokenId next = kept == made.size() ? reference.greedy(with(text.tokens, made), 1)[0]
                                               : (made[kept] + 1) % static_cast<TokenId>(reference.config().vocab_size);
      text.verdict(kept, next);
      other.verdict(kept, next);
      third.verdict(kept, next);
      index += static_cast<std::int64_t>(kept) + 1;
    }
    EXPECT_GE(passes[0], drafts);
    EXPECT_LT(passes[1], drafts * 9 / 10) << "of " << drafts << " drafts" << (sampling ? ", sampled" : "");
    EXPECT_EQ(passes[1] < passes[2], sampling.has_value()) << passes[1] << " and " << passes[2];
  }
}

TEST(WholeModel, ALongPromptIsComputedPieceByPieceBeforeAnybodyAsks) {
  const TestPair nano{"nano", "models/nano/backbone", "models/nano/assistant", WeightType::kBf16};
  Reference reference(nano);
  DraftEngine engine(load_whole(nano), {});
  CounterRng rng(7);
  Text text{.session = SessionId{1}, .tokens = random_tokens(rng, 3 * kCatchUpRows + 9, reference.config())};
  engine.run({.session = text.session,
              .kv = {.from = 0, .to = text.base(), .tokens = {text.tokens.begin(), text.tokens.end() - 1}}});
  text.sent = text.base();
  std::vector<std::int64_t> behind;
  std::size_t layers = 0;
  for (bool more = true; more;) {
    const DraftProgress progress = engine.step(std::array{text.turn()}, [&] { ++layers; })[0];
    behind.push_back(progress.behind);
    more = progress.more;
    EXPECT_TRUE(progress.drafts.empty());
  }
  EXPECT_EQ(behind, (std::vector<std::int64_t>{2 * kCatchUpRows + 8, kCatchUpRows + 8, 8, 0}));
  EXPECT_EQ(layers, behind.size() * reference.config().layers.size()) << "a drafter's heartbeats are in time";
  text.begin(engine, {.draft_length = 3});
  text.finish(engine);
  EXPECT_EQ(text.drafts.at(0).tokens, reference.greedy(text.tokens, 3));
}

}  // namespace
}  // namespace outrider
