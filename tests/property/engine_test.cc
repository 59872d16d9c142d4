// The verifier's engine: whatever shares a batch, a session gets what it would get alone, and the donor
// rows that it is sent are those that a fresh prefill of the committed text would hold.
#include "verifier-node/backbone_engine.h"

#include <array>
#include <map>

#include "common/base/token_tree.h"
#include "common/compute/tensor/decode.h"
#include "common/decoding/sampling/sampler.h"
#include "common/wire/messages/donor_rows.h"
#include "tests/support/driven_core.h"
#include "tests/support/following_shards.h"
#include "tests/support/message_text.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

constexpr std::int64_t kRowsMax = 64;

class EngineProperty : public testing::TestWithParam<TestPair> {};
INSTANTIATE_TEST_SUITE_P(Each, EngineProperty, testing::ValuesIn(every_pair()), pair_name);

/// How many shards a verifier has that is compared with a whole one: `count` for some pairs, since gathers are slow
/// where shards wait for cores (shards_test.cc has every type).
int some_shards(const TestPair& pair, int count) {
  return pair.type == WeightType::kBf16 && pair.name != std::string("nano") ? count : 1;
}

std::function<std::unique_ptr<Backbone>(Shards*)> loader(const TestPair& pair, std::int64_t rows_max) {
  return [pair, rows_max](Shards* shards) { return load_backbone(pair, rows_max, shards); };
}

std::vector<std::byte> bytes_of(const WireTensor& tensor) {
  return {tensor.data.bytes().begin(), tensor.data.bytes().end()};
}

/// The same numbers in another type, rounded as decode.h says (tests/unit/tensor_test.cc: by how much at most).
std::vector<std::byte> in_type(const std::vector<std::byte>& bytes, DType from, DType to) {
  std::vector<float> numbers(bytes.size() / size_bytes(from));
  decode(from, bytes.data(), numbers);
  std::vector<std::byte> rounded(stored_bytes(to, numbers.size()));
  encode(to, numbers, rounded.data());
  return from == to ? bytes : rounded;
}

/// Everything but the time.
void expect_same(const VerifyResult& actual, const VerifyResult& expected) {
  EXPECT_EQ(actual.session, expected.session);
  EXPECT_EQ(actual.round, expected.round);
  Verdict timeless = actual.verdict;
  timeless.verify_ns = expected.verdict.verify_ns;
  EXPECT_EQ(timeless, expected.verdict) << to_text({.body = timeless}) << "\nwanted "
                                        << to_text({.body = expected.verdict});
}

/// Ends a session, whatever round it is in.
Message free_of(SessionId session) { return {.session = session, .round = RoundId{~0u}, .body = Free{}}; }

/// A client of the engine: a prompt in chunks, then rounds of drafts. What the target would say is
/// learnt by running the same work on an engine of its own, so that some drafts can be made right.
struct Script {
  SessionId id;
  std::vector<TokenId> committed;  ///< rows in the cache
  std::vector<TokenId> prompt;     ///< what is left of it
  TokenId next = 0;                ///< the last emitted token, once the prompt is through
  Position kv_sent = 0;
  RoundId round{};

