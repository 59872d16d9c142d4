// Speculative sampling emits what plain sampling emits: the law of every token given its text, of single
// tokens and of pairs, for both rules; and rules with one mistake are found out by the same gate.
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "common/base/token_tree.h"
#include "common/compute/kernels/ops.h"
#include "common/decoding/drafting/ngram.h"
#include "common/decoding/sampling/sampler.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "coordinator-node/round_drafts.h"
#include "drafter-node/draft_tree.h"
#include "drafter-node/families.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

/// A language whose next token depends on the last one (and, with penalties, on all before).
struct Language {
  std::int64_t vocab = 0;
  std::vector<float> target, drafter;  ///< [vocab, vocab] logits by last token
  std::span<const float> row(const std::vector<float>& table, TokenId last) const {
    return std::span(table).subspan(static_cast<std::size_t>(last * vocab), static_cast<std::size_t>(vocab));
  }
};

/// Logits of standard deviation 1.5, and a drafter that knows them roughly.
Language make_language(std::int64_t vocab, std::uint64_t seed, float drafter_error) {
  CounterRng rng(seed);
  const auto normal = [&] {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += rng.uniform();
    return static_cast<float>(sum);
  };
  Language language{.vocab = vocab, .target = {}, .drafter = {}};
  for (std::int64_t i = 0; i < vocab * vocab; ++i) {
    language.target.push_back(1.5f * normal());
    language.drafter.push_back(language.target.back() + drafter_error * normal());
  }
  return language;
}

/// Nano and its assistant as such a language: their scores of the first `vocab` tokens that nano writes, after a fixed
/// text and the last token. So 100,000 tokens cost `vocab` forwards, and the rows are as peaked, and the drafter as
/// wrong, as real ones are.
/// @param whole  instead of the assistant a whole model drafts, nano itself in int4
Language make_nano_language(std::int64_t vocab, bool whole = false) {
  const TestPair nano{"nano", "models/nano/backbone", "models/nano/assistant", WeightType::kF32};
  const auto backbone = load_backbone(nano, 16);
  const auto weights = open_weights(model_at(in_source(nano.backbone)), nano.type).value();
  const auto assistant =
      Assistant::load(model_at(in_source(nano.assistant)), backbone->config(), *weights, nano.type).value();
  const float softcap = backbone->config().final_logit_softcapping;
  SamplingScratch scratch;
  KvCache cache = backbone->make_cache();
  std::vector<TokenId> text = {2}, words;
  OutputRow last = forward(*backbone, cache, text).back();
  Position fixed = 0;  // the text that all rows follow: what it wrote before it had all words
  while (std::ssize(words) < vocab) {
    CHECK(text.size() < 1000, "{} words in {} tokens", words.size(), text.size());
    text.push_back(
        Sampler({.temperature = 1.2f, .seed = text.size()}, {}, softcap).choose(last.logits, scratch).value());
    if (std::find(words.begin(), words.end(), text.back()) == words.end()) words.push_back(text.back());
    fixed = cache.length();
    if (std::ssize(words) < vocab) last = forward(*backbone, cache, std::span(text).last(1)).back();
  }
  DonorReplica replica = assistant->make_replica();
  replica.extend(*backbone, cache, fixed);
  const auto restrict_to_words = [&](std::span<const float> scores, std::vector<float>* table) {
    for (const TokenId word : words) table->push_back(scores[static_cast<std::size_t>(word)]);
  };
  Language language{.vocab = vocab, .target = {}, .drafter = {}};
  const TestPair rough{"nano", nano.backbone, nano.assistant, WeightType::kInt4};
  const std::unique_ptr<DraftModel> drafter = make_draft_model(load_backbone(rough, kWholeModelRows), nullptr);
  const std::unique_ptr<DraftSequence> seen = drafter->open();
  seen->extend({.from = 0, .to = fixed, .tokens = {text.begin(), text.begin() + fixed}});
  const auto whole_scores = [&](TokenId word) {
    std::vector<float> scores;
    while (scores.empty()) {
      drafter->step_each(
          std::array{DraftPoint{seen.get(), {word}, {}}},
          [&](std::size_t, auto, std::span<const float> all, auto) {
            scores.assign(all.begin(), all.end());
            return std::nullopt;
          },
          [] {});
    }
    return scores;
  };
  for (const TokenId word : words) {
    restrict_to_words(whole ? whole_scores(word) : assistant->draft_step(word, last.hidden, replica).logits,
                      &language.drafter);
    restrict_to_words(forward(*backbone, cache, {&word, 1}).back().logits, &language.target);
    cache.truncate(fixed);
  }
  if (softcap > 0) softcap_in_place({language.target.data(), {vocab, vocab}}, softcap);
  return language;
}

