#include "coordinator-node/session/verifier_seat.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace outrider {
namespace {

/// Number of long silences of a verifier after which each further silence counts as a loss.
constexpr std::ptrdiff_t kSilentMax = 8;

/// Returns true if each has `alternatives` alternatives, all in the vocabulary.
bool are_valid(const std::vector<TokenLogprobs>& logprobs, std::size_t alternatives, std::int32_t vocab_size) {
  return std::ranges::all_of(logprobs, [&](const TokenLogprobs& token) {
    return token.top.size() == std::min(alternatives, static_cast<std::size_t>(vocab_size)) &&
           std::ranges::all_of(token.top, [&](const Logprob& entry) { return entry.token < vocab_size; });
  });
}

}  // namespace

Fleet::Requirements VerifierSeat::requirements() const {
  Fleet::Requirements wanted{.media = sequence_.has_media(),
                             .encoding_class = encoder_.encoding_class,
                             .media_bytes = media_bytes(sequence_.request.media),
                             .prompt = sequence_.prompt_size,
                             .prefixes = sequence_.prefixes};
  if (except.empty() && !sequence_.has_token()) return wanted;
  wanted.numeric_class = numeric_class;
  wanted.except = except;
  if (!sequence_.has_token()) return wanted;
  wanted.context_min = sequence_.prompt_size + sequence_.request.max_tokens - 1;
  wanted.memory_min = sequence_.positions();
  if (resuming) wanted.name = reported_name;
  return wanted;
}

void VerifierSeat::take(const Fleet::Offer& offer) {
  place_ = Place(environment_.fleet, offer.verifier);
  worker().given.add(sequence_.prefixes);
  if (!offer.refuses) set_aside(offer.positions);
}

void VerifierSeat::leave() {
  policy.reset();
  if (place_.worker() != nullptr) session_.send(peer(), Free{});
  place_.leave();
}

bool VerifierSeat::leaves() {
  const Worker* verifier = place_.worker();
  if (verifier != nullptr && verifier->draining) {
    const auto offer = environment_.fleet.choose_verifier(sequence_.positions(), requirements());
    if (offer && !offer->refuses) leave();
  }
  return peer().empty();
}

void VerifierSeat::choose_policy(DraftInput needs) {
  const Generate& request = sequence_.request;
  if (request.stepwise || (policy != nullptr && policy_for_ == needs)) return;
  policy_for_ = needs;
  const bool governed = request.governed && !sequence_.output_depends_on_drafts();
  policy = make_policy(request.policy, request.draft_length, costs(), worker().batch, governed);
}

bool VerifierSeat::contradicts(const Verdict& verdict) const {
  return numeric_class && !sequence_.output_depends_on_drafts() && verdict.next_token != sequence_.tokens.back();
}

Result<void> VerifierSeat::check(const Verdict& verdict, bool prefill) const {
  const Round& round = session_.round;
  const SamplingParams& sampling = sequence_.request.sampling;
  const std::int32_t vocab_size = hello().facts.vocab_size;
  const std::int64_t drafts = prefill ? 0 : round.drafts.size(), row = prefill ? 0 : round.row_of(verdict);
  const Position committed = prefill ? sequence_.committed() : sequence_.base() + verdict.accepted + 1;
  if (verdict.next_token < 0 || verdict.next_token >= vocab_size)
    return Error(Errc::kMalformed, "token {}, wanted a token id from 0 to {}", verdict.next_token, vocab_size - 1);
  if (row < 0 || row > drafts || verdict.accepted != round.drafts.tree().depth(row) || verdict.committed != committed) {
    return Error(Errc::kMalformed, "it accepted {} of {} drafts, the last of row {}, and committed {}, wanted {}",
                 verdict.accepted, drafts, row, verdict.committed, committed);
  }
  if (verdict.kv.to > committed) {
    return Error(Errc::kMalformed, "it sent K/V rows {} to {} of a sequence that has {}", verdict.kv.from,
                 verdict.kv.to, committed);
  }
  if (prefill && !sequence_.has_token() && sampling.prompt_logprobs && scored != sequence_.prompt_size) {
    return Error(Errc::kMalformed, "log-probabilities of the prompt's first {} tokens, it has {}", scored,
                 sequence_.prompt_size);
  }
  const std::size_t wanted = sampling.logprobs ? static_cast<std::size_t>(verdict.accepted) + 1 : 0;
  if (verdict.logprobs.size() != wanted || !are_valid(verdict.logprobs, sampling.alternatives(), vocab_size)) {
    return Error(Errc::kMalformed, "{} logprobs for {} tokens, or not those that were asked for",
                 verdict.logprobs.size(), verdict.accepted + 1);
  }
  return {};
}

