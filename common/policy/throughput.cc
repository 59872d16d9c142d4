#include "common/policy/throughput.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace outrider {
namespace {

/// So many trials weigh what else is known as much as they do themselves.
constexpr double kPriorTrials = 4;
/// Of mean rows.
constexpr double kRounding = 1e-6;

}  // namespace

std::size_t VerifyTime::cell_of(int rows) {
  if (rows <= kSingle) return static_cast<std::size_t>(rows);
  if (rows <= 128) return static_cast<std::size_t>(kSingle + 1 + (rows - kSingle - 1) / 8);
  return std::min<std::size_t>(kSingle + 13 + static_cast<std::size_t>(rows - 129) / 32, 63);
}

void VerifyTime::observe(int rows, double seconds) {
  CHECK(rows >= 1 && seconds >= 0, "{} rows in {} s", rows, seconds);
  // A forward pass of one M tells nothing of the others but that time passes: those grow stale and yield
  // where the curve would fall.
  for (Cell& cell : cells_) {
    cell.rows *= 0.99;
    cell.sum *= 0.99;
    cell.weight *= 0.99;
  }
  Cell& seen = cells_[cell_of(rows)];
  seen.rows = 0.7 * seen.rows + rows;
  seen.sum = 0.7 * seen.sum + seconds;
  seen.weight = 0.7 * seen.weight + 1;

  // Pool adjacent violators: blocks of neighbouring Ms whose means rise.
  struct Block {
    double sum, weight;
    std::size_t cells;
    double mean() const { return sum / weight; }
  };
  std::vector<Block> blocks;
  curve_.clear();
  for (const Cell& cell : cells_) {
    if (cell.weight < 1e-9) continue;
    curve_.push_back({cell.rows / cell.weight, 0});
    blocks.push_back({cell.sum, cell.weight, 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].mean() >= blocks.back().mean()) {
      const Block top = blocks.back();
      blocks.pop_back();
      Block& below = blocks.back();
      below = {below.sum + top.sum, below.weight + top.weight, below.cells + top.cells};
    }
  }
  auto point = curve_.begin();
  for (const Block& block : blocks)
    for (std::size_t i = 0; i < block.cells; ++i) (point++)->seconds = block.mean();
}

double VerifyTime::likely(int rows) const {
  if (curve_.empty()) return 0;
  const auto above = std::ranges::upper_bound(curve_, rows + kRounding, {}, &Point::rows);
  if (above == curve_.begin()) return above->seconds;
  const Point& below = *(above - 1);
  if (above == curve_.end()) {
    const Point& least = curve_.front();
    const double slope = (below.seconds - least.seconds) / std::max(1.0, below.rows - least.rows);
    return below.seconds + slope * (rows - below.rows);
  }
  return below.seconds + (above->seconds - below.seconds) * (rows - below.rows) / (above->rows - below.rows);
}

double VerifyTime::hoped(int rows) const {
  if (rows > kSingle) return likely(rows);
  const auto above = std::ranges::upper_bound(curve_, rows + kRounding, {}, &Point::rows);
  return above == curve_.begin() ? likely(rows) : (above - 1)->seconds;
}

double VerifyTime::row_s(int rows, double seconds) const {
  if (curve_.empty()) return 0;
  const Point& least = curve_.front();
  return (seconds - least.seconds) / std::max(1.0, rows - least.rows);
}

bool VerifyTime::knows(int rows) const { return cells_[cell_of(rows)].weight > 0.1; }

int VerifyTime::rows_most() const {
  return std::max(kSingle, curve_.empty() ? 0 : static_cast<int>(2 * curve_.back().rows));
}

void FadingLine::fade() {
  constexpr double kKeep = 0.9999;
  sums_.y *= kKeep;
  sums_.xy *= kKeep;
}

double FadingLine::slope() const {
  if (empty()) return 0;
  const double variance = sums_.variance_x();
  // Rounding leaves a variance near 0 where all xs are equal.
  if (variance <= 1e-9 * sums_.xx) return 0;
  return std::clamp(sums_.covariance() / variance, 0.0, sums_.y / std::max(sums_.x, 1e-300));
}

double FadingLine::intercept() const { return empty() ? 0 : (sums_.y - slope() * sums_.x) / sums_.n; }

void Survival::observe(int drafted, int accepted) {
  if (drafted == 0) {
    for (Count& count : counts_) count = {keep_ * count.held, keep_ * count.tried};
  }
  for (int i = 0; i < std::min({drafted, accepted + 1, kDraftLengthMax}); ++i) {
    Count& count = counts_[static_cast<std::size_t>(i)];
    count.held = keep_ * count.held + (i < accepted ? 1 : 0);
    count.tried = keep_ * count.tried + 1;
  }
}

