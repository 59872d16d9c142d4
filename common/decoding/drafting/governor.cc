#include "common/decoding/drafting/governor.h"

#include <algorithm>

namespace outrider {
namespace {

/// Drafting takes slightly longer than its mean about half of the time.
constexpr double kDraftMargin = 1.5;

}  // namespace

void Governor::Account::add(int tokens, double loss) {
  recent_.push_back({tokens, loss});
  tokens_ += tokens;
  while (tokens_ >= kWindow) {
    tokens_ -= recent_.front().tokens;
    recent_.pop_front();
  }
  double sum = 0;
  drawdown_ = 0;
  for (auto spent = recent_.rbegin(); spent != recent_.rend(); ++spent)
    drawdown_ = std::max(drawdown_, sum += spent->loss);
}

RoundTerms Governor::terms(const DraftLimits& limits, DraftSource source, int length) const {
  RoundTerms terms = round_terms(estimates_, source, length, length + 1, {.rows = estimates_.others()});
  if (limits.at_hand && source == DraftSource::kAssistant) terms.saved_s = terms.drafting_s();
  return terms;
}

double Governor::worst_loss(const RoundTerms& terms) const {
  const double forward = std::max(0.0, terms.verify_s * surprise_ - estimates_.verify_s(estimates_.others() + 1));
  return (forward + kDraftMargin * (terms.drafting_s() - terms.saved_s)) / estimates_.plain_s.value();
}

double Governor::loss(const DraftPlan& plan, const RoundOutcome& outcome) const {
  // Charges only the time that drafting can have caused: g + 1 rows never cost more than g + 1 passes of one row. The
  // rest of a longer pass is the machine's, and so is all time outside the pass and the wait for drafts. Other
  // sequences' rows would be there anyway.
  const double without = estimates_.verify_s(std::max(0, outcome.batch_rows - outcome.drafted - 1) + 1);
  const double forward = std::min(outcome.verify_s, without * (outcome.drafted + 1)) - without;
  const double plain = estimates_.plain_s.value(), spent = forward + outcome.drafting_s();
  // A drafter that computes K/V beside the pass takes half of the cores at most.
  const double beside = plan.catches_up ? std::clamp(outcome.round_s - plain - spent, 0.0, plain) : 0;
  return (spent + beside) / plain - outcome.accepted;
}

DraftPlan Governor::choose(const DraftLimits& limits) {
  if (!estimates_.knows_plain() || estimates_.plain_s.value() <= 0 || tokens_since_plain_ >= kPlainEvery ||
      (parked_ && tokens_undrafted_ < park_tokens_)) {
    inner_->choose({.drafters = limits.drafters});  // the other sequences' plans must not count on drafts of this one
    return {};
  }
  DraftPlan wanted = inner_->choose(limits);
  if (wanted.length > 0) {
    probe_.rounds_left = 0;
  } else {
    DraftLimits drafting = limits;
    drafting.must_draft = true;
    if (probe_.rounds_left == 0 && tokens_undrafted_ < probe_.tokens) return wanted;
    wanted = inner_->choose(drafting);
    if (wanted.length == 0) return wanted;  // no source can draft
    if (probe_.rounds_left == 0) {
      const double loss = worst_loss(terms(limits, wanted.source, wanted.length));
      if (!batch_.spend(kProbeRounds * loss)) return {};
      probe_.rounds_left = kProbeRounds;
      probe_.loss = 0;
    }
  }
  const auto terms_of = [&](int length) { return terms(limits, wanted.source, length); };
  while (wanted.length > 0 && account_.drawdown() + worst_loss(terms_of(wanted.length)) > kAllowance) --wanted.length;
  if (wanted.length == 0) {
    probe_.rounds_left = 0;
    parked_ = true;
    return {};
  }
  parked_ = false;
  const RoundTerms expected = terms_of(wanted.length);
  wanted.patience_s = kDraftMargin * (expected.drafting_s() - expected.saved_s) +
                      (kAllowance - account_.drawdown() - worst_loss(expected)) * estimates_.plain_s.value();
  wanted.verify_s = expected.verify_s;
  return wanted;
}

int Governor::extend(DraftPlan& plan, const RoundOutcome& begun, DraftSource source, int length) {
  // A probe's cost was set aside for it.
  if (plan.length == 0 || probe_.rounds_left > 0) return 0;
  const auto terms_of = [&](int more) { return terms({}, DraftSource::kNgram, begun.drafted + more); };
  const double left = kAllowance - account_.drawdown() - begun.drafting_s() / estimates_.plain_s.value();
  int more = inner_->extend(plan, begun, source, length);
  while (more > 0 && worst_loss(terms_of(more)) > left) --more;
  if (more > 0) plan.verify_s = terms_of(more).verify_s;
  return more;
}

void Governor::observe(const DraftPlan& plan, const RoundOutcome& outcome) {
  const int tokens = outcome.accepted + 1;
  batch_.earn(tokens);
  const double lost = plan.length > 0 ? loss(plan, outcome) : 0;
  account_.add(tokens, lost);
  inner_->observe(plan, outcome);
  tokens_undrafted_ = plan.length > 0 ? 0 : tokens_undrafted_ + tokens;
  tokens_since_plain_ = plan.length == 0 ? 0 : tokens_since_plain_ + tokens;
  if (plan.length == 0) return;
  if (plan.catches_up) batch_.owe(lost);

  if (outcome.drafted > 0 && plan.verify_s > 0) {
    surprise_ = std::max(
        {1.0, keeps::kSurprise * surprise_, std::min<double>(outcome.verify_s / plan.verify_s, outcome.drafted + 1)});
  }
  if (probe_.rounds_left > 0) {
    probe_.loss += lost;
    if (plan.catches_up && outcome.drafted == 0) return;
    if (--probe_.rounds_left == 0) probe_.tokens = probe_.loss < 0 ? kProbeMin : std::min(2 * probe_.tokens, kProbeMax);
  } else if (account_.drawdown() <= kAllowance / 2) {
    park_tokens_ = kParkMin;
  } else if (lost > 0) {
    // Half is spent. The rest is spent on single tries at growing distances, so that one is left when a better passage
    // begins: its gain repays several lost tries.
    if (parked_before_) park_tokens_ = std::min(2 * park_tokens_, kParkMax);
    parked_ = parked_before_ = true;
  }
  if (account_.drawdown() <= kAllowance / 2) parked_before_ = false;
}

}  // namespace outrider