/// Probabilities by the definitions in docs/sampling.md, in double and with whole sorts.
std::vector<double> reference(std::span<const float> logits, const SamplingParams& params,
                              const std::vector<TokenId>& prompt, const std::vector<TokenId>& answer) {
  std::vector<double> scores(logits.begin(), logits.end());
  for (std::size_t token = 0; token < scores.size(); ++token) {
    const auto in = [&](const std::vector<TokenId>& text) {
      return std::count(text.begin(), text.end(), static_cast<TokenId>(token));
    };
    double& score = scores[token];
    if (in(prompt) + in(answer) > 0)
      score = score > 0 ? score / params.repetition_penalty : score * params.repetition_penalty;
    score -= params.frequency_penalty * static_cast<double>(in(answer));
    if (in(answer) > 0) score -= params.presence_penalty;
    score /= params.temperature;
  }
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  const double highest = scores[order[0]];
  std::vector<double> weights;
  for (const std::size_t token : order) {
    const double weight = std::exp(scores[token] - highest);
    if (weight < params.min_p || (params.top_k > 0 && std::ssize(weights) == params.top_k)) break;
    weights.push_back(weight);
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double above = 0, kept = 0;
  std::vector<double> p(scores.size());
  for (std::size_t i = 0; i < weights.size() && above < params.top_p * total; ++i) {
    above += weights[i];
    kept += p[order[i]] = weights[i];
  }
  for (double& value : p) value /= kept;
  return p;
}

Distribution distribution_of(std::span<const float> logits, const SamplingParams& params, const TokenCounts& counts) {
  SamplingScratch scratch;
  std::vector<float> scores(logits.begin(), logits.end());
  process_scores(scores, params, {}, counts);
  Distribution distribution;
  make_distribution(scores, params, scratch, &distribution);
  return distribution;
}

TokenCounts count(const std::vector<TokenId>& prompt, std::span<const TokenId> answer) {
  TokenCounts counts;
  for (const TokenId token : prompt) counts.try_emplace(token);
  for (const TokenId token : answer) ++counts[token];
  return counts;
}

// ---- the gate ----

/// Observed beside expected counts. A token's expectation is its probability given the text before it, so
/// the differences are sums of martingale differences, and sum (O - E)^2 / E is at most chi-square.
class Gate {
 public:
  explicit Gate(std::int64_t vocab)
      : vocab_(static_cast<std::size_t>(vocab)), pairs_(vocab_ * vocab_), singles_(vocab_) {}

  void add(TokenId last, TokenId token, const std::vector<double>& p) {
    const std::size_t row = static_cast<std::size_t>(last) * vocab_;
    for (std::size_t x = 0; x < vocab_; ++x) {
      pairs_[row + x].expected += p[x];
      singles_[x].expected += p[x];
    }
    ++pairs_[row + static_cast<std::size_t>(token)].observed;
    ++singles_[static_cast<std::size_t>(token)].observed;
    ++tokens_;
  }
  std::int64_t tokens() const { return tokens_; }

  /// "" if both laws hold at alpha 0.001, else which one does not.
  std::string verdict() const {
    const auto [singles, singles_freedom] = statistic(singles_);
    double pairs = 0, pairs_freedom = 0;
    for (std::size_t last = 0; last < vocab_; ++last) {
      const auto [part, freedom] = statistic(std::span(pairs_).subspan(last * vocab_, vocab_));
      pairs += part;
      pairs_freedom += freedom;
    }
    std::string text;
    for (const auto& [name, value, freedom] :
         {std::tuple("singles", singles, singles_freedom), std::tuple("pairs", pairs, pairs_freedom)}) {
      if (value > critical(freedom))
        text += fmt::format("{}: chi-square {:.1f}, at most {:.1f} for {} degrees; ", name, value, critical(freedom),
                            freedom);
    }
    return text;
  }

 private:
  struct Cell {
    double expected = 0, observed = 0;
  };
  static std::pair<double, double> statistic(std::span<const Cell> cells) {
    constexpr double kExpectedMin = 5;
    Cell rest;
    double sum = 0, used = 0;
    const auto add = [&](const Cell& cell) {
      if (cell.observed == 0 && cell.expected == 0) return;
      if (cell.expected == 0)
        sum = std::numeric_limits<double>::infinity();  // a token that cannot be
      else
        sum += (cell.observed - cell.expected) * (cell.observed - cell.expected) / cell.expected;
      ++used;
    };
    for (const Cell& cell : cells) {
      if (cell.expected >= kExpectedMin || cell.expected == 0) {
        add(cell);
      } else {
        rest.expected += cell.expected;
        rest.observed += cell.observed;
      }
    }
    if (rest.expected >= 1) add(rest);
    return {sum, std::max(used - 1, 0.0)};
  }
  /// The 0.999 quantile (Wilson and Hilferty 1931).
  static double critical(double freedom) {
    if (freedom == 0) return 1e-9;
    const double v = 2 / (9 * freedom), root = 1 - v + 3.0902 * std::sqrt(v);
    return freedom * root * root * root;
  }

  std::size_t vocab_;
  std::vector<Cell> pairs_, singles_;
  std::int64_t tokens_ = 0;
};

// ---- rounds ----

enum class Drafting {
  kSampled,  ///< from q
  kCoupled,  ///< from q with the target's own noise
  kArgmax,   ///< the most probable token
  // As the first two, but a tree of so many nodes:
  kSampledTree,
  kCoupledTree,
  kTreeByToken,  ///< a mistake: the tree's nodes are chosen by what was drawn
};

struct Round {
  const Language& language;
  const SamplingParams& params;
  const std::vector<TokenId>& prompt;
  const std::vector<TokenId>& answer;  ///< what the target has seen; ends in the last emitted token
  std::vector<TokenId> drafts;
  std::vector<Distribution> q;
  std::vector<std::int32_t> depths = {};
  TokenTree tree() const { return {std::ssize(drafts), depths}; }
};
struct Emitted {
  std::vector<TokenId> tokens;
  TokenId last;  ///< what the target has seen last
};
using Rule = std::function<Emitted(const Round&, Sampler&, SamplingScratch&)>;

std::vector<TokenId> rows_of(const Round& round, std::vector<float>* logits) {
  std::vector<TokenId> tokens = {round.answer.back()};
  tokens.insert(tokens.end(), round.drafts.begin(), round.drafts.end());
  for (const TokenId token : tokens) {
    const auto row = round.language.row(round.language.target, token);
    logits->insert(logits->end(), row.begin(), row.end());
  }
  return tokens;
}

template <bool kRejection>
Emitted production(const Round& round, Sampler& sampler, SamplingScratch& scratch) {
  std::vector<float> logits;
  const std::vector<TokenId> tokens = rows_of(round, &logits);
  const Matrix<const float> rows(logits.data(), {std::ssize(tokens), round.language.vocab});
  const std::span<const Distribution> q = kRejection ? round.q : std::span<const Distribution>();
  const VerifyOutcome outcome = sampler.verify(rows, tokens, scratch, round.depths, q).value();
  std::vector<TokenId> emitted;
  for (const std::int64_t row : round.tree().path(outcome.row))
    if (row > 0) emitted.push_back(tokens[static_cast<std::size_t>(row)]);
  EXPECT_EQ(std::ssize(emitted), outcome.accepted);
  emitted.push_back(outcome.next_token);
  return {emitted, outcome.next_token};
}
const Rule kMatch = production<false>, kRejection = production<true>;

enum class Mistake {
  kNone,
  kPassOn,
  kKeepRejected,
  kDropBonus,
  kNoClamp,
  kOnlyDraftable,  ///< what replaces a draft is one that could have been drafted
  kPenaltiesWithoutDrafts,
};

/// Rejection or match, written out once more with room for a mistake.
Rule mutant(Mistake mistake, bool rejection) {
  return [=](const Round& round, Sampler&, SamplingScratch&) -> Emitted {
    std::vector<TokenId> seen = round.answer, out;
    for (std::size_t i = 0;; ++i) {
      const bool blind = mistake == Mistake::kPenaltiesWithoutDrafts;
      const TokenCounts counts = count(round.prompt, blind ? std::span(round.answer) : std::span(seen));
      const Distribution p =
          distribution_of(round.language.row(round.language.target, seen.back()), round.params, counts);
      const auto index = static_cast<std::int64_t>(seen.size());
      const TokenId drawn = draw(p, Noise(round.params.seed, index, Noise::Stream::kDraw));
      if (i == round.drafts.size()) {
        if (mistake != Mistake::kDropBonus) out.push_back(drawn);
        return {out, drawn};
      }
      const TokenId draft = round.drafts[i];
      TokenId token = drawn;
      if (rejection) {
        Distribution scratch;
        token = accept_or_replace(p, round.q[i], {&draft, 1}, round.params.seed, index, &scratch);
        if (token != draft && mistake == Mistake::kNoClamp) {
          scratch.clear();
          for (TokenId x = 0; x < round.language.vocab; ++x) {
            scratch.add(x, static_cast<float>(std::abs(p.probability(x) - round.q[i].probability(x))));
          }
          token = draw(scratch, Noise(round.params.seed, index, Noise::Stream::kResidual));
          if (token == draft) return {{draft}, draft};
        }
        if (token != draft && mistake == Mistake::kOnlyDraftable) {
          scratch.clear();
          for (const TokenId x : round.q[i].ids) {
            const double left = p.probability(x) - round.q[i].probability(x);
            if (left > 0 && round.q[i].probability(x) > 0) scratch.add(x, static_cast<float>(left));
          }
          if (!scratch.ids.empty()) token = draw(scratch, Noise(round.params.seed, index, Noise::Stream::kResidual));
        }
      }
      const bool kept = token == draft;
      out.push_back(kept || mistake == Mistake::kKeepRejected ? draft : token);
      if (!kept && mistake != Mistake::kPassOn) return {out, out.back()};
      seen.push_back(draft);
    }
  };
}

enum class TreeMistake { kNone, kNoResidual, kWithReplacement, kLastWordIsTheTargets };

/// Rejection along a tree, written out once more with room for a mistake.
Rule tree_mutant(TreeMistake mistake) {
  return [=](const Round& round, Sampler&, SamplingScratch&) -> Emitted {
    std::vector<TokenId> seen = round.answer, out;
    const std::int64_t vocab = round.language.vocab;
    for (std::int64_t row = 0;;) {
      const Distribution given = distribution_of(round.language.row(round.language.target, seen.back()), round.params,
                                                 count(round.prompt, seen));
      const auto index = static_cast<std::int64_t>(seen.size());
      std::vector<double> p, q;
      const std::vector<std::int64_t> children = round.tree().children(row);
      for (TokenId x = 0; x < vocab; ++x) {
        p.push_back(given.probability(x));
        q.push_back(children.empty() ? 0 : round.q[static_cast<std::size_t>(children[0]) - 1].probability(x));
      }
      const auto normalise = [](std::vector<double>& values) {
        const double sum = std::accumulate(values.begin(), values.end(), 0.0);
        for (double& value : values) value = sum > 0 ? value / sum : 0;
      };
      std::int64_t kept = 0;
      for (const std::int64_t child : children) {
        const auto x = static_cast<std::size_t>(round.drafts[static_cast<std::size_t>(child) - 1]);
        const double coin = Noise(round.params.seed, index, Noise::Stream::kAccept).at(static_cast<TokenId>(x));
        if (q[x] > 0 && coin < p[x] / q[x]) {
          kept = child;
          break;
        }
        if (mistake != TreeMistake::kNoResidual) {
          for (std::size_t y = 0; y < p.size(); ++y) p[y] = std::max(0.0, p[y] - q[y]);
          normalise(p);
        }
        if (mistake != TreeMistake::kWithReplacement) {
          q[x] = 0;
          normalise(q);
        }
      }
      if (kept == 0) {
        Distribution left;
        for (TokenId x = 0; x < vocab; ++x) {
          const double weight =
              mistake == TreeMistake::kLastWordIsTheTargets ? given.probability(x) : p[static_cast<std::size_t>(x)];
          if (weight > 0) left.add(x, static_cast<float>(weight));
        }
        out.push_back(draw(
            left, Noise(round.params.seed, index, children.empty() ? Noise::Stream::kDraw : Noise::Stream::kResidual)));
        return {out, out.back()};
      }
      row = kept;
      out.push_back(round.drafts[static_cast<std::size_t>(row) - 1]);
      seen.push_back(out.back());
    }
  };
}

/// Some 200 verdicts at alpha 0.001: the seeds are such that none is a false alarm. An alarm of a new seed that
/// 3,000,000 tokens do not confirm is one.
constexpr std::int64_t kTokens = 100'000;
constexpr std::size_t kTextLength = 50;

struct Sample {
  Gate gate;
  std::int64_t rounds = 0, drafted = 0, accepted = 0, looked_up = 0;
};

/// Drafts, and what each was drawn from.
struct Drafts {
  std::vector<TokenId> tokens;
  std::vector<Distribution> q;
};

/// Rejection's drafts after a path.
Drafts drafts_after(const Round& round, std::vector<TokenId> path, int draft_length) {
  const SamplingParams& params = round.params;
  Drafts drafts;
  for (int i = 0; i < draft_length; ++i) {
    drafts.q.push_back(
        distribution_of(round.language.row(round.language.drafter, path.back()), params, count(round.prompt, path)));
    path.push_back(draw(drafts.q.back(), Noise(params.seed, std::ssize(path), Noise::Stream::kDraft)));
    drafts.tokens.push_back(path.back());
  }
  return drafts;
}

/// A tree as the drafter grows it.
void draft_tree(Round& round, int nodes, Drafting drafting) {
  constexpr std::size_t kChildren = 3;
  DraftTree tree(round.answer.back(), nodes, 0);
  std::map<std::size_t, Distribution> q;
  for (std::vector<std::size_t> step = tree.next(); !step.empty(); step = tree.next()) {
    for (const std::size_t i : step) {
      std::vector<TokenId> path = round.answer;
      for (const TokenId token : tree.path(i)) path.push_back(token);
      q[i] = distribution_of(round.language.row(round.language.drafter, path.back()), round.params,
                             count(round.prompt, path));
      const std::uint64_t branch = tree.node(i).branch;
      const bool coupled = drafting == Drafting::kCoupledTree;
      const Noise noise(coupled || branch == 0 ? round.params.seed : mix64(round.params.seed + branch),
                        std::ssize(path), coupled ? Noise::Stream::kDraw : Noise::Stream::kDraft);
      std::vector<TokenId> choices = draw_distinct(q[i], noise, kChildren);
      std::vector<double> chances;
      for (const float weight : q[i].weights) chances.push_back(static_cast<double>(weight) / q[i].total);
      std::ranges::sort(chances, std::greater<>());
      chances.resize(choices.size());
      if (drafting == Drafting::kTreeByToken) {
        std::ranges::sort(choices, std::greater<>(), [&](TokenId x) { return q[i].probability(x); });
        for (std::size_t rank = 0; rank < choices.size(); ++rank) chances[rank] = q[i].probability(choices[rank]);
      } else {
        chances = chances_of_draws(std::move(chances));
      }
      tree.grow(i, choices, chances, {});
    }
  }
  for (const std::size_t i : tree.finish()) {
    round.drafts.push_back(tree.node(i).token);
    round.depths.push_back(tree.node(i).depth);
    round.q.push_back(q.at(tree.node(i).parent));
  }
}

/// Texts of kTextLength tokens, each with a seed of its own, until there are kTokens.
/// @param next  Emitted next(Sample&, params, prompt, answer, sampler, scratch): a round; the first of a text has one
///   token of an answer
template <class Next>
Sample generate_by(const Language& language, SamplingParams params, Next next) {
  Sample run{Gate(language.vocab)};
  SamplingScratch scratch;
  std::map<TokenId, std::vector<double>> known;  // without penalties the law depends on the last token alone
  for (std::uint64_t text = 0; run.gate.tokens() < kTokens; ++text) {
    params.seed = text;
    const std::vector<TokenId> prompt = {static_cast<TokenId>(text % static_cast<std::uint64_t>(language.vocab))};
    Sampler sampler(params, {}, 0);
    sampler.add_text(prompt, 0);
    std::vector<TokenId> answer = {sampler.choose(language.row(language.target, prompt[0]), scratch).value()};
    while (answer.size() < kTextLength) {
      const Emitted emitted = next(run, params, prompt, answer, sampler, scratch);
      ++run.rounds;
      run.accepted += std::ssize(emitted.tokens) - 1;
      answer.insert(answer.end(), emitted.tokens.begin(), emitted.tokens.end());
    }
    answer.resize(kTextLength);
    std::vector<TokenId> before;
    for (const TokenId token : answer) {
      const TokenId previous = before.empty() ? prompt[0] : before.back();
      std::vector<double>& p = known[previous];
      if (p.empty() || params.has_penalties())
        p = reference(language.row(language.target, previous), params, prompt, before);
      run.gate.add(previous, token, p);
      before.push_back(token);
    }
  }
  return run;
}

Sample generate(const Language& language, const SamplingParams& of_all, int draft_length, Drafting drafting,
                const Rule& rule) {
  TokenId last = 0;
  return generate_by(
      language, of_all,
      [&](Sample& run, const SamplingParams& params, const std::vector<TokenId>& prompt,
          const std::vector<TokenId>& answer, Sampler& sampler, SamplingScratch& scratch) {
        std::vector<TokenId> seen = answer;
        if (answer.size() > 1) seen.back() = last;
        Round round{language, params, prompt, seen, {}, {}};
        std::vector<TokenId> path = seen;
        const bool is_tree = drafting >= Drafting::kSampledTree;
        if (is_tree) draft_tree(round, draft_length, drafting);
        for (int i = 0; i < draft_length && !is_tree; ++i) {
          round.q.push_back(distribution_of(language.row(language.drafter, path.back()), params, count(prompt, path)));
          const auto index = static_cast<std::int64_t>(path.size());
          const Distribution& q = round.q.back();
          const auto highest = std::max_element(q.weights.begin(), q.weights.end()) - q.weights.begin();
          path.push_back(
              drafting == Drafting::kArgmax
                  ? q.ids[static_cast<std::size_t>(highest)]
                  : draw(q, Noise(params.seed, index,
                                  drafting == Drafting::kCoupled ? Noise::Stream::kDraw : Noise::Stream::kDraft)));
          round.drafts.push_back(path.back());
        }
        run.drafted += std::ssize(round.drafts);
        const Emitted emitted = rule(round, sampler, scratch);
        last = emitted.last;
        return emitted;
      });
}

/// What becomes of drafts that were looked up.
enum class LookedUp {
  kAfter,    ///< where the drawn ones end
  kBeside,   ///< in the place of the drawn ones too: under match alone
  kAsDrawn,  ///< a mistake: their q is the drafter's, not all on themselves
};

/// Drafts that were drawn, with those that the text itself goes on with (RoundDrafts).
Sample generate_union(const Language& language, const SamplingParams& of_all, LookedUp how, const Rule& rule) {
  constexpr int kDrawn = 2, kLookedUp = 3;
  return generate_by(language, of_all,
                     [&](Sample& run, const SamplingParams& params, const std::vector<TokenId>& prompt,
                         const std::vector<TokenId>& answer, Sampler& sampler, SamplingScratch& scratch) {
                       Round round{language, params, prompt, answer, {}, {}};
                       Drafts drawn = drafts_after(round, answer, kDrawn);
                       std::vector<TokenId> text = answer;
                       text.insert(text.end(), drawn.tokens.begin(), drawn.tokens.end());
                       const auto looked_up = [](std::span<const TokenId> history) {
                         const auto drafts = ngram_draft(history, kLookedUp);
                         return Candidates{.tokens = {drafts.begin(), drafts.end()}};
                       };
                       RoundDrafts all;
                       all.add(0, {.tokens = drawn.tokens, .q = drawn.q}, DraftSource::kAssistant, kDrawn);
                       all.add(kDrawn, looked_up(text), DraftSource::kNgram, kDraftLengthMax);
                       if (how == LookedUp::kBeside)
                         all.add(0, looked_up(answer), DraftSource::kNgram, kDraftLengthMax);
                       round.drafts = all.tokens;
                       round.depths = all.depths;
                       round.q = all.q;
                       for (std::int64_t row = kDrawn + 1; how == LookedUp::kAsDrawn && row <= all.size(); ++row) {
                         const TokenId before = all.tokens[static_cast<std::size_t>(row) - 2];
                         round.q[static_cast<std::size_t>(row) - 1] =
                             distribution_of(language.row(language.drafter, before), params, {});
                       }
                       run.drafted += all.size();
                       const Emitted emitted = rule(round, sampler, scratch);
                       run.looked_up += std::ssize(emitted.tokens) > kDrawn + 1;
                       return emitted;
                     });
}

SamplingParams params_of(float temperature, bool filtered) {
  SamplingParams params{.temperature = temperature};
  if (filtered) params.top_k = 6, params.top_p = 0.9f;
  return params;
}

SamplingParams penalties() {
  return {.temperature = 1, .repetition_penalty = 1.3f, .presence_penalty = 0.4f, .frequency_penalty = 0.3f};
}

/// Both rules at one draft length, three temperatures, with and without filters.
void expect_laws(const Language& language, int draft_length) {
  for (const float temperature : {0.3f, 1.0f, 1.5f}) {
    for (const bool filtered : {false, true}) {
      SCOPED_TRACE(testing::Message() << "temperature " << temperature << (filtered ? ", top-k 6, top-p 0.9" : ""));
      const SamplingParams params = params_of(temperature, filtered);
      EXPECT_EQ(generate(language, params, draft_length, Drafting::kCoupled, kMatch).gate.verdict(), "") << "match";
      const Sample run = generate(language, params, draft_length, Drafting::kSampled, kRejection);
      EXPECT_EQ(run.gate.verdict(), "") << "rejection";
      EXPECT_GE(run.gate.tokens(), kTokens);
      EXPECT_GT(run.accepted, run.drafted / 20);
      EXPECT_LT(run.accepted, run.drafted);
    }
  }
}

class SamplingLaws : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DraftLength, SamplingLaws, testing::Range(1, 9));
TEST_P(SamplingLaws, BothRulesEmitWhatPlainSamplingEmits) { expect_laws(make_language(12, 11, 1.0f), GetParam()); }