std::array<double, kDraftLengthMax> Survival::conditional() const {
  constexpr double kFirst = 0.7;  // before anything is known: hopeful enough to try
  std::array<double, kDraftLengthMax> prior = {};
  if (prior_ != nullptr) prior = prior_->conditional();
  std::array<double, kDraftLengthMax> a = {};
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double lean = prior_ != nullptr ? prior[i] : i == 0 ? kFirst : a[i - 1];
    a[i] = (counts_[i].held + kPriorTrials * lean) / (counts_[i].tried + kPriorTrials);
  }
  return a;
}

SourceSurvival::SourceSurvival(double keep, double keep_behind, const SourceSurvival* prior)
    : of_{Survival(keep), Survival(keep), Survival(keep)},
      behind_{Survival(keep_behind), Survival(keep_behind), Survival(keep_behind)},
      rows_(keep_behind),
      tokens_(keep_behind),
      prior_(prior) {
  for (std::size_t i = 0; prior != nullptr && i < kDraftSources; ++i) {
    of_[i] = Survival(keep, &prior->of_[i]);
    behind_[i] = Survival(keep_behind, &prior->behind_[i]);
  }
}

void SourceSurvival::observe(const RoundOutcome& outcome) {
  if (outcome.tree)
    return of_[static_cast<std::size_t>(outcome.source)].observe(outcome.tree->chain, outcome.tree->held);
  const int own = outcome.own();
  of_[static_cast<std::size_t>(outcome.source)].observe(own, std::min(own, outcome.accepted));
  int held = outcome.accepted - own;
  if (own > 0 && outcome.source == DraftSource::kAssistant) {
    rows_.observe(outcome.drafted - own);
    if (held >= 0) tokens_.observe(held);
  }
  for (const DraftSource source : kLookUps) {
    const int drafted = outcome.behind[static_cast<std::size_t>(source)];
    // Behind a draft that was lost nothing was tried.
    if (drafted > 0 && held >= 0) behind_[static_cast<std::size_t>(source)].observe(drafted, std::min(drafted, held));
    held -= drafted;
  }
}

SourceSurvival::Reach SourceSurvival::reach(const RoundOutcome& begun) const {
  Reach reach;
  const auto go_on = [&](const Survival& survival, int drafts) {
    const auto a = survival.conditional();
    for (int i = 0; i < drafts; ++i) reach.tokens += reach.survives *= a[static_cast<std::size_t>(i)];
  };
  go_on(of(begun.source), begun.own());
  for (const DraftSource source : kLookUps) go_on(behind(source), begun.behind[static_cast<std::size_t>(source)]);
  return reach;
}

SourceSurvival::Followed SourceSurvival::followed() const {
  const Followed prior = prior_ != nullptr ? prior_->followed() : Followed();
  const auto lean = [](const FadingMean& mean, double on) {
    return (mean.value() * mean.weight() + kPriorTrials * on) / (mean.weight() + kPriorTrials);
  };
  return {lean(rows_, prior.rows), lean(tokens_, prior.tokens)};
}

void AheadHits::observe(bool all_held, bool hit, double wait_s) {
  (all_held ? after_all_ : after_loss_).observe(hit ? 1 : 0);
  if (hit) wait_.observe(wait_s);
}

double AheadHits::chance(double survives, double next) const {
  const double after_all = after_all_.empty() ? next : after_all_.value();
  return survives * after_all + (1 - survives) * after_loss_.value();
}

void CostModel::observe_pass(int rows, double seconds) {
  if (seconds == last_verify_s_) return;
  last_verify_s_ = seconds;
  verify_.observe(rows, seconds);
  const double usual = usual_.likely(rows);
  if (!usual_.knows(rows) || usual <= 0) return usual_.observe(rows, seconds / load_);
  load_ = std::clamp((load_ + seconds / usual) / 2, 0.1, 10.0);
  // The load is a pass late: one pass says little else.
  usual_.observe(rows, std::clamp(seconds / load_, usual / 1.1, usual * 1.1));
}

void CostModel::observe_forward(const RoundOutcome& outcome) {
  const int rows = std::max(outcome.batch_rows, outcome.drafted + 1);
  observe_pass(rows, outcome.verify_s);
  others_.observe(rows - outcome.drafted - 1);
}

