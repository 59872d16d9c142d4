// The drafter's engine: whoever else takes part in a forward pass, a text gets the drafts that it gets alone.
#include "drafter-node/draft_engine.h"

#include <cstring>
#include <string_view>

#include "common/base/token_tree.h"
#include "common/compute/tensor/decode.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/tokenizer/tokenizer.h"
#include "drafter-node/families.h"
#include "tests/support/compiled_grammar.h"
#include "tests/support/message_text.h"
#include "tests/support/test_assistant.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

WireTensor tensor_of(std::vector<std::byte> bytes, std::vector<std::int64_t> shape, DType dtype = DType::kF32) {
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return {.dtype = dtype, .shape = std::move(shape), .data = SharedBytes(owner, std::span(*owner))};
}

/// Numbers in (-1, 1), as floats or, if the model keeps its K/V so, as bfloat16.
std::vector<std::byte> random_numbers(CounterRng& rng, std::size_t count, std::size_t size) {
  std::vector<std::byte> bytes(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = std::bit_cast<std::array<std::byte, 4>>(static_cast<float>(2 * rng.uniform() - 1));
    std::memcpy(bytes.data() + i * size, value.data() + 4 - size, size);
  }
  return bytes;
}

/// Rows [from, to) of a text's donors.
KvRows random_rows(CounterRng& rng, const DonorReplica& replica, Position from, Position to, std::size_t size) {
  KvRows rows{.from = from, .to = to, .donors = {}};
  for (const LayerKv* layer : {&replica.sliding, &replica.full}) {
    const auto numbers = [&] {
      const std::size_t count = static_cast<std::size_t>(to - from) * layer->row_bytes() / size;
      return tensor_of(random_numbers(rng, count, size), {}, layer->dtype());
    };
    rows.donors.push_back({from, numbers(), numbers()});
  }
  return rows;
}

struct Text {
  std::vector<DraftWork> work;  ///< rows, then what is to be drafted
  DraftTurn turn;
  std::vector<Candidates> drafts = {};  ///< that it got
  bool over = false;

  bool operator==(const Text& other) const { return drafts == other.drafts; }
};

/// A text at a random place, and what a coordinator may ask of it. @param grammar  "": of no grammar
Text random_text(CounterRng& rng, SessionId id, const Assistant& assistant, WeightType type,
                 const std::string& grammar) {
  const AssistantConfig& config = assistant.config();
  const DonorReplica replica = assistant.make_replica();
  const std::size_t size = type == WeightType::kF32 ? 4 : 2;
  Text text;
  Position base = 0;
  for (const Position end = 1 + static_cast<Position>(rng.below(20)); base < end;) {
    const Position to = std::min<Position>(end, base + 1 + static_cast<Position>(rng.below(5)));
    text.work.push_back({.session = id, .kv = random_rows(rng, replica, base, to, size)});
    base = to;
  }
  text.turn = {id, RoundId{static_cast<std::uint32_t>(1 + rng.below(9))}, base};
  const auto width = static_cast<std::size_t>(config.backbone_hidden_size);
  Draft draft{.token = random_tokens(rng, 1, config.text)[0],
              .draft_length = static_cast<std::int32_t>(1 + rng.below(6)),
              .hidden = tensor_of(random_numbers(rng, width, 4), {config.backbone_hidden_size}),
              .index = static_cast<std::int64_t>(rng.below(3)),
              .want_q = rng.below(4) == 0};
  if (rng.below(3) > 0) {
    draft.sampling = SamplingParams{.temperature = rng.below(4) == 0 ? 0.0f : 0.8f,
                                    .top_k = static_cast<std::int32_t>(rng.below(2) * 20),
                                    .suppress_tokens = random_tokens(rng, 3, config.text),
                                    .min_tokens = 2,
                                    .seed = rng.below(1000),
                                    .rule = static_cast<SamplingRule>(rng.below(3))};
  }
  if (!grammar.empty() && rng.below(2) == 0) {
    if (!draft.sampling) draft.sampling.emplace();
    draft.sampling->grammar = grammar;
    draft.index = 0;
  }
  if (rng.below(4) == 0) {
    draft.tree = true;
    draft.draft_length = 1 + static_cast<std::int32_t>(rng.below(15));
  } else if (rng.below(2) == 0) {
    draft.ahead = 1 + static_cast<std::int32_t>(rng.below(3));
    if (rng.below(3) == 0) draft.known = random_tokens(rng, draft.draft_length, config.text);
  }
  text.work.push_back(
      {.kind = DraftWork::Kind::kDraft, .session = id, .round = text.turn.round, .base = base, .draft = draft});
  return text;
}