  VerifyWork make(CounterRng& rng, const TextConfig& config, std::span<const TokenId> future, std::int64_t room) {
    VerifyWork work{
        .session = id, .round = round, .base = static_cast<Position>(committed.size()), .tokens = {}, .kv_from = {}};
    if (!prompt.empty()) {
      const std::size_t rows =
          std::min<std::size_t>({prompt.size(), static_cast<std::size_t>(room), 1 + rng.below(30)});
      work.tokens.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(rows));
      work.prefill = true;
      work.last = rows == prompt.size();
    } else {
      work.tokens = {next};
      const std::int64_t drafts = std::min<std::int64_t>(static_cast<std::int64_t>(rng.below(9)), room - 1);
      const std::vector<TokenId> wrong = random_tokens(rng, drafts, config);
      const std::size_t right = rng.below(static_cast<std::uint64_t>(drafts) + 1);
      for (std::size_t i = 0; i < wrong.size(); ++i)
        work.tokens.push_back(i < right && i < future.size() ? future[i] : wrong[i]);
      if (rng.below(2) == 0) {
        work.depths = random_depths(rng, drafts);
        for (std::size_t i = 0; i < wrong.size(); ++i) {
          const auto before = static_cast<std::size_t>(work.depths[i]) - 1;
          work.tokens[i + 1] = before < future.size() && rng.below(2) == 0 ? future[before] : wrong[i];
        }
      }
    }
    // Mostly the delta since the last; all again after a loss; or nothing, as in plain decoding.
    const std::uint64_t kind = rng.below(8);
    if (kind != 0) work.kv_from = kind == 1 ? 0 : kv_sent;
    work.wire = static_cast<WireForm>(rng.below(3));
    return work;
  }

  void apply(const VerifyWork& work, const VerifyResult& result) {
    const TokenTree tree(std::ssize(work.tokens) - 1, work.depths);
    const std::int64_t last = work.prefill          ? tree.rows() - 1
                              : work.depths.empty() ? result.verdict.accepted
                                                    : result.verdict.row;
    for (const std::int64_t row : tree.path(last)) committed.push_back(work.tokens[static_cast<std::size_t>(row)]);
    if (work.prefill) prompt.erase(prompt.begin(), prompt.begin() + std::ssize(work.tokens));
    if (!work.prefill || work.last) next = result.verdict.next_token;
    if (work.kv_from) kv_sent = static_cast<Position>(committed.size());
    round = outrider::next(round);
  }
};

/// The tokens that greedy decoding puts after `next`, and what a fresh prefill's cache holds.
class Truth {
 public:
  explicit Truth(std::unique_ptr<Backbone> backbone) : backbone_(std::move(backbone)) {}
  Backbone& backbone() { return *backbone_; }

  std::vector<TokenId> future(const Script& script, int count) {
    KvCache cache = backbone_->make_cache();
    prefill(*backbone_, cache, script.committed);
    std::vector<TokenId> tokens;
    TokenId token = script.next;
    for (int i = 0; i < count; ++i) {
      token = static_cast<TokenId>(argmax(forward(*backbone_, cache, {&token, 1}).back().logits));
      tokens.push_back(token);
    }
    return tokens;
  }

  /// The result's rows are those of a fresh prefill of the committed text, clipped to what a drafter sees.
  void expect_rows(const VerifyResult& result, const VerifyWork& work, const std::vector<TokenId>& committed) {
    const Position to = static_cast<Position>(committed.size());
    if (!work.kv_from) {
      EXPECT_TRUE(result.verdict.kv.empty());
      EXPECT_FALSE(result.verdict.hidden);
      return;
    }
    EXPECT_EQ(result.verdict.kv.from, *work.kv_from);
    ASSERT_EQ(result.verdict.kv.to, to);
    KvCache cache = backbone_->make_cache();
    const std::vector<OutputRow> rows = prefill(*backbone_, cache, committed);
    ASSERT_EQ(result.verdict.kv.donors.size(), 2u);
    for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
      const DonorDelta& delta = result.verdict.kv.donors[kind == AttentionKind::kSliding ? 0 : 1];
      const LayerKv& layer = cache.layer(backbone_->donor_cache(kind));
      const Position first = kind == AttentionKind::kFull
                                 ? *work.kv_from
                                 : std::max(*work.kv_from, to - drafter_window(backbone_->config().sliding_window));
      ASSERT_EQ(delta.first, first);
      const std::vector<std::int64_t> shape = {to - first, layer.num_key_value_heads(), layer.head_dim()};
      EXPECT_EQ(delta.key.shape, shape);
      EXPECT_EQ(delta.value.shape, shape);
      EXPECT_EQ(delta.key.dtype, wire_dtype(work.wire, layer.dtype(), layer.head_dim()));
      std::vector<std::byte> actual = bytes_of(delta.key);
      const std::vector<std::byte> value = bytes_of(delta.value);
      actual.insert(actual.end(), value.begin(), value.end());
      EXPECT_EQ(actual, in_type(raw_rows(layer, first, to - first), layer.dtype(), delta.key.dtype))
          << (kind == AttentionKind::kSliding ? "sliding" : "full") << " rows";
    }
    if (work.prefill && !work.last) return;
    // The hidden row is that of the last committed position.
    ASSERT_TRUE(result.verdict.hidden);
    const std::vector<float>& hidden = rows.back().hidden;
    const DType dtype = wire_dtype(work.wire, activation_dtype(backbone_->weight_type()), std::ssize(hidden));
    EXPECT_EQ(result.verdict.hidden->dtype, dtype);
    const std::span<const std::byte> floats = std::as_bytes(std::span(hidden));
    EXPECT_EQ(bytes_of(*result.verdict.hidden), in_type({floats.begin(), floats.end()}, DType::kF32, dtype));
    EXPECT_EQ(result.verdict.next_token, static_cast<TokenId>(argmax(rows.back().logits)));
  }

 private:
  std::unique_ptr<Backbone> backbone_;
};