class NanoSamplingLaws : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DraftLength, NanoSamplingLaws, testing::Values(1, 2, 4, 8));
TEST_P(NanoSamplingLaws, BothRulesEmitWhatPlainSamplingEmits) { expect_laws(make_nano_language(48), GetParam()); }

TEST(WholeModelLaws, BothRulesEmitWhatPlainSamplingEmits) {
  const Language language = make_nano_language(48, /*whole=*/true);
  EXPECT_NE(language.drafter, language.target);
  expect_laws(language, 8);
  for (const Mistake mistake : {Mistake::kPassOn, Mistake::kKeepRejected, Mistake::kDropBonus, Mistake::kNoClamp}) {
    EXPECT_NE(generate(language, {.temperature = 1}, 3, Drafting::kSampled, mutant(mistake, true)).gate.verdict(), "")
        << static_cast<int>(mistake);
  }
}

TEST(SamplingLaws, HoldForSmallAndLargerVocabularies) {
  for (const std::int64_t vocab : {8, 64}) {
    const Language language = make_language(vocab, 2, 0.7f);
    SamplingParams params{.temperature = 1, .top_p = 0.95f, .min_p = 0.01f};
    EXPECT_EQ(generate(language, params, 3, Drafting::kSampled, kMatch).gate.verdict(), "") << vocab;
    EXPECT_EQ(generate(language, params, 3, Drafting::kSampled, kRejection).gate.verdict(), "") << vocab;
  }
}