/// One pass of these texts. @return its rows, as the texts were told
std::int64_t pass(DraftEngine& engine, std::span<Text* const> texts) {
  std::vector<DraftTurn> turns;
  for (const Text* text : texts) turns.push_back(text->turn);
  std::vector<DraftProgress> progress = engine.step(turns);
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i]->over = !progress[i].more;
    for (Candidates& drafts : progress[i].drafts) {
      EXPECT_GT(drafts.passes, 0);
      EXPECT_GE(drafts.pass_rows, drafts.passes);
      EXPECT_FALSE(drafts.tokens.empty());
      rows += drafts.pass_rows;
      drafts.draft_ns = drafts.passes = drafts.pass_rows = 0;
      texts[i]->drafts.push_back(std::move(drafts));
    }
  }
  return rows;
}

void begin(DraftEngine& engine, const Text& text) {
  for (const DraftWork& work : text.work) engine.run(work);
}

/// Row that produced the token that the draft follows.
std::vector<float> hidden_of(const Draft& draft) {
  std::vector<float> hidden(draft.hidden->data.bytes().size() / sizeof(float));
  std::memcpy(hidden.data(), draft.hidden->data.bytes().data(), draft.hidden->data.bytes().size());
  return hidden;
}

/// With the rows that a text begins with.
DonorReplica replica_of(const Assistant& assistant, const Text& text) {
  DonorReplica replica = assistant.make_replica();
  LayerKv* const layers[] = {&replica.sliding, &replica.full};
  for (const DraftWork& work : text.work) {
    for (std::size_t donor = 0; donor < work.kv.donors.size(); ++donor) {
      const DonorDelta& rows = work.kv.donors[donor];
      layers[donor]->write_raw(rows.first, work.kv.to - rows.first, rows.key.data.bytes().data(),
                               rows.value.data.bytes().data());
    }
  }
  replica.length = text.turn.base;
  return replica;
}

/// Each text alone, then all together, joining and missing passes at random: the same drafts.
void compare(CounterRng& rng, DraftEngine& engine, std::vector<Text> alone) {
  std::vector<Text> together = alone;
  for (Text& text : alone) {
    begin(engine, text);
    for (Text* const one = &text; !text.over;) pass(engine, {&one, 1});
    engine.run({.kind = DraftWork::Kind::kRelease, .session = text.turn.session});
  }
  std::vector<Text*> drafting;
  std::int64_t rows = 0;
  for (std::size_t begun = 0; begun < together.size() || !drafting.empty();) {
    for (std::uint64_t more = rng.below(9); begun < together.size() && more > 0; --more, ++begun) {
      begin(engine, together[begun]);
      drafting.push_back(&together[begun]);
    }
    std::vector<Text*> turns;
    for (Text* text : drafting)
      if (rng.below(5) > 0) turns.push_back(text);
    rows = std::max(rows, pass(engine, turns));
    std::erase_if(drafting, [](const Text* text) { return text->over; });
  }
  EXPECT_GT(rows, 8) << "few texts met";
  for (std::size_t i = 0; i < alone.size(); ++i) {
    ASSERT_EQ(together[i].drafts.size(), alone[i].drafts.size()) << i;
    for (std::size_t j = 0; j < alone[i].drafts.size(); ++j) {
      ASSERT_EQ(together[i].drafts[j], alone[i].drafts[j])
          << to_text({.body = together[i].drafts[j]}) << "\nalone " << to_text({.body = alone[i].drafts[j]});
    }
  }
}

class DraftEngineProperty : public testing::TestWithParam<TestPair> {};
INSTANTIATE_TEST_SUITE_P(Each, DraftEngineProperty, testing::ValuesIn(every_pair()), pair_name);

TEST_P(DraftEngineProperty, AHundredTextsInOnePassGetWhatTheyGetAlone) {
  std::unique_ptr<Assistant> assistant = load_assistant(GetParam());
  CounterRng rng(static_cast<std::uint64_t>(GetParam().type) + 1);
  std::vector<Text> texts;
  for (std::uint64_t i = 1; i <= 100; ++i)
    texts.push_back(random_text(rng, SessionId{i}, *assistant, GetParam().type, ""));
  DraftEngine engine(make_draft_model(std::move(assistant)),
                     random_tokens(rng, 20, load_assistant(GetParam())->config().text));
  compare(rng, engine, std::move(texts));
}