TEST_P(EngineProperty, SessionsInABatchGetWhatTheyGetAloneAndTheCommittedRows) {
  FollowingShards shards(some_shards(GetParam(), 2), loader(GetParam(), kRowsMax));
  BackboneEngine together(load_backbone(GetParam(), kRowsMax, shards.first())),
      alone(load_backbone(GetParam(), kRowsMax));
  Truth truth(load_backbone(GetParam(), kRowsMax));
  const TextConfig& config = together.backbone().config();
  const bool tiny = config.sliding_window < 16;
  constexpr std::uint64_t kSeed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  CounterRng rng(kSeed);
  std::map<std::uint64_t, Script> scripts;
  std::uint64_t last_id = 0;
  std::int64_t verifies = 0, accepted = 0, branched = 0, mixed = 0;
  for (int step = 0; step < (tiny ? 40 : 16); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    // Sessions come and go; a released one leaves nothing behind for the next of its slot.
    if (scripts.size() < 4) {
      const std::uint64_t id = ++last_id;
      scripts[id] = {
          .id = SessionId{id},
          .committed = {},
          .prompt = random_tokens(rng, 1 + static_cast<std::int64_t>(rng.below(last_id % 3 == 1 ? 150 : 40)), config)};
    } else if (rng.below(4) == 0) {
      const auto gone = std::next(scripts.begin(), static_cast<std::ptrdiff_t>(rng.below(scripts.size())));
      together.release(gone->second.id);
      alone.release(gone->second.id);
      scripts.erase(gone);
    }
    std::vector<VerifyWork> batch;
    std::int64_t room = kRowsMax;
    bool some_prefill = false, some_verify = false;
    for (auto& [id, script] : scripts) {
      if (room == 0 || rng.below(5) == 0) continue;
      const std::vector<TokenId> future = script.prompt.empty() ? truth.future(script, 4) : std::vector<TokenId>();
      batch.push_back(script.make(rng, config, future, room));
      room -= static_cast<std::int64_t>(batch.back().tokens.size());
      (batch.back().prefill ? some_prefill : some_verify) = true;
    }
    if (batch.empty()) continue;
    mixed += some_prefill && some_verify;
    const std::vector<VerifyResult> results = together.run(batch);
    ASSERT_EQ(results.size(), batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "session " << value(batch[i].session) << ", base " << batch[i].base << ", "
                                      << batch[i].tokens.size() << (batch[i].prefill ? " prompt rows" : " rows"));
      expect_same(results[i], alone.run({batch[i]}).front());
      Script& script = scripts.at(value(batch[i].session));
      script.apply(batch[i], results[i]);
      truth.expect_rows(results[i], batch[i], script.committed);
      if (!batch[i].prefill) ++verifies, accepted += results[i].verdict.accepted;
      // Off the first branch, that is.
      branched += results[i].verdict.row > results[i].verdict.accepted;
      if (testing::Test::HasFailure()) return;
    }
  }
  // The script did what it is for.
  EXPECT_GT(mixed, 0);
  EXPECT_GT(accepted, 0);
  if (tiny) {
    EXPECT_GT(branched, 0);
  }
  EXPECT_GT(verifies, 0);
}