TEST(SamplingLaws, HoldWithPenaltiesThatCountTheRowsOwnDrafts) {
  const Language language = make_language(8, 3, 0.5f);
  EXPECT_EQ(generate(language, penalties(), 4, Drafting::kSampled, kMatch).gate.verdict(), "");
  EXPECT_EQ(generate(language, penalties(), 4, Drafting::kSampled, kRejection).gate.verdict(), "");
}

/// As make_language, but the drafter has a draft vocabulary: every third word and no other.
Language make_narrow_language() {
  Language language = make_language(12, 31, 0.7f);
  for (std::size_t i = 0; i < language.drafter.size(); ++i)
    if (i % 3 != 0) language.drafter[i] = -std::numeric_limits<float>::infinity();
  return language;
}

TEST(SamplingLaws, HoldWithADraftVocabulary) {
  const Language language = make_narrow_language();
  for (const bool filtered : {false, true}) {
    const SamplingParams params = params_of(1, filtered);
    EXPECT_EQ(generate(language, params, 4, Drafting::kCoupled, kMatch).gate.verdict(), "") << "match";
    const Sample chain = generate(language, params, 4, Drafting::kSampled, kRejection);
    EXPECT_EQ(chain.gate.verdict(), "") << "rejection";
    EXPECT_GT(chain.accepted, chain.drafted / 20);
    EXPECT_EQ(generate(language, params, 7, Drafting::kSampledTree, kRejection).gate.verdict(), "") << "tree";
  }
  const auto verdict = [&](Mistake mistake) {
    return generate(language, {.temperature = 1}, 3, Drafting::kSampled, mutant(mistake, true)).gate.verdict();
  };
  EXPECT_EQ(verdict(Mistake::kNone), "");
  EXPECT_NE(verdict(Mistake::kOnlyDraftable), "");
}