TEST_P(DraftEngineProperty, DraftsAreTheAssistantsOwn) {
  const std::unique_ptr<Assistant> assistant = load_assistant(GetParam());
  DraftEngine engine(make_draft_model(load_assistant(GetParam())), {});
  CounterRng rng(5);
  for (std::uint64_t i = 1; i <= 8; ++i) {
    Text text = random_text(rng, SessionId{i}, *assistant, GetParam().type, "");
    Draft& draft = text.work.back().draft;
    draft = {.token = draft.token, .draft_length = 5, .hidden = draft.hidden};
    begin(engine, text);
    for (Text* const one = &text; !text.over;) pass(engine, {&one, 1});
    const DonorReplica replica = replica_of(*assistant, text);
    const std::vector<float> hidden = hidden_of(draft);
    ASSERT_EQ(text.drafts.size(), 1u);
    EXPECT_EQ(text.drafts[0].tokens, assistant->draft({draft.token, hidden, replica, 5}));
  }
}

// Or rejection would not keep the distribution: a tree's drafts are drawn from the q that goes with them, each node's
// children with noise of their own.
TEST_P(DraftEngineProperty, ATreesDraftsAreDrawnFromTheirQ) {
  const std::unique_ptr<Assistant> assistant = load_assistant(GetParam());
  DraftEngine engine(make_draft_model(load_assistant(GetParam())), {});
  CounterRng rng(10);
  std::int64_t branched = 0, alike = 0;
  for (std::uint64_t i = 1; i <= 12; ++i) {
    Text text = random_text(rng, SessionId{i}, *assistant, GetParam().type, "");
    Draft& draft = text.work.back().draft;
    draft = {.token = draft.token,
             .draft_length = 15,
             .hidden = draft.hidden,
             .sampling = SamplingParams{.temperature = 1.5f, .seed = i, .rule = SamplingRule::kRejection},
             .index = 3,
             .tree = true};
    begin(engine, text);
    for (Text* const one = &text; !text.over;) pass(engine, {&one, 1});
    const Candidates& made = text.drafts.at(0);
    ASSERT_EQ(made.q.size(), made.tokens.size());
    const TokenTree tree(std::ssize(made.tokens), made.depths);
    for (std::int64_t row = 0; row < tree.rows(); ++row) {
      std::vector<TokenId> siblings;
      for (const std::int64_t child : tree.children(row)) {
        siblings.push_back(made.tokens[static_cast<std::size_t>(child) - 1]);
        EXPECT_EQ(made.q[static_cast<std::size_t>(child) - 1], made.q[static_cast<std::size_t>(row)]);
      }
      if (siblings.empty()) continue;
      const std::vector<TokenId> drawn =
          draw_distinct(made.q[static_cast<std::size_t>(row)], Noise(i, 3 + tree.depth(row), Noise::Stream::kDraft),
                        siblings.size());
      if (row == tree.depth(row)) {  // along the first choices, as a chain
        EXPECT_EQ(siblings, drawn) << "text " << i << ", row " << row;
      } else {
        ++branched, alike += siblings == drawn;
      }
    }
  }
  EXPECT_GT(branched, 10);
  EXPECT_LT(alike, branched);
}