// The verifier's heartbeats come from there: whatever a batch does, no step may be as long as the whole.
TEST_P(EngineProperty, CallsBackBetweenTheStepsOfABatch) {
  BackboneEngine engine(load_backbone(GetParam(), kRowsMax));
  const auto layers = engine.backbone().config().num_hidden_layers;
  const auto kv_layers = static_cast<std::int64_t>(engine.backbone().make_cache().layer_count());
  CounterRng rng(3);
  const std::vector<TokenId> text = random_tokens(rng, 40, engine.backbone().config());
  const std::vector<TokenId> start(text.begin(), text.end() - 1);
  std::int64_t calls = 0;
  const auto calls_of = [&](const std::vector<VerifyWork>& batch) {
    calls = 0;
    engine.run(batch, [&] { ++calls; });
    return calls;
  };
  const auto prompt = [&](std::uint64_t id) {
    return VerifyWork{.session = SessionId{id}, .round = {}, .base = 0, .tokens = text, .prefill = true, .kv_from = {}};
  };
  EXPECT_GE(calls_of({prompt(1)}), layers + 1);

  // Ten that start with its rows, and a copy kept of one: 11 copies, and ten tokens to choose.
  std::vector<VerifyWork> batch;
  for (std::uint64_t id = 2; id < 12; ++id) {
    VerifyWork& work = batch.emplace_back(prompt(id));
    work.reuse = Reuse{.from = SessionId{1}, .tokens = start};
    work.base = std::ssize(start);
    work.tokens = {text.back()};
  }
  batch.back().keep_as = SessionId{100};
  EXPECT_GE(calls_of(batch), layers + 11 * kv_layers + 10);

  // Verifies: a step for each session.
  for (VerifyWork& work : batch)
    work = {
        .session = work.session, .round = next(work.round), .base = std::ssize(text), .tokens = {1, 2}, .kv_from = {}};
  EXPECT_GE(calls_of(batch), layers + 10);
}

/// A verifier without its socket: the core decides, the engine computes. Keeps what a drafter would have been sent.
struct Verifier {
  struct Replica {
    Position end = 0;
    std::array<std::map<Position, std::vector<std::byte>>, 2> rows;  ///< K and V by position, of each donor
  };

  Verifier(const TestPair& pair, Position reuse_min, int count = 1)
      : shards(some_shards(pair, count), loader(pair, kRows)), engine(load_backbone(pair, kRows, shards.first())) {
    VerifierConfig config;
    config.rows_max = kRows;
    config.prefill_chunk = 11;
    config.reuse_min = reuse_min;
    config.capacity.kv_cost = engine.kv_cost();
    Hello hello{
        .role = Role::kVerifier,
        .name = "v",
        .facts = {.vocab_size = static_cast<std::int32_t>(engine.backbone().config().vocab_size), .context_max = 4096}};
    core.emplace(config, std::move(hello));
    core->on_message({.body = Welcome{1}}, TimePoint{});
  }

  void send(Message message) { core->on_message(std::move(message), TimePoint{}); }
  /// Computes until nothing is left to do. Each session's Verdict is in `verdicts` then.
  void run() {
    while (true) {
      const std::vector<VerifyWork> batch = core->take_batch();
      for (const SessionId session : core->take_released()) engine.release(session);
      if (batch.empty()) break;
      core->on_batch_done(engine.run(batch), TimePoint{});
    }
    for (Outgoing& out : core->take_outgoing()) {
      if (auto* chunk = std::get_if<KvChunk>(&out.message.body)) take_rows(out.message.session, chunk->kv);
      auto* verdict = std::get_if<Verdict>(&out.message.body);
      if (verdict == nullptr) continue;
      take_rows(out.message.session, verdict->kv);
      verdicts[out.message.session] = std::move(*verdict);
    }
  }
  void take_rows(SessionId session, const KvRows& kv) {
    Replica& replica = replicas[session];
    ASSERT_EQ(kv.from, replica.end);
    replica.end = kv.to;
    for (std::size_t d = 0; d < kv.donors.size(); ++d) {
      const std::vector<std::byte> k = bytes_of(kv.donors[d].key), v = bytes_of(kv.donors[d].value);
      const std::size_t row = k.size() / static_cast<std::size_t>(kv.to - kv.donors[d].first);
      for (Position p = kv.donors[d].first; p < kv.to; ++p) {
        const auto at = static_cast<std::ptrdiff_t>(row) * (p - kv.donors[d].first),
                   end = at + static_cast<std::ptrdiff_t>(row);
        std::vector<std::byte>& both = replica.rows[d][p];
        both.assign(k.begin() + at, k.begin() + end);
        both.insert(both.end(), v.begin() + at, v.begin() + end);
      }
    }
  }

  static constexpr std::int64_t kRows = 24;
  FollowingShards shards;
  BackboneEngine engine;
  std::optional<Driven<VerifierCore>> core;
  std::map<SessionId, Verdict> verdicts;
  std::map<SessionId, Replica> replicas;
};

