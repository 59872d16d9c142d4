#include "common/policy/governor.h"

#include <algorithm>

namespace outrider {
namespace {

/// Drafts take a little longer than their mean about half of the time.
constexpr double kDraftMargin = 1.5;

/// What the drafts of a round have taken.
double drafting_s(const RoundOutcome& outcome) {
  return outcome.draft_s + outcome.draft_wire_s + outcome.draft_waited_s;
}

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
  RoundTerms terms = costs_.terms(source, length, length + 1, {.rows = costs_.others()});
  if (limits.at_hand && source == DraftSource::kAssistant) terms.saved_s = terms.drafting_s();
  return terms;
}

double Governor::worst_loss(const RoundTerms& terms) const {
  const double forward = std::max(0.0, terms.verify_s * surprise_ - costs_.verify_s(costs_.others() + 1));
  return (forward + kDraftMargin * (terms.drafting_s() - terms.saved_s)) / costs_.plain_s();
}

double Governor::loss(const RoundOutcome& outcome) const {
  // Only what drafting can have caused: g + 1 rows never cost more than g + 1 passes of one row, so the rest of a
  // longer pass is the machine's, as is all that is neither the pass nor the wait for drafts. Rows of other texts would
  // be there without it.
  const double without = costs_.verify_s(std::max(0, outcome.batch_rows - outcome.drafted - 1) + 1);
  const double forward = std::min(outcome.verify_s, without * (outcome.drafted + 1)) - without;
  return (forward + drafting_s(outcome)) / costs_.plain_s() - outcome.accepted;
}

DraftChoice Governor::choose(const DraftLimits& limits) {
  choice_ = {};
  if (!costs_.knows_plain() || costs_.plain_s() <= 0 || tokens_since_plain_ >= kPlainEvery) return choice_;
  if (parked_ && tokens_undrafted_ < park_tokens_) return choice_;
  DraftChoice wanted = inner_->choose(limits);
  if (wanted.length > 0) {
    probe_.rounds_left = 0;
  } else {
    DraftLimits drafting = limits;
    drafting.must_draft = true;
    if (probe_.rounds_left == 0 && tokens_undrafted_ < probe_.tokens) return choice_;
    wanted = inner_->choose(drafting);
    if (wanted.length == 0) return choice_;  // nobody can
    if (probe_.rounds_left == 0) {
      const double loss = worst_loss(terms(limits, wanted.source, wanted.length));
      if (!batch_.spend(kProbeRounds * loss)) return choice_;
      probe_.rounds_left = kProbeRounds;
      probe_.loss = 0;
    }
  }
  const auto terms_of = [&](int length) { return terms(limits, wanted.source, length); };
  while (wanted.length > 0 && account_.drawdown() + worst_loss(terms_of(wanted.length)) > kAllowance) --wanted.length;
  if (wanted.length == 0) {
    probe_.rounds_left = 0;
    parked_ = true;
    return choice_;
  }
  parked_ = false;
  const RoundTerms expected = terms_of(wanted.length);
  wanted.patience_s = kDraftMargin * (expected.drafting_s() - expected.saved_s) +
                      (kAllowance - account_.drawdown() - worst_loss(expected)) * costs_.plain_s();
  predicted_verify_s_ = expected.verify_s;
  return choice_ = wanted;
}

int Governor::extend(const RoundOutcome& begun, DraftSource source, int length) {
  // A probe costs what was set aside for it.
  if (choice_.length == 0 || probe_.rounds_left > 0) return 0;
  const auto terms_of = [&](int more) { return terms({}, DraftSource::kNgram, begun.drafted + more); };
  const double left = kAllowance - account_.drawdown() - drafting_s(begun) / costs_.plain_s();
  int more = inner_->extend(begun, source, length);
  while (more > 0 && worst_loss(terms_of(more)) > left) --more;
  if (more > 0) predicted_verify_s_ = terms_of(more).verify_s;
  return more;
}

void Governor::observe(const RoundOutcome& outcome) {
  const int tokens = outcome.accepted + 1;
  batch_.earn(tokens);
  const double lost = choice_.length > 0 ? loss(outcome) : 0;
  account_.add(tokens, lost);
  inner_->observe(outcome);
  tokens_undrafted_ = choice_.length > 0 ? 0 : tokens_undrafted_ + tokens;
  tokens_since_plain_ = choice_.length == 0 ? 0 : tokens_since_plain_ + tokens;
  if (choice_.length == 0) return;

  if (outcome.drafted > 0 && predicted_verify_s_ > 0) {
    surprise_ =
        std::max({1.0, 0.7 * surprise_, std::min<double>(outcome.verify_s / predicted_verify_s_, outcome.drafted + 1)});
  }
  if (probe_.rounds_left > 0) {
    probe_.loss += lost;
    if (--probe_.rounds_left == 0) probe_.tokens = probe_.loss < 0 ? kProbeMin : std::min(2 * probe_.tokens, kProbeMax);
  } else if (account_.drawdown() <= kAllowance / 2) {
    park_tokens_ = kParkMin;
  } else if (lost > 0) {
    // Half is spent. The rest is for single tries further and further apart, so that there is one left for the better
    // passage that ends this one: one gain there brings back what several tries lost.
    if (parked_before_) park_tokens_ = std::min(2 * park_tokens_, kParkMax);
    parked_ = parked_before_ = true;
  }
  if (account_.drawdown() <= kAllowance / 2) parked_before_ = false;
}

}  // namespace outrider