// Several outcomes are drafted for in one pass, and each gets the drafts of steps that are taken for it alone.
TEST_P(DraftEngineProperty, DraftsMadeAheadTogetherAreThoseMadeOneByOne) {
  const std::unique_ptr<Assistant> assistant = load_assistant(GetParam());
  DraftEngine engine(make_draft_model(load_assistant(GetParam())), {});
  CounterRng rng(7);
  std::int64_t together = 0;
  for (std::uint64_t i = 1; i <= 8; ++i) {
    Text text = random_text(rng, SessionId{i}, *assistant, GetParam().type, "");
    Draft& draft = text.work.back().draft;
    draft = {.token = draft.token, .draft_length = 4, .hidden = draft.hidden, .ahead = kDraftAheadMax};
    begin(engine, text);
    for (bool more = true; more;) {
      DraftProgress progress = engine.step(std::span(&text.turn, 1))[0];
      more = progress.more;
      together += progress.drafts.size() > 1;
      std::ranges::move(progress.drafts, std::back_inserter(text.drafts));
    }
    const DonorReplica replica = replica_of(*assistant, text);
    ASSERT_GT(text.drafts.size(), 1u);
    for (const Candidates& guess : std::span(text.drafts).subspan(1)) {
      std::vector<float> state = hidden_of(draft);
      TokenId token = draft.token;
      const auto step = [&] {
        const DraftNode node{token, state, replica};
        std::vector<float> next;
        assistant->step_each({&node, 1}, [&](std::size_t, auto ids, auto scores, auto row) {
          token = best_draft(ids, scores);
          next.assign(row.begin(), row.end());
        });
        state = std::move(next);
      };
      for (const TokenId after : guess.after) {
        step();
        token = after;
      }
      std::vector<TokenId> alone;
      for (std::size_t d = 0; d < guess.tokens.size(); ++d) {
        step();
        alone.push_back(token);
      }
      EXPECT_EQ(guess.tokens, alone) << "text " << i << ", an outcome of " << guess.after.size() << " tokens";
    }
  }
  EXPECT_GE(together, 16);
}

// The EOS guard on the drafter's side: no draft before `min_tokens` is an end, in a chain, a tree or a draft made
// ahead; and without it these drafts are ends.
TEST_P(DraftEngineProperty, NoEndIsDraftedBeforeTheAnswerMayEnd) {
  const std::unique_ptr<Assistant> assistant = load_assistant(GetParam());
  DraftEngine free(make_draft_model(load_assistant(GetParam())), {});
  CounterRng rng(8);
  std::int64_t ends = 0, ahead = 0, trees = 0;
  for (std::uint64_t i = 1; i <= 40; ++i) {
    Text text = random_text(rng, SessionId{i}, *assistant, GetParam().type, "");
    Draft& draft = text.work.back().draft;
    draft.want_q = false;
    draft.known.clear();
    draft.sampling = SamplingParams{.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i};
    const auto drafts_of = [&](DraftEngine& engine) {
      Text one = text;
      begin(engine, one);
      for (Text* const turn = &one; !one.over;) pass(engine, {&turn, 1});
      return one.drafts;
    };
    // What it would draft freely are the ends.
    const std::vector<TokenId> stops = drafts_of(free).at(0).tokens;
    DraftEngine engine(make_draft_model(load_assistant(GetParam())), stops);
    const auto count_ends = [&](const std::vector<Candidates>& all) {
      std::int64_t count = 0;
      for (const Candidates& drafts : all)
        count += std::ranges::count_if(drafts.tokens, [&](TokenId t) { return std::ranges::count(stops, t) > 0; });
      return count;
    };
    ends += count_ends(drafts_of(engine));
    draft.sampling->min_tokens = draft.index + 100;
    const std::vector<Candidates> guarded = drafts_of(engine);
    EXPECT_EQ(count_ends(guarded), 0) << "text " << i;
    // The guard ends within the draft: nothing but the first place has it.
    draft.sampling->min_tokens = draft.index + 1;
    for (const Candidates& drafts : drafts_of(engine))
      EXPECT_TRUE(!drafts.after.empty() || std::ranges::count(stops, drafts.tokens.at(0)) == 0) << "text " << i;
    ahead += std::ssize(guarded) - 1;
    trees += draft.tree;
  }
  EXPECT_GE(ends, 40);
  EXPECT_GT(ahead, 5);
  EXPECT_GT(trees, 3);
}

// Like the model's, and also in the session's later rounds, whose Drafts do not repeat them.
TEST_P(DraftEngineProperty, ASessionsOwnEndsEndItsDrafts) {
  const std::unique_ptr<Assistant> assistant = load_assistant(GetParam());
  DraftEngine free(make_draft_model(load_assistant(GetParam())), {});
  CounterRng rng(9);
  std::int64_t cut = 0;
  for (std::uint64_t i = 1; i <= 12; ++i) {
    Text text = random_text(rng, SessionId{i}, *assistant, GetParam().type, "");
    const auto drafts_of = [&](DraftEngine& engine, const std::vector<TokenId>& own) {
      Text one = text;
      Draft& draft = one.work.back().draft;
      draft.stop_ids = own;
      begin(engine, one);
      for (Text* const turn = &one; !one.over;) pass(engine, {&turn, 1});
      draft.sampling_known = true;
      draft.sampling.reset();
      draft.stop_ids.clear();
      engine.run(one.work.back());
      one.over = false;
      for (Text* const turn = &one; !one.over;) pass(engine, {&turn, 1});
      engine.run({.kind = DraftWork::Kind::kRelease, .session = one.turn.session});
      return one.drafts;
    };
    const std::vector<Candidates> freely = drafts_of(free, {});
    std::vector<TokenId> stops = freely.at(0).tokens;
    stops.push_back(static_cast<TokenId>(assistant->config().text.vocab_size) + 7);  // which never comes
    DraftEngine engine(make_draft_model(load_assistant(GetParam())), stops);
    const std::vector<Candidates> ended = drafts_of(engine, {});
    EXPECT_TRUE(drafts_of(free, stops) == ended) << "text " << i;
    cut += ended != freely;
  }
  EXPECT_GT(cut, 6);
}