void CostModel::observe(const RoundOutcome& outcome) {
  CHECK(outcome.drafted >= 0 && outcome.accepted >= 0 && outcome.accepted <= outcome.drafted, "{} of {}",
        outcome.accepted, outcome.drafted);
  observe_forward(outcome);
  const double drafting = outcome.draft_s + outcome.draft_wire_s + outcome.draft_waited_s;
  other_.observe(std::max(0.0, outcome.round_s - outcome.verify_s - drafting - outcome.waited_s));
  trees_.observe(survival_.of(outcome.source).conditional(), outcome);
  if (outcome.tree && outcome.drafted == 0) return;  // nothing was worth a row: no plain round, and no drafts
  if (outcome.tree) tree_draft_s_.observe(outcome.draft_s, outcome.drafted);
  if (outcome.drafted > 0) {
    survival_.observe(outcome);
    for (const DraftSource source : kLookUps)
      if (outcome.behind[static_cast<std::size_t>(source)] == 0) survival_.fade_behind(source);
  }
  if (outcome.drafted == 0 || outcome.source != DraftSource::kAssistant) {
    if (drafting > 0) {  // drafts that did not come in time: they cost at least the wait
      if (outcome.draft_waited_s == 0) drafts_.wire.observe(static_cast<double>(outcome.draft_bytes), drafting);
    } else if (outcome.drafted == 0) {
      // Nobody measures the link while nobody drafts; hope returns slowly (half after 7000 rounds).
      drafts_.wire.fade();
      plain_.observe(outcome.round_s);
      ++plain_rounds_;
    }
    return;
  }
  if (!outcome.tree)
    (outcome.ahead ? tokens_ahead_ : tokens_asked_).observe(std::min(outcome.accepted, outcome.own()) + 1);
  if (outcome.ahead) return;  // nobody waited: it says nothing of what asking costs
  const double passes = outcome.draft_passes > 0 ? outcome.draft_passes : outcome.own();
  drafts_.pass_s.observe(std::max(1.0, outcome.draft_pass_rows), outcome.draft_s / passes);
  drafts_.bytes.observe(outcome.draft_rows, static_cast<double>(outcome.draft_bytes));
  if (outcome.draft_waited_s == 0) drafts_.wire.observe(static_cast<double>(outcome.draft_bytes), outcome.draft_wire_s);
}

int CostModel::others() const { return static_cast<int>(std::lround(others_.value())); }

double CostModel::together_s(const RoundTerms& terms, const Company& company, int length) const {
  if (company.texts == 0) return terms.seconds();
  const double half_s = likely_verify_s((company.rows + length + 2) / 2);  // rounded up
  // The verifier waits for the second half where that saves more time of a pass than the drafts take (batch_window.h).
  if (2 * half_s - terms.verify_s > terms.drafting_s() - terms.draft_s * (1 - 1 / company.drag)) return terms.seconds();
  RoundTerms half = terms;
  half.verify_s = half_s;
  half.draft_s = terms.draft_s / 2;
  return std::max({half.seconds(), 2 * half_s, terms.draft_s});
}

RoundTerms CostModel::terms(DraftSource source, int length, double tau, const Company& company) const {
  const int rows = company.rows + length + 1;
  RoundTerms terms{.verify_s = company.texts > 0 ? likely_verify_s(rows) : verify_s(rows), .other_s = other_.value()};
  // All wait for the last draft that an assistant makes, whoever it is for. N-grams cost no time.
  const int own = source == DraftSource::kAssistant ? length : 0, drafts = company.drafts + own;
  if (drafts == 0) return terms;
  const double halves = std::min(company.texts + 1, drafts) > company.drafters ? 2 : 1;
  terms.draft_s = (drafts_.pass_s.intercept() * halves * std::max(company.longest, own) +
                   drafts_.pass_s.slope() * drafts / company.drafters) *
                  company.drag;
  terms.rtt_s = drafts_.wire.intercept();
  terms.bytes = drafts_.bytes.intercept() + drafts_.bytes.slope() * tau;
  terms.s_per_byte = drafts_.wire.slope();
  return terms;
}

RoundTerms CostModel::tree_terms(int drafts, double tau) const {
  RoundTerms terms = this->terms(DraftSource::kAssistant, drafts, tau);
  if (!tree_draft_s_.empty()) terms.draft_s = drafts * tree_draft_s_.value();
  return terms;
}

double CostModel::tree_draft_price_s(int drafts) const {
  const int rows = others() + drafts + 1;
  return verify_.row_s(rows, verify_.hoped(rows)) + tree_terms(drafts, 1).draft_s / drafts;
}

double CostModel::lost_ahead() const {
  constexpr double kEnough = 20;
  if (std::min(tokens_asked_.weight(), tokens_ahead_.weight()) < kEnough) return 0;
  return std::max(0.0, 1 - tokens_ahead_.value() / tokens_asked_.value());
}

RoundTerms CostModel::terms_ahead(int length, double tau, double survives, double next, const Company& company) const {
  RoundTerms terms = this->terms(DraftSource::kAssistant, length, tau, company);
  const double left_s = ahead_.wait_s() + lost_ahead() * terms.seconds();
  terms.saved_s = std::max(0.0, ahead_.chance(survives, next) * (terms.drafting_s() - left_s));
  if (terms.saved_s > 0) terms.after_all_s = ahead_.chance(1, next) * (terms.drafting_s() - left_s);
  return terms;
}

bool CostModel::ahead_pays(int length) const {
  const auto a = survival_.of(DraftSource::kAssistant).conditional();
  double tau = 1, survives = 1;
  for (int i = 0; i < length; ++i) tau += survives *= a[static_cast<std::size_t>(i)];
  return terms_ahead(length, tau, survives, a[static_cast<std::size_t>(std::min(length, kDraftLengthMax - 1))])
             .saved_s > 0;
}

}  // namespace outrider