class TreeLaws : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Nodes, TreeLaws, testing::Values(2, 12));
TEST_P(TreeLaws, BothRulesEmitWhatPlainSamplingEmits) {
  const Language language = make_language(12, 21, 1.0f);
  const SamplingParams params = params_of(1, GetParam() > 2);
  EXPECT_EQ(generate(language, params, GetParam(), Drafting::kCoupledTree, kMatch).gate.verdict(), "") << "match";
  const Sample tree = generate(language, params, GetParam(), Drafting::kSampledTree, kRejection);
  EXPECT_EQ(tree.gate.verdict(), "") << "rejection";
  // Of many drafts it keeps more than a chain does: there are second choices.
  const Sample chain = generate(language, params, GetParam(), Drafting::kSampled, kRejection);
  const double per_round = static_cast<double>(tree.accepted) / static_cast<double>(tree.rounds),
               of_chain = static_cast<double>(chain.accepted) / static_cast<double>(chain.rounds);
  EXPECT_GT(per_round, GetParam() > 2 ? of_chain : 0.95 * of_chain);
}

TEST(TreeLaws, HoldWithPenaltiesThatCountThePathsOwnDrafts) {
  const Language language = make_language(8, 23, 0.5f);
  EXPECT_EQ(generate(language, penalties(), 7, Drafting::kCoupledTree, kMatch).gate.verdict(), "");
  EXPECT_EQ(generate(language, penalties(), 7, Drafting::kSampledTree, kRejection).gate.verdict(), "");
}