// Nothing but the replica's content depends on the form in which its rows came.
TEST_P(DraftEngineProperty, RoundedRowsDraftWhatTheyStandFor) {
  const std::unique_ptr<Assistant> assistant = load_assistant(GetParam());
  const DonorReplica replica = assistant->make_replica();
  DraftEngine engine(make_draft_model(load_assistant(GetParam())), {});
  CounterRng rng(6);
  std::int64_t rounded = 0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const DType type = i % 2 == 0 ? DType::kQ8_0 : DType::kQ4_0;
    Text text = random_text(rng, SessionId{2 * i + 1}, *assistant, GetParam().type, ""), same = text;
    same.turn.session = SessionId{2 * i + 2};
    // @param exact  of the tensor that stands for it
    const auto round_off = [&](WireTensor& tensor, WireTensor& as_floats, DType exact) {
      const std::span<const std::byte> bytes = tensor.data.bytes();
      std::vector<float> numbers(bytes.size() / size_bytes(tensor.dtype));
      if (numbers.size() % block_elements(type) != 0) return;
      decode(tensor.dtype, bytes.data(), numbers);
      std::vector<std::byte> blocks(stored_bytes(type, numbers.size())), plain(stored_bytes(exact, numbers.size()));
      encode(type, numbers, blocks.data());
      decode(type, blocks.data(), numbers);
      encode(exact, numbers, plain.data());
      tensor = tensor_of(std::move(blocks), tensor.shape, type);
      as_floats = tensor_of(std::move(plain), as_floats.shape, exact);
      ++rounded;
    };
    for (std::size_t w = 0; w < text.work.size(); ++w) {
      DraftWork &to = text.work[w], &other = same.work[w];
      other.session = same.turn.session;
      for (std::size_t d = 0; d < to.kv.donors.size(); ++d) {
        round_off(to.kv.donors[d].key, other.kv.donors[d].key, replica.full.dtype());
        round_off(to.kv.donors[d].value, other.kv.donors[d].value, replica.full.dtype());
      }
      if (to.kind == DraftWork::Kind::kDraft) round_off(*to.draft.hidden, *other.draft.hidden, DType::kF32);
    }
    for (Text* const one : {&text, &same}) {
      begin(engine, *one);
      while (!one->over) pass(engine, {&one, 1});
    }
    EXPECT_EQ(text, same) << to_string(type) << ", text " << i;
  }
  EXPECT_GT(rounded, 40);
}

/// Rows with the tokens of an answer, at the start of a new sequence: the first two are its prompt.
std::vector<DraftWork> answer(CounterRng& rng, SessionId id, const DonorReplica& replica, std::size_t size,
                              std::span<const TokenId> tokens) {
  DraftWork prompt{.session = id, .kv = random_rows(rng, replica, 0, 2, size)};
  DraftWork rest{.session = id, .kv = random_rows(rng, replica, 2, 2 + static_cast<Position>(tokens.size()), size)};
  prompt.kv.tokens = {tokens[0], tokens[0]};
  rest.kv.tokens.assign(tokens.begin(), tokens.end());
  return {prompt, rest};
}