// Whatever a prompt takes over from texts that started like it, its own and the drafter's rows, the hidden row and the
// tokens are those that a verifier gives which reuses nothing.
TEST_P(EngineProperty, ReusedRowsAreTheRowsThatWouldHaveBeenComputed) {
  Verifier reusing(GetParam(), 4, /*count=*/2), computing(GetParam(), 1 << 20);
  const TextConfig& config = reusing.engine.backbone().config();
  const auto to_both = [&](const Message& message) { reusing.send(message), computing.send(message); };
  const bool tiny = config.sliding_window < 16;
  const Position window = drafter_window(config.sliding_window), ring = window + Verifier::kRows;
  CounterRng rng(11);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(n)));
  };
  std::vector<std::vector<TokenId>> texts;
  const std::vector<TokenId> system = random_tokens(rng, ring + ring / 3, config);  // longer than a ring
  std::uint64_t last_id = 0;
  std::int64_t reused = 0, beyond_ring = 0;
  for (int turn = 0; turn < (tiny ? 8 : 3); ++turn) {
    SCOPED_TRACE(testing::Message() << "turn " << turn);
    // Each turn: the shared start; a text that goes on; the same, cut and continued otherwise; the first again, twice.
    std::vector<std::vector<TokenId>> prompts(5);
    prompts[0] = system;
    if (turn > 0) prompts[1] = texts[static_cast<std::size_t>(below(std::ssize(texts)))];
    if (turn > 0)
      prompts[2] = texts[static_cast<std::size_t>(below(std::ssize(texts)))],
      prompts[2].resize(static_cast<std::size_t>(below(std::ssize(prompts[2]))));
    for (std::vector<TokenId>& prompt : prompts) {
      const std::vector<TokenId> question = random_tokens(rng, 1 + below(ring), config);
      prompt.insert(prompt.end(), question.begin(), question.end());
    }
    prompts[3] = prompts[4] = prompts[0];
    std::vector<std::uint64_t> ids;
    for (const std::vector<TokenId>& prompt : prompts) {
      ids.push_back(++last_id);
      // The penalty's counts are of the whole prompt, reused or not.
      const SamplingParams sampling = last_id % 2 == 0 ? SamplingParams{.repetition_penalty = 1.5f} : SamplingParams{};
      to_both({.session = SessionId{last_id}, .body = Prefill{.tokens = prompt, .kv_from = 0, .sampling = sampling}});
    }
    std::vector<std::vector<TokenId>> committed = prompts,
                                      drafts(prompts.size());  // drafts: the token before them first
    for (std::uint32_t round = 0; round < 4; ++round) {
      SCOPED_TRACE(testing::Message() << "round " << round);
      reusing.run();
      computing.run();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "prompt " << i << " of " << prompts[i].size());
        const SessionId id{ids[i]};
        const Verdict &actual = reusing.verdicts.at(id), &expected = computing.verdicts.at(id);
        ASSERT_EQ(actual.accepted, expected.accepted);
        ASSERT_EQ(actual.next_token, expected.next_token);
        ASSERT_EQ(actual.committed, expected.committed);
        ASSERT_EQ(bytes_of(*actual.hidden), bytes_of(*expected.hidden)) << "hidden row";
        const Verifier::Replica &held = reusing.replicas.at(id), &wanted = computing.replicas.at(id);
        ASSERT_EQ(held.end, actual.committed);
        for (Position p = 0; p < held.end; ++p) {
          ASSERT_EQ(held.rows[1].at(p), wanted.rows[1].at(p)) << "full row " << p;
          if (p < held.end - window) continue;
          ASSERT_EQ(held.rows[0].at(p), wanted.rows[0].at(p)) << "sliding row " << p;
        }
        if (round == 0) {
          reused += actual.cached_tokens;
          beyond_ring += actual.cached_tokens > ring;
          EXPECT_EQ(expected.cached_tokens, 0);
        } else {
          committed[i].insert(committed[i].end(), drafts[i].begin(), drafts[i].begin() + actual.accepted + 1);
        }
        drafts[i] = random_tokens(rng, 1 + below(6), config);
        drafts[i][0] = actual.next_token;
        if (round == 3) continue;
        to_both({.session = id,
                 .round = RoundId{round + 1},
                 .base = std::ssize(committed[i]),
                 .body = Verify{.tokens = drafts[i], .kv_from = held.end}});
      }
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      texts.push_back(committed[i]);
      to_both(free_of(SessionId{ids[i]}));
    }
  }
  EXPECT_GT(reused, std::ssize(system)) << "tokens";
  EXPECT_GT(beyond_ring, 2) << "prompts";
}