TEST(TreeLaws, MistakesAreFoundOut) {
  const Language language = make_language(8, 6, 1.5f);
  const auto verdict = [&](TreeMistake mistake) {
    return generate(language, {.temperature = 1}, 12, Drafting::kSampledTree, tree_mutant(mistake)).gate.verdict();
  };
  EXPECT_EQ(verdict(TreeMistake::kNone), "") << "without a mistake it is right";
  for (const TreeMistake mistake :
       {TreeMistake::kNoResidual, TreeMistake::kWithReplacement, TreeMistake::kLastWordIsTheTargets})
    EXPECT_NE(verdict(mistake), "") << static_cast<int>(mistake);
  // Whether a node is in the tree must not depend on what was drawn for it.
  EXPECT_NE(generate(language, {.temperature = 1}, 12, Drafting::kTreeByToken, kRejection).gate.verdict(), "");
}

TEST(UnionLaws, DraftsThatWereLookedUpLeaveTheLawAsItIs) {
  const Language language = make_language(8, 6, 0.7f);
  for (const bool filtered : {false, true}) {
    const SamplingParams params = params_of(1, filtered);
    EXPECT_EQ(generate_union(language, params, LookedUp::kBeside, kMatch).gate.verdict(), "") << "match";
    const Sample run = generate_union(language, params, LookedUp::kAfter, kRejection);
    EXPECT_EQ(run.gate.verdict(), "") << "rejection";
    EXPECT_GT(run.looked_up, run.rounds / 50) << "hardly ever is one kept";
  }
  EXPECT_NE(generate_union(language, params_of(1, false), LookedUp::kAsDrawn, kRejection).gate.verdict(), "");
}