TEST_P(DraftEngineProperty, ADenseHeadScoresTheLastUsedTokensWhileTheySuffice) {
  constexpr std::int64_t kSize = 40;
  const std::unique_ptr<Assistant> whole = load_assistant(GetParam());
  std::unique_ptr<Assistant> narrow = load_assistant(GetParam(), kSize);
  DraftVocabulary* const vocabulary = narrow->draft_vocabulary();
  ASSERT_EQ(vocabulary == nullptr, whole->config().use_ordered_embeddings);
  if (vocabulary == nullptr) return;
  CounterRng rng(9);
  const std::size_t size = GetParam().type == WeightType::kF32 ? 4 : 2;
  const DonorReplica empty = whole->make_replica();
  std::vector<Text> texts;
  for (std::uint64_t i = 1; i <= 20; ++i) texts.push_back(random_text(rng, SessionId{i}, *whole, GetParam().type, ""));
  DonorReplica replica = whole->make_replica();
  LayerKv* const layers[] = {&replica.sliding, &replica.full};
  const KvRows rows = random_rows(rng, replica, 0, 4, size);
  for (std::size_t donor = 0; donor < 2; ++donor)
    layers[donor]->write_raw(0, 4, rows.donors[donor].key.data.bytes().data(),
                             rows.donors[donor].value.data.bytes().data());
  replica.length = 4;
  const std::vector<float> state(static_cast<std::size_t>(whole->config().backbone_hidden_size), 0.5f);
  const DraftNode node{3, state, replica};
  std::vector<float> all;
  whole->step_each({&node, 1}, [&](std::size_t, std::span<const TokenId> ids, std::span<const float> scores, auto) {
    ASSERT_TRUE(ids.empty());
    all.assign(scores.begin(), scores.end());
  });
  Assistant& head = *narrow;
  const auto scored = [&] {
    std::vector<TokenId> tokens;
    head.step_each({&node, 1}, [&](std::size_t, std::span<const TokenId> ids, std::span<const float> some, auto) {
      tokens.assign(ids.begin(), ids.end());
      for (std::size_t i = 0; i < some.size(); ++i)
        ASSERT_NEAR(some[i], all[ids.empty() ? i : static_cast<std::size_t>(ids[i])], 1e-4) << i;
    });
    return tokens;
  };
  EXPECT_TRUE(scored().empty()) << "nothing was learned yet";

  // An answer of 40 random tokens, again and again, between a draft's first two rows and the end of its sequence.
  std::vector<TokenId> used = random_tokens(rng, 400, whole->config().text);
  std::ranges::sort(used);
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (std::size_t i = used.size(); i > 1; --i) std::swap(used[i - 1], used[rng.below(i)]);
  used.resize(kSize);
  DraftEngine engine(make_draft_model(std::move(narrow)), {});
  std::uint64_t session = 1000;
  const auto learn = [&](std::span<const TokenId> tokens, int times) {
    for (int i = 0; i < times; ++i) {
      const SessionId id{++session};
      const std::vector<DraftWork> work = answer(rng, id, empty, size, tokens);
      Text text = texts[0];
      text.work = {work[0], texts[0].work.back()};
      text.work.back().session = text.turn.session = id;
      text.work.back().base = text.turn.base = 2;
      begin(engine, text);
      Text* const one = &text;
      pass(engine, {&one, 1});
      engine.run(work[1]);
      engine.run({.kind = DraftWork::Kind::kRelease, .session = id});
    }
  };
  learn(used, 40);
  EXPECT_TRUE(vocabulary->suffices());
  std::ranges::sort(used);
  EXPECT_EQ(scored(), used);
  for (Text& text : texts) {
    text.work.back().draft.known.clear();
    begin(engine, text);
    for (Text* const one = &text; !text.over;) pass(engine, {&one, 1});
    for (const Candidates& drafts : text.drafts) {
      const auto known = [&](TokenId id) { return std::ranges::binary_search(used, id); };
      EXPECT_TRUE(std::ranges::all_of(drafts.tokens, known));
      for (const Distribution& q : drafts.q) EXPECT_TRUE(std::ranges::all_of(q.ids, known));
    }
  }
  const std::vector<TokenId> others = random_tokens(rng, 80, whole->config().text);
  learn(others, 1);
  EXPECT_FALSE(vocabulary->suffices());
  EXPECT_TRUE(scored().empty());
}