// At each single token of an answer: another verifier, of three shards, that is given prompt and answer up to there
// gives the token, hidden row, donor rows and log-probabilities of the one that wrote it all, in that round and in the
// next.
TEST_P(EngineProperty, AnotherVerifierGoesOnAtEachTokenWithTheSameBits) {
  Verifier whole(GetParam(), 1 << 20), other(GetParam(), 1 << 20, /*count=*/3);
  const TextConfig& config = whole.engine.backbone().config();
  CounterRng rng(5);
  const std::vector<TokenId> prompt = random_tokens(rng, 13, config);
  const SamplingParams sampling{.temperature = 1,
                                .repetition_penalty = 1.3f,
                                .presence_penalty = 0.4f,
                                .frequency_penalty = 0.2f,
                                .min_tokens = 10,
                                .seed = 3,
                                .logprobs = 2};
  const std::vector<TokenId> stop_ids = random_tokens(rng, 4, config);
  constexpr std::int64_t kTokens = 40;
  const SessionId text{1};
  std::vector<Verdict> verdicts;  // of each token
  std::vector<TokenId> answer;
  whole.send(
      {.session = text, .body = Prefill{.tokens = prompt, .kv_from = 0, .sampling = sampling, .stop_ids = stop_ids}});
  for (std::uint32_t round = 1; std::ssize(answer) < kTokens; ++round) {
    whole.run();
    verdicts.push_back(whole.verdicts.at(text));
    answer.push_back(verdicts.back().next_token);
    const Position base = std::ssize(prompt) + std::ssize(answer) - 1;
    whole.send({.session = text,
                .round = RoundId{round},
                .base = base,
                .body = Verify{.tokens = {answer.back()}, .kv_from = base}});
  }
  const auto expect_bits = [&](const Verdict& actual, std::int64_t token) {
    const Verdict& expected = verdicts[static_cast<std::size_t>(token)];
    ASSERT_EQ(actual.next_token, expected.next_token);
    ASSERT_EQ(bytes_of(*actual.hidden), bytes_of(*expected.hidden));
    ASSERT_EQ(actual.logprobs.back(), expected.logprobs.back());
  };
  for (std::int64_t done = 1; done + 3 < kTokens; ++done) {
    SCOPED_TRACE(testing::Message() << "after " << done << " tokens");
    const SessionId id{100 + static_cast<std::uint64_t>(done)};
    std::vector<TokenId> tokens = prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.begin() + done - 1);
    const Position base = std::ssize(tokens);
    other.send({.session = id,
                .round = RoundId{7},
                .body = Prefill{
                    .tokens = tokens, .answered = done - 1, .kv_from = 0, .sampling = sampling, .stop_ids = stop_ids}});
    other.run();
    expect_bits(other.verdicts.at(id), done - 1);
    const auto next = answer.begin() + done - 1;
    other.send({.session = id,
                .round = RoundId{8},
                .base = base,
                .body = Verify{.tokens = {next, next + 3}, .kv_from = base}});
    other.run();
    ASSERT_EQ(other.verdicts.at(id).accepted, 2);
    expect_bits(other.verdicts.at(id), done + 2);
    for (const auto& [position, row] : other.replicas.at(id).rows[1])
      ASSERT_EQ(row, whole.replicas.at(text).rows[1].at(position)) << "full row " << position;
    other.send(free_of(id));
  }
}

/// A text whose tokens are given: rounds of whatever drafts, until it has `tokens`.
struct Guarded {
  std::vector<TokenId> prompt, stop_ids;
  SamplingParams sampling;