// The drafter draws with the target's noise from a distribution of its own: the same token more often than
// an independent draw, and the most probable one, would be.
TEST(SamplingLaws, DraftsWithTheTargetsNoiseSurviveMoreOften) {
  const Language language = make_language(12, 4, 0.7f);
  const SamplingParams params{.temperature = 1};
  const auto acceptance = [&](Drafting drafting) {
    const Sample run = generate(language, params, 1, drafting, kMatch);
    return static_cast<double>(run.accepted) / static_cast<double>(run.drafted);
  };
  const double coupled = acceptance(Drafting::kCoupled), argmax = acceptance(Drafting::kArgmax),
               independent = acceptance(Drafting::kSampled);
  EXPECT_GT(coupled, argmax + 0.05);
  EXPECT_GT(argmax, independent);
}

TEST(SamplingLaws, EqualDistributionsAlwaysAcceptAndNeverTouchTheResidual) {
  Language language = make_language(12, 5, 0);
  for (const bool filtered : {false, true}) {
    for (const float temperature : {0.3f, 1.0f, 1.5f}) {
      const Sample run = generate(language, params_of(temperature, filtered), 5, Drafting::kSampled, kRejection);
      // Only a rejection reaches the residual.
      EXPECT_EQ(run.accepted, run.drafted);
    }
  }
}