bool VerifierSeat::take_scores(const PromptScores& scores) {
  const std::optional<std::int32_t> wanted = sequence_.request.sampling.prompt_logprobs;
  const Position end = scores.first + std::ssize(scores.logprobs);
  if (sequence_.has_token() || !wanted || scores.first != scored || end > sequence_.prompt_size ||
      !are_valid(scores.logprobs, static_cast<std::size_t>(*wanted), hello().facts.vocab_size))
    return false;
  scored = end;
  return true;
}

void VerifierSeat::report(Tokens& tokens) {
  const std::int64_t max_tokens = sequence_.request.max_tokens;
  if (max_tokens != reported_max_tokens_) tokens.max_tokens = reported_max_tokens_ = max_tokens;
  const Worker* verifier = place_.worker();
  // A verifier without a class cannot be replaced exactly.
  if (verifier == nullptr || verifier->hello.numeric_class.empty() || reported_name == verifier->hello.name) return;
  tokens.numeric_class = verifier->hello.numeric_class;
  tokens.encoding_class = encoder_.encoding_class;
  tokens.verifier_name = reported_name = verifier->hello.name;
}

std::optional<Error> VerifierSeat::lose(Error error) {
  why = std::move(error);
  const auto times = std::ranges::count(silent_, peer());
  if (why.code == Errc::kPeerGone) silent_.push_back(peer());
  if (why.code != Errc::kPeerGone || times == 0 || times > kSilentMax) ++lost_;
  leave();
  if (lost_ <= environment_.config.failover.limit) return std::nullopt;
  ++environment_.failovers.failed;
  std::string what = why.message;
  if (lost_ > 1) what += fmt::format("; the sequence has lost {} verifiers", lost_);
  return Error{why.code, std::move(what)};
}

void VerifierSeat::count_failover() const {
  const bool exact = !sequence_.has_token() || numeric_class;
  const Duration paused = environment_.now - missed_since;
  ++(exact ? environment_.failovers.exact : environment_.failovers.inexact);
  environment_.failovers.resume_ns += paused.count();
  session_.ledger.count_failover(exact, paused);
}

std::optional<Error> VerifierSeat::on_unassigned(bool waits) {
  const Duration alone = environment_.now - unassigned_since;
  if (waits && !sequence_.has_token()) {
    if (alone < std::chrono::milliseconds(sequence_.request.wait_ms)) return std::nullopt;
    const bool verifier_exists = environment_.fleet.has_verifier({});
    return Error(Errc::kUnavailable, "no {} joined within {:.1f} s{}", verifier_exists ? "encoder" : "verifier",
                 to_seconds(alone), verifier_exists ? ", and there is no verifier with towers" : "");
  }
  if (alone < environment_.config.failover.wait) return std::nullopt;
  if (environment_.config.failover.allow_inexact && std::exchange(numeric_class, std::nullopt)) {
    encoder_.encoding_class.clear();
    unassigned_since = environment_.now;
    return std::nullopt;
  }
  ++environment_.failovers.failed;
  std::string what = why.message;
  if (alone > Duration::zero()) {
    what += fmt::format("; {} joined within {:.1f} s",
                        numeric_class ? "none that would give the same bytes" : "no other", to_seconds(alone));
  }
  return Error{why.code, std::move(what)};
}

}  // namespace outrider