  /// @param places  where a round has drafts, and which: {index in the answer of the first: its tokens}. The others are
  /// plain.
  /// @return the answer; the rows are the verifier's replica of `id`.
  std::vector<TokenId> answer(Verifier& verifier, SessionId id, std::int64_t tokens,
                              const std::map<std::int64_t, std::vector<TokenId>>& places = {}) const {
    verifier.send(
        {.session = id, .body = Prefill{.tokens = prompt, .kv_from = 0, .sampling = sampling, .stop_ids = stop_ids}});
    verifier.run();
    std::vector<TokenId> answer = {verifier.verdicts.at(id).next_token};
    for (std::uint32_t round = 1; std::ssize(answer) < tokens; ++round) {
      const Position base = std::ssize(prompt) + std::ssize(answer) - 1;
      std::vector<TokenId> rows = {answer.back()};
      if (const auto place = places.find(std::ssize(answer)); place != places.end())
        rows.insert(rows.end(), place->second.begin(), place->second.end());
      verifier.send(
          {.session = id, .round = RoundId{round}, .base = base, .body = Verify{.tokens = rows, .kv_from = base}});
      verifier.run();
      const Verdict& verdict = verifier.verdicts.at(id);
      answer.insert(answer.end(), rows.begin() + 1, rows.begin() + 1 + verdict.accepted);
      answer.push_back(verdict.next_token);
    }
    return answer;
  }
};

// The EOS guard: wherever in a round an end token would come, as a draft, in a lost draft's place or after the last
// draft, and on whichever side of the guard's end, text and rows are those of plain decoding under the same guard.
TEST_P(EngineProperty, TheGuardHoldsWhereverInARoundAnEndWouldCome) {
  Verifier plainly(GetParam(), 1 << 20), drafted(GetParam(), 1 << 20);
  const TextConfig& config = plainly.engine.backbone().config();
  CounterRng rng(7);
  std::uint64_t id = 0;
  const std::vector<TokenId> prompt = random_tokens(rng, 9, config);
  for (const float temperature : {0.0f, 1.0f}) {
    Guarded text{.prompt = prompt, .stop_ids = {}, .sampling = {.temperature = temperature, .seed = 4}};
    const std::vector<TokenId> unguarded = text.answer(plainly, SessionId{++id}, 20);
    // The end token is one that is new at its place, far enough from the start for all cases.
    std::int64_t place = 3;
    const auto is_new = [&] {
      const auto at = unguarded.begin() + place;
      return std::find(unguarded.begin(), at, *at) == at;
    };
    while (place < 20 && !is_new()) ++place;
    ASSERT_LT(place, 20);
    const TokenId end = unguarded[static_cast<std::size_t>(place)];
    text.stop_ids = {end};
    for (const std::int64_t guard : {place, place + 1}) {  // the first lets it through
      text.sampling.min_tokens = guard;
      const SessionId plain{++id};
      const std::vector<TokenId> expected = text.answer(plainly, plain, place + 4);
      ASSERT_EQ(expected[static_cast<std::size_t>(place)] == end, guard == place);
      const auto at = [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; };
      const auto other = [&](std::int64_t i) { return at(i) == 7 || end == 7 ? (at(i) == 8 || end == 8 ? 9 : 8) : 7; };
      const std::map<std::int64_t, std::vector<TokenId>> cases[] = {
          {{place, {end, at(place + 1)}}},                                          // drafted at slot 0
          {{place - 2, {at(place - 2), at(place - 1), end, at(place + 1)}}},        // at slot 2
          {{place - 1, {at(place - 1), other(place), end}}},                        // in the place of a lost draft
          {{place - 2, {at(place - 2), at(place - 1)}}},                            // after the last draft
          {{place - 1, {at(place - 1), at(place), at(place + 1), at(place + 2)}}},  // where all of the round holds
      };
      for (const auto& places : cases) {
        SCOPED_TRACE(testing::Message() << "temperature " << temperature << ", guard " << guard << ", case "
                                        << &places - cases);
        const SessionId session{++id};
        std::vector<TokenId> actual = text.answer(drafted, session, place + 4, places);
        actual.resize(expected.size());  // a last round may have brought more
        ASSERT_EQ(actual, expected);
        const Verifier::Replica &rows = drafted.replicas.at(session), &wanted = plainly.replicas.at(plain);
        for (std::size_t donor = 0; donor < rows.rows.size(); ++donor) {
          for (const auto& [position, row] : wanted.rows[donor])
            ASSERT_EQ(row, rows.rows[donor].at(position)) << "donor " << donor << ", row " << position;
        }
        drafted.send(free_of(session));
      }
      plainly.send(free_of(plain));
    }
  }
}

}  // namespace
}  // namespace outrider