// ---- mutants ----

struct Mutant {
  const char* name;
  Mistake mistake;
  bool rejection;
  Drafting drafting;
  bool penalties;
};
class Mutants : public testing::TestWithParam<Mutant> {};

TEST_P(Mutants, AreFoundOut) {
  const Mutant& mutant_case = GetParam();
  const Language language = make_language(8, 6, 1.0f);
  const SamplingParams params = mutant_case.penalties ? penalties() : SamplingParams{.temperature = 1};
  const auto verdict = [&](Mistake mistake, Drafting drafting) {
    return generate(language, params, 3, drafting, mutant(mistake, mutant_case.rejection)).gate.verdict();
  };
  EXPECT_EQ(verdict(Mistake::kNone, Drafting::kSampled), "") << "without the mistake it is right";
  EXPECT_NE(verdict(mutant_case.mistake, mutant_case.drafting), "");
}

TEST(NanoMutants, AreFoundOut) {
  const Language language = make_nano_language(48);
  for (const Mistake mistake : {Mistake::kPassOn, Mistake::kKeepRejected, Mistake::kDropBonus, Mistake::kNoClamp}) {
    EXPECT_NE(generate(language, {.temperature = 1}, 3, Drafting::kSampled, mutant(mistake, true)).gate.verdict(), "")
        << static_cast<int>(mistake);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, Mutants,
    testing::Values(
        Mutant{"passes_on_after_the_first_rejection", Mistake::kPassOn, true, Drafting::kSampled, false},
        Mutant{"keeps_the_rejected_token", Mistake::kKeepRejected, true, Drafting::kSampled, false},
        Mutant{"drops_the_bonus_token", Mistake::kDropBonus, true, Drafting::kSampled, false},
        Mutant{"residual_without_clamp", Mistake::kNoClamp, true, Drafting::kSampled, false},
        Mutant{"softmax_as_q_of_argmax_drafts", Mistake::kNone, true, Drafting::kArgmax, false},
        Mutant{"penalties_without_the_drafts", Mistake::kPenaltiesWithoutDrafts, true, Drafting::kSampled, true},
        Mutant{"match_passes_on_after_the_first_rejection", Mistake::kPassOn, false, Drafting::kSampled, false},
        Mutant{"match_keeps_the_rejected_token", Mistake::kKeepRejected, false, Drafting::kSampled, false},
        Mutant{"match_drops_the_bonus_token", Mistake::kDropBonus, false, Drafting::kSampled, false},
        Mutant{"match_penalties_without_the_drafts", Mistake::kPenaltiesWithoutDrafts, false, Drafting::kSampled,
               true}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace outrider