// The grammar goes on over drafts while other texts' passes are between them, and is taken back when its text is.
TEST(DraftEngine, TextsOfAGrammarInOnePassGetWhatTheyGetAlone) {
  const TestPair nano{"nano", "models/nano/backbone", "models/nano/assistant", WeightType::kBf16};
  const Tokenizer tokenizer = Tokenizer::load(model_at(in_source(nano.backbone))).value();
  GrammarCompiler grammars([&] { return Result(grammar_vocabulary(tokenizer, tokenizer.vocab_size())); });
  const std::string grammar = "root ::= [a-c] [a-c] [a-c] [a-c]+ \"!\"";
  ASSERT_TRUE(compiled(grammars, grammar));
  std::unique_ptr<Assistant> assistant = load_assistant(nano);
  CounterRng rng(11);
  std::vector<Text> texts;
  for (std::uint64_t i = 1; i <= 40; ++i) {
    texts.push_back(random_text(rng, SessionId{i}, *assistant, nano.type, grammar));
    // One that is overtaken in the middle of its drafts: what it asks for next begins behind the same answer.
    if (i % 3 == 0) texts.back().work.push_back(texts.back().work.back());
  }
  DraftEngine engine(make_draft_model(std::move(assistant)), {tokenizer.find("<eos>").value()}, &grammars);
  Text overtaken = texts[0];
  overtaken.work.back().draft = {.token = overtaken.work.back().draft.token,
                                 .draft_length = 5,
                                 .hidden = overtaken.work.back().draft.hidden,
                                 .sampling = SamplingParams{.grammar = grammar}};
  std::vector<Candidates> whole;
  for (int stop_after = 0; stop_after < 5; ++stop_after) {
    Text text = overtaken;
    if (stop_after > 0) text.work = {overtaken.work.back()};  // the rows are there
    const auto know_sampling = [&] {
      text.work.back().draft.sampling.reset();
      text.work.back().draft.sampling_known = true;
    };
    if (stop_after > 0) know_sampling();
    begin(engine, text);
    Text* const one = &text;
    for (int i = 0; i < stop_after; ++i) pass(engine, {&one, 1});
    text.work = {text.work.back()};
    know_sampling();
    begin(engine, text);
    while (!text.over) pass(engine, {&one, 1});
    ASSERT_EQ(text.drafts.size(), 1u);
    const std::string said = tokenizer.decode(text.drafts[0].tokens, /*skip_special=*/true);
    EXPECT_EQ(said.find_first_not_of("abc!"), std::string::npos) << said;
    whole.push_back(text.drafts[0]);
    EXPECT_EQ(whole.back(), whole.front()) << stop_after;
  }
  engine.run({.kind = DraftWork::Kind::kRelease, .session = texts[0].turn.session});
  compare(rng, engine, std::move(texts));
}

TEST(DraftEngine, EachPathOfATreeFollowsTheGrammar) {
  const TestPair nano{"nano", "models/nano/backbone", "models/nano/assistant", WeightType::kBf16};
  const Tokenizer tokenizer = Tokenizer::load(model_at(in_source(nano.backbone))).value();
  GrammarCompiler grammars([&] { return Result(grammar_vocabulary(tokenizer, tokenizer.vocab_size())); });
  const std::string grammar = "root ::= [abc] [xyz] [123] [789]";
  ASSERT_TRUE(compiled(grammars, grammar));
  std::unique_ptr<Assistant> assistant = load_assistant(nano);
  CounterRng rng(12);
  Text text = random_text(rng, SessionId{1}, *assistant, nano.type, "");
  Draft& draft = text.work.back().draft;
  draft = {.token = draft.token,
           .draft_length = 15,
           .hidden = draft.hidden,
           .sampling = SamplingParams{.temperature = 1.5f, .grammar = grammar},
           .tree = true};
  DraftEngine engine(make_draft_model(std::move(assistant)), {tokenizer.find("<eos>").value()}, &grammars);
  begin(engine, text);
  for (Text* const one = &text; !text.over;) pass(engine, {&one, 1});
  const Candidates& made = text.drafts.at(0);
  const TokenTree tree(std::ssize(made.tokens), made.depths);
  EXPECT_GT(tree.height(), 1);
  for (std::int64_t row = 1; row < tree.rows(); ++row) {
    std::vector<TokenId> path;
    for (const std::int64_t on_the_way : tree.path(row))
      if (on_the_way > 0) path.push_back(made.tokens[static_cast<std::size_t>(on_the_way) - 1]);
    const std::string said = tokenizer.decode(path, /*skip_special=*/true);
    ASSERT_LE(said.size(), 4u) << said;
    for (std::size_t i = 0; i < said.size(); ++i)
      EXPECT_TRUE(std::string_view("abcxyz123789").substr(3 * i, 3).find(said[i]) != std::string_view::npos) << said;
  }
}

}  // namespace
}  // namespace outrider
