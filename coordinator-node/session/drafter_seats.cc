#include "coordinator-node/session/drafter_seats.h"

#include <fmt/format.h>

#include "common/wire/messages/donor_rows.h"

namespace outrider {

DrafterSeats::Replica* DrafterSeats::find(const PeerId& drafter) {
  const auto found = std::ranges::find(replicas_, drafter, &Replica::peer);
  return found == replicas_.end() ? nullptr : &*found;
}

std::vector<PeerId> DrafterSeats::peers() const {
  std::vector<PeerId> peers;
  for (const Replica& replica : replicas_) peers.push_back(replica.peer());
  return peers;
}

bool DrafterSeats::can_draft() const {
  return std::ranges::any_of(
      replicas_, [&](const Replica& replica) { return environment_.fleet.usable_drafter(replica.peer()) != nullptr; });
}

bool DrafterSeats::gets(const Replica& replica, DraftInput input) const {
  const Worker* drafter = environment_.fleet.usable_drafter(replica.peer());
  return drafter != nullptr && drafter->hello.needs == input;
}

DrafterWish DrafterSeats::wish(const Worker& verifier) const {
  return {.except = peers(),
          .proven = wants_proven(),
          .no_rows = environment_.now < verifier.rows_again,
          .no_tokens = !sequence_.request.media.empty(),
          .positions = std::ssize(sequence_.tokens) + 1,
          .in_all = sequence_.positions()};
}

void DrafterSeats::assign(const Worker& verifier) {
  while (!none_ && std::ssize(replicas_) < wanted()) {
    const PeerId peer = environment_.fleet.choose_drafter(wish(verifier));
    if (peer.empty()) return;
    replicas_.push_back({.place = Place(environment_.fleet, peer)});
    Place& place = replicas_.back().place;
    place.set_aside(place.worker()->kv_of(sequence_.positions()));
    needs_ = replicas_.front().place.worker()->hello.needs;
  }
}

void DrafterSeats::renew(const Worker& verifier) {
  const bool others = !environment_.fleet.choose_drafter(wish(verifier)).empty();
  for (const PeerId& peer : peers()) {
    const Worker* drafter = environment_.fleet.usable_drafter(peer);
    if (drafter != nullptr ? drafter->draining : others) release(peer, true);
  }
  assign(verifier);
}

void DrafterSeats::release(PeerId peer, bool tell) {
  if (tell && environment_.fleet.find(peer) != nullptr) environment_.send(peer, {.session = id_, .body = Free{}});
  std::erase_if(replicas_, [&](const Replica& replica) { return replica.peer() == peer; });
  if (replicas_.empty()) ahead.expect(0, 0);
}

void DrafterSeats::set_in_round(bool drafting) {
  for (Replica& replica : replicas_) replica.place.set_in_round(drafting);
}

std::optional<Position> DrafterSeats::rows_wanted() const {
  std::optional<Position> first;
  for (const Replica& replica : replicas_) {
    if (!gets(replica, DraftInput::kTargetRows)) continue;
    first = std::min(first.value_or(replica.end), replica.end);
  }
  return first;
}

WireForm DrafterSeats::wire_form() const {
  std::optional<WireForm> least;
  for (const Replica& replica : replicas_) {
    const Worker* drafter = replica.place.worker();
    if (drafter == nullptr) continue;
    const WireForm chosen = sequence_.drafts_have_a_say() ? WireForm::kExact : drafter->wire_choice.form(),
                   form = drafter->hello.wire == WireForm::kAuto ? chosen : drafter->hello.wire;
    least = std::min(least.value_or(form), form);
  }
  return least.value_or(WireForm::kExact);
}

void DrafterSeats::forward(KvRows kv, const PeerId& from, const PendingRequest& pending, Round& round) {
  const auto continues = [&](const Replica& replica) {
    return gets(replica, DraftInput::kTargetRows) && kv.from <= replica.end && replica.end < kv.to;
  };
  if (std::ranges::none_of(replicas_, continues)) return;
  const Hello& verifier = environment_.fleet.at(from).hello;
  if (auto ok = check_rows(verifier.facts, kv); !ok) {
    return environment_.warn_of(from, fmt::format("verifier {}: {}; dropped", verifier.name, ok.error().message), id_);
  }
  for (Replica& replica : replicas_) {
    if (continues(replica)) send(replica, rows_from(kv, replica.end), pending, round);
  }
}

void DrafterSeats::send_tokens(std::int64_t most, const PendingRequest& pending, Round& round) {
  // The last token of an answer is the Draft's.
  const Position end = sequence_.has_token() ? sequence_.base() : sequence_.prompt_size;
  for (Replica& replica : replicas_) {
    replica.behind = false;
    if (!gets(replica, DraftInput::kTokens) || replica.end >= end) continue;
    const Position from = replica.end, to = std::min(end, from + most);
    const auto begin = sequence_.tokens.begin();
    KvRows rows{.from = from, .to = to, .tokens = {begin + from, begin + to}};
    round.choice.catches_up |= sequence_.has_token() && end - from > kCatchUpRows / 2 && !pending.commits(rows);
    send(replica, std::move(rows), pending, round);
    replica.behind = end - from > kCatchUpRows;
  }
}

void DrafterSeats::send(Replica& replica, KvRows rows, const PendingRequest& pending, Round& round) {
  replica.end = rows.to;
  if (pending.commits(rows)) round.rows = static_cast<int>(rows.to - rows.from);
  environment_.send(replica.peer(),
                    {.session = id_, .round = round.id, .base = rows.from, .body = KvChunk{std::move(rows)}});
}

void DrafterSeats::weigh_wire(const Round& round, bool is_first) {
  const RoundOutcome& outcome = round.outcome;
  // Of several nobody can say whose bytes took the time.
  if (replicas_.size() != 1) return;
  Worker* drafter = replicas_[0].place.worker();
  const bool says_something = outcome.source == DraftSource::kAssistant && outcome.drafted > 0 && !outcome.ahead &&
                              outcome.draft_waited_s == 0 && !round.moved && !is_first;
  if (drafter == nullptr || !drafter->needs_rows() || drafter->hello.wire != WireForm::kAuto || !says_something) return;
  if (!drafter->wire_choice.observe(static_cast<double>(outcome.draft_bytes), outcome.draft_wire_s, outcome.round_s))
    return;
  environment_.notice(false,
                      fmt::format("drafter {}: from now on its rows travel as {}, by the time that {} bytes take "
                                  "in a round of {:.1f} ms",
                                  drafter->hello.name, to_string(drafter->wire_choice.form()), outcome.draft_bytes,
                                  1e3 * outcome.round_s));
}

void DrafterSeats::judge(const PeerId& drafter, bool accepted) {
  if (auto why = environment_.fleet.count_round(drafter, accepted, environment_.now))
    environment_.notice(true, std::move(*why));
}

std::string DrafterSeats::unreported(const Round& round) {
  const Worker* drafter = environment_.fleet.find(round.drafter);
  const bool drafted = round.outcome.source == DraftSource::kAssistant && !round.drafts.empty();
  if (drafter == nullptr || !drafted || drafter->hello.name == reported_) return "";
  return reported_ = drafter->hello.name;
}

}  // namespace outrider
