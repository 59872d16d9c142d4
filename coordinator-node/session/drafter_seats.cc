#include "coordinator-node/session/drafter_seats.h"

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/wire/messages/donor_rows.h"

namespace outrider {

DrafterSeats::Replica* DrafterSeats::find(const PeerId& drafter) {
  const auto found = std::ranges::find(replicas, drafter, &Replica::peer);
  return found == replicas.end() ? nullptr : &*found;
}

std::vector<PeerId> DrafterSeats::peers() const {
  std::vector<PeerId> peers;
  for (const Replica& replica : replicas) peers.push_back(replica.peer());
  return peers;
}

bool DrafterSeats::can_draft() const {
  return std::ranges::any_of(
      replicas, [&](const Replica& replica) { return environment_.fleet.usable_drafter(replica.peer()) != nullptr; });
}

/// Returns true if the replica's drafter answers, and needs this input.
static bool gets(Fleet& fleet, const DrafterSeats::Replica& replica, DraftInput input) {
  const Worker* drafter = fleet.usable_drafter(replica.peer());
  return drafter != nullptr && drafter->hello.needs == input;
}

DrafterRequirements DrafterSeats::requirements(const Worker& verifier) const {
  return {.except = peers(),
          .proven = sequence_.output_depends_on_drafts(),  // the drafter's identity must then be known
          .no_rows = !takes_rows_ || environment_.now < verifier.rows_again,
          .no_tokens = !sequence_.request.media.empty(),
          .positions = std::ssize(sequence_.tokens) + 1,
          .in_all = sequence_.positions()};
}

void DrafterSeats::assign(const Worker& verifier) {
  while (takes_more && std::ssize(replicas) < wanted()) {
    const PeerId peer = environment_.fleet.choose_drafter(requirements(verifier));
    if (peer.empty()) return;
    replicas.push_back({.place = Place(environment_.fleet, peer)});
    Place& place = replicas.back().place;
    place.set_aside(place.worker()->kv_of(sequence_.positions()));
    needs_ = replicas.front().place.worker()->hello.needs;
  }
}

void DrafterSeats::renew(const Worker& verifier) {
  const DrafterRequirements wanted = requirements(verifier);
  const bool others = !environment_.fleet.choose_drafter(wanted).empty();
  for (const PeerId& peer : peers()) {
    const Worker* drafter = environment_.fleet.usable_drafter(peer);
    const bool of_use = drafter != nullptr && !drafter->draining && drafter->context() >= wanted.positions;
    if (!of_use && (drafter != nullptr || others)) release(peer);
  }
  assign(verifier);
}

void DrafterSeats::release(PeerId peer) {
  if (environment_.fleet.find(peer) != nullptr)
    environment_.send(peer, {.session = session_.id, .body = Free{}});
  std::erase_if(replicas, [&](const Replica& replica) { return replica.peer() == peer; });
  if (replicas.empty()) ahead.expect(0, 0);
}

void DrafterSeats::set_in_round(bool drafting) {
  for (Replica& replica : replicas) replica.place.set_in_round(drafting);
}

std::optional<Position> DrafterSeats::rows_wanted() const {
  std::optional<Position> first;
  for (const Replica& replica : replicas) {
    if (!gets(environment_.fleet, replica, DraftInput::kTargetRows)) continue;
    first = std::min(first.value_or(replica.end), replica.end);
  }
  return first;
}

WireForm DrafterSeats::wire_form() const {
  std::optional<WireForm> least;
  for (const Replica& replica : replicas) {
    const Worker* drafter = replica.place.worker();
    if (drafter == nullptr) continue;
    const WireForm chosen = sequence_.output_depends_on_drafts() ? WireForm::kExact : drafter->wire_choice.form(),
                   form = drafter->hello.wire == WireForm::kAuto ? chosen : drafter->hello.wire;
    least = std::min(least.value_or(form), form);
  }
  return least.value_or(WireForm::kExact);
}

void DrafterSeats::forward(KvRows kv, const PeerId& from) {
  // A verifier with rows beyond the sequence is distrusted before (Verifying, VerifierSeat::check).
  DCHECK(kv.to <= std::ssize(sequence_.tokens), "rows to {} of {} tokens", kv.to, sequence_.tokens.size());
  const auto continues = [&](const Replica& replica) {
    return gets(environment_.fleet, replica, DraftInput::kTargetRows) && kv.from <= replica.end && replica.end < kv.to;
  };
  if (std::ranges::none_of(replicas, continues)) return;
  if (auto ok = check_rows(environment_.fleet.at(from).hello.facts, kv); !ok)
    return session_.warn_of_worker(from, ok.error().message + "; dropped");
  for (Replica& replica : replicas) {
    if (!continues(replica)) continue;
    KvRows rows = rows_from(kv, replica.end);
    const auto begin = sequence_.tokens.begin();
    rows.tokens = {begin + rows.from, begin + rows.to};
    send(replica, std::move(rows));
  }
}

void DrafterSeats::send_tokens(std::int64_t most) {
  // The last token of an answer is sent with the Draft.
  const Position end = sequence_.committed();
  for (Replica& replica : replicas) {
    replica.behind = false;
    if (!gets(environment_.fleet, replica, DraftInput::kTokens) || replica.end >= end) continue;
    const Position from = replica.end, to = std::min(end, from + most);
    const auto begin = sequence_.tokens.begin();
    KvRows rows{.from = from, .to = to, .tokens = {begin + from, begin + to}};
    const bool far_behind = end - from > kCatchUpRows / 2 && !session_.pending.commits(rows);
    round_.choice.catches_up |= sequence_.has_token() && far_behind;
    send(replica, std::move(rows));
    replica.behind = end - from > kCatchUpRows;
  }
}

void DrafterSeats::send(Replica& replica, KvRows rows) {
  replica.end = rows.to;
  if (session_.pending.commits(rows)) round_.rows = static_cast<int>(rows.to - rows.from);
  const Position base = rows.from;
  session_.send(replica.peer(), KvChunk{std::move(rows)}, base);
}

void DrafterSeats::weigh_wire(bool is_first) {
  const RoundOutcome& outcome = round_.outcome;
  // With several drafters, the time cannot be attributed to one's bytes.
  if (replicas.size() != 1) return;
  Worker* drafter = replicas[0].place.worker();
  const bool is_measured = outcome.source == DraftSource::kAssistant && outcome.drafted > 0 && !outcome.ahead &&
                           outcome.draft_waited_s == 0 && !round_.moved && !is_first;
  if (drafter == nullptr || !drafter->needs_rows() || drafter->hello.wire != WireForm::kAuto || !is_measured) return;
  if (!drafter->wire_choice.observe(static_cast<double>(outcome.draft_bytes), outcome.draft_wire_s, outcome.round_s))
    return;
  environment_.notice(false,
                      fmt::format("drafter {}: from now on its rows travel as {}, by the time that {} bytes take "
                                  "in a round of {:.1f} ms",
                                  drafter->hello.name, to_string(drafter->wire_choice.form()), outcome.draft_bytes,
                                  1e3 * outcome.round_s));
}

std::string DrafterSeats::unreported() {
  const Worker* drafter = environment_.fleet.find(round_.drafter);
  const bool drafted = round_.outcome.source == DraftSource::kAssistant && !round_.drafts.empty();
  if (drafter == nullptr || !drafted || drafter->hello.name == reported_) return "";
  return reported_ = drafter->hello.name;
}

}  // namespace outrider
