#include "common/decoding/drafting/goodput.h"

#include <cmath>
#include <functional>
#include <numeric>

namespace outrider {
namespace {

/// Drafts of the first trial, before the cost of a row is known. If rows are expensive, sixteen would cost a short
/// answer ten plain rounds; if they are cheap, the second trial already has as many as seem to pay.
constexpr int kFirstTrial = 4;

/// Inputs of a plan.
struct Known {
  const Estimates& estimates;    ///< of all sequences of the verifier
  const SequenceEstimates& own;  ///< of this one
  Others others = {};            ///< the other sequences' work
};

/// The best plan so far.
struct Best {
  DraftPlan plan = {};
  RoundTerms terms = {};
  double rate = 0;  ///< tokens per second
  void weigh(const DraftPlan& other, const RoundTerms& other_terms, double other_rate) {
    if (other_rate > rate) *this = {other, other_terms, other_rate};
  }
};

/// Weighs chains of one source. @param plain  a round without drafts
void weigh_chains(const Known& known, const DraftLimits& limits, DraftSource source, int longest,
                  const RoundTerms& plain, Best& best) {
  const auto& [estimates, own, others] = known;
  const OtherWork& other_work = others.other_work;
  const auto a = own.survival.of(source).conditional();
  const bool assistant = source == DraftSource::kAssistant;
  // Looked-up drafts that follow make fewer of the assistant's worthwhile.
  const auto followed = assistant ? own.survival.followed() : SourceSurvival::Followed();
  const int rows_behind = static_cast<int>(std::lround(followed.rows));
  double tau = 1, survives = 1;
  for (int g = 1; g <= longest; ++g) {
    survives *= a[static_cast<std::size_t>(g - 1)];
    tau += survives;
    const double next = a[static_cast<std::size_t>(std::min(g, kDraftLengthMax - 1))];
    RoundTerms terms = assistant && limits.ahead ? ahead_terms(estimates, g, tau, survives, next, other_work)
                                                 : round_terms(estimates, source, g, tau, other_work);
    // (2) subtracts what (5) expects to hide, or the whole wait if the drafts are at hand; but no more than the wait
    // that this plan adds, since the other sequences' (4) is there anyway.
    const double hidden_s = terms.saved_s, added_s = terms.drafting_s() - plain.drafting_s();
    terms.saved_s = assistant && limits.at_hand ? added_s : std::min(hidden_s, added_s);
    RoundTerms with_behind = terms;
    if (rows_behind > 0) with_behind.verify_s = estimates.likely_verify_s(other_work.rows + g + rows_behind + 1);
    const double rate = (others.tokens + tau + survives * followed.tokens) /
                        together(estimates, with_behind, other_work, g + rows_behind).seconds *
                        (other_work.sequences > 0 && g == own.last_length ? kClearly : 1);
    best.weigh({.source = source, .length = g}, terms, rate);
  }
}

/// Weighs token trees of at most `most` drafts; a tree must be clearly better than the best chain.
void weigh_trees(const Known& known, int most, Best& best) {
  const auto a = known.own.survival.of(DraftSource::kAssistant).conditional();
  Best tree{.rate = kClearly * best.rate};
  double kept = 0, survives = 1;
  for (int drafts = 1; drafts <= most; ++drafts) {
    kept += survives *= a[static_cast<std::size_t>(drafts - 1)];
    const double tokens = 1 + kept * known.own.trees.over_chain(drafts);
    const RoundTerms terms = tree_terms(known.estimates, drafts, tokens);
    tree.weigh({.length = drafts, .tree = true}, terms, tokens_per_second(tokens, terms));
  }
  if (!tree.plan.tree) return;
  tree.plan.worth = std::min(1.0, tree.rate * tree_draft_price_s(known.estimates, tree.plan.length));
  best = tree;
}

/// (9) Returns the best plan within the limits. Pure.
DraftPlan plan_round(const Known& known, const DraftLimits& limits) {
  const auto& [estimates, own, others] = known;
  const OtherWork& other_work = others.other_work;
  const RoundTerms plain = round_terms(estimates, DraftSource::kAssistant, 0, 1, other_work);
  Best best{.terms = plain,
            .rate = limits.must_draft ? 0 : (others.tokens + 1) / together(estimates, plain, other_work, 0).seconds};
  const int most = estimates.knows_rows() ? kDraftLengthMax : kFirstTrial;
  for (std::size_t i = 0; i < kDraftSources; ++i) {
    const auto source = static_cast<DraftSource>(i);
    const int longest = std::min({limits.of(source), most, estimates.rows_most() - other_work.rows - 1});
    if (longest > 0) weigh_chains(known, limits, source, longest, plain, best);
  }
  if (limits.tree && !limits.at_hand && other_work.sequences == 0)
    weigh_trees(known, std::min(limits.assistant, most), best);
  best.plan.terms = best.terms;
  best.plan.others = others;
  return best.plan;
}

/// (10) Returns how many of `length` looked-up drafts after those of `begun` are worth their rows: rows are added while
/// the goodput rises. Pure, except that it updates the terms in `plan`.
int plan_extension(const Known& known, DraftPlan& plan, const RoundOutcome& begun, DraftSource source, int length) {
  const auto& [estimates, own, others] = known;
  const OtherWork& other_work = others.other_work;
  const auto a = (begun.drafted > 0 ? own.survival.behind(source) : own.survival.of(source)).conditional();
  auto [tokens, survives] = own.survival.so_far(begun);
  RoundTerms terms = plan.terms;
  // Pessimistic about rows that were never measured: each costs at least the mean of the rows before it.
  const int rows = other_work.rows + begun.drafted + 1;
  const double verify_s = estimates.likely_verify_s(rows), row_s = estimates.likely_row_s(rows);
  const auto rate_with = [&](int more) {
    terms.verify_s = std::max(estimates.likely_verify_s(rows + more), verify_s + more * row_s);
    return (others.tokens + tokens) / together(estimates, terms, other_work, begun.drafted + more).seconds;
  };
  Best best{.rate = rate_with(0)};
  best.terms = terms;
  const int longest = std::min({length, kDraftLengthMax - begun.drafted, estimates.rows_most() - rows});
  for (int more = 1; more <= longest; ++more) {
    tokens += survives *= a[static_cast<std::size_t>(more - 1)];
    // A round that goes beyond its drafter's drafts cannot be one that was drafted ahead for: (5) loses that case.
    if (more == 1) terms.saved_s -= survives * terms.after_all_s;
    const double rate = rate_with(more);
    best.weigh({.length = more}, terms, rate);
  }
  plan.terms = best.terms;
  return best.plan.length;
}

}  // namespace

DraftPlan GoodputLength::choose(const DraftLimits& limits) {
  const auto a = own_.survival.of(DraftSource::kAssistant).conditional();
  BatchGoodput::Survives survives_to = {};
  std::partial_sum(a.begin(), a.end(), survives_to.begin(), std::multiplies<>());
  batch_.update(this, survives_to, limits.assistant, limits.drafters, own_.survival.followed());
  if (!estimates_.knows_plain() && !limits.must_draft) return {};
  DraftPlan plan = plan_round({estimates_, own_, batch_.others(this, estimates_)}, limits);
  if (plan.length > 0 && !plan.tree) own_.last_length = plan.length;
  return plan;
}

int GoodputLength::extend(DraftPlan& plan, const RoundOutcome& begun, DraftSource source, int length) {
  const int more = plan_extension({estimates_, own_, plan.others}, plan, begun, source, length);
  if (more == 0) own_.survival.fade_behind(source);
  return more;
}

}  // namespace outrider
