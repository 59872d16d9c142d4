#include "common/protocol/session.h"

#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "common/policy/ngram.h"
#include "common/protocol/donor_rows.h"
#include "common/protocol/media_bytes.h"

namespace outrider {
namespace {

/// A drafter that has not answered by then is left out of the round; it is asked again once it is heard. Losing a round
/// of drafts costs little, waiting for a dead drafter costs a user's patience.
constexpr Duration kDraftTimeout = std::chrono::milliseconds(500);
/// Repeat an unanswered request to a verifier that is alive: its answer or the request was lost.
constexpr Duration kVerifyResend = std::chrono::seconds(2);
/// Repeats of which a verifier says nothing, not even that the request is in work, until it counts as of no use.
constexpr int kUnheardMax = 4;
/// A session that waits for its client's step: repeat its last request, so that the verifier does not take it for one
/// whose Free was lost (VerifierConfig::session_idle_max), and see whether the client is still there. Rare, because all
/// of it waits in the queue of a client that does not read.
constexpr Duration kKeepAlive = std::chrono::seconds(30);
constexpr int kKeepAlivesMax = 120;  ///< then the session fails: nobody waits an hour for a step

/// More than 1,120 soft tokens of a picture or 30 s of a sound are made of.
constexpr std::size_t kMediumBytesMax = 8u << 20;

/// The first id that a vocabulary of this size does not have.
std::optional<TokenId> first_beyond(std::span<const TokenId> ids, std::int32_t vocab_size) {
  const auto found = std::ranges::find_if(ids, [&](TokenId id) { return id >= vocab_size; });
  return found == ids.end() ? std::nullopt : std::optional(*found);
}

/// Without what is the target's matter alone.
SamplingParams for_drafter(SamplingParams sampling) {
  sampling.logprobs.reset();
  sampling.prompt_logprobs.reset();
  sampling.logprob_token_ids.clear();
  return sampling;
}

/// Whether each has so many alternatives, all of the vocabulary.
bool fits(const std::vector<TokenLogprobs>& logprobs, std::size_t alternatives, std::int32_t vocab_size) {
  return std::ranges::all_of(logprobs, [&](const TokenLogprobs& token) {
    return token.top.size() == std::min(alternatives, static_cast<std::size_t>(vocab_size)) &&
           std::ranges::all_of(token.top, [&](const Logprob& entry) { return entry.token < vocab_size; });
  });
}

}  // namespace

Session::Session(SessionId id, const PeerId& client, SessionId request_id, Generate request, TimePoint now)
    : id_(id),
      client_{client, request_id},
      request_(std::move(request)),
      text_(std::move(request_.prompt)),
      prompt_{.size = std::ssize(text_) - request_.answered},
      drafts_plainly_(for_drafter(request_.sampling) == SamplingParams{}),
      entered_(now),
      workers_{.alone_since = now},
      books_{.opened = now} {
  failover_.told_tokens = request_.max_tokens;
  if (!has_token()) return;
  failover_.elsewhere = true;
  failover_.numeric_class = std::exchange(request_.numeric_class, {});
  failover_.told_verifier = std::exchange(request_.verifier_name, {});
  encoding_.encoding_class = std::exchange(request_.encoding_class, {});
  failover_.why = {Errc::kUnavailable, "no verifier can go on with it"};
}

Session::Session(SessionId id, const Audit& audit, TimePoint now) : Session(id, "", id, audit.request, now) {
  failover_.numeric_class = audit.numeric_class;
  failover_.except = audit.verifier;
  encoding_.encoding_class = std::exchange(request_.encoding_class, {});
  encoding_.done = static_cast<std::size_t>(std::ranges::count_if(request_.media, &WireMedium::is_encoded));
}

std::int64_t Session::prompt_bytes() const {
  return std::ssize(text_) * std::int64_t{sizeof(TokenId)} + media_bytes(request_.media);
}

std::optional<Audit> Session::audit() const {
  const bool began_here = request_.answered == 0 && client_.peer != "";
  if (!books_.done || !began_here || drafts_have_a_say() || request_.unverified || !has_token() ||
      books_.metrics.failovers > 0 || failover_.told_verifier.empty())
    return std::nullopt;
  Audit audit{.request = {.prompt = {text_.begin(), text_.begin() + prompt_.size},
                          .max_tokens = answered(),
                          .stop_ids = request_.stop_ids,
                          .stepwise = true,
                          .sampling = request_.sampling,
                          .cache_scope = request_.cache_scope,
                          .media = request_.media,
                          .encoding_class = encoding_.encoding_class},
              .answer = {text_.begin() + prompt_.size, text_.end()},
              .numeric_class = failover_.numeric_class.value_or(""),
              .verifier = failover_.told_verifier};
  audit.request.sampling.logprobs.reset();
  audit.request.sampling.prompt_logprobs.reset();
  return audit;
}

Result<void> Session::check(const PairFacts* facts) const {
  const auto refused = [](std::string why) { return Error{Errc::kInvalidArgument, std::move(why)}; };
  if (prompt_.size < 1) return refused("the prompt is empty, wanted at least one token");
  if (!request_.sampling.grammar.empty() && request_.stop_ids.empty())
    return refused("a grammar without a stop token: the answer could not end with it");
  if (request_.max_tokens < 1) return refused(fmt::format("max_tokens {}, wanted at least 1", request_.max_tokens));
  if (request_.unverified && (request_.draft_length < 1 || request_.policy != DraftPolicy::kFixed ||
                              request_.stepwise || request_.sampling.logprobs || !request_.sampling.grammar.empty())) {
    return refused(
        "an unverified answer wants drafts of a fixed length, no steps, no log-probabilities and no grammar");
  }
  if (request_.added.any() && (request_.unverified || request_.stepwise || request_.draft_ahead.value_or(0) > 0 ||
                               (request_.policy != DraftPolicy::kFixed && request_.policy != DraftPolicy::kTree))) {
    return refused(
        "drafts of added sources want a verified answer of a fixed length or trees, without steps and "
        "drafts made ahead");
  }
  if (request_.sampling.prompt_logprobs && (request_.unverified || request_.stepwise || !request_.media.empty()))
    return refused("log-probabilities of the prompt want a verified answer, without steps, pictures and sounds");
  for (const WireMedium& medium : std::span(request_.media).subspan(encoding_.done)) {
    const WireTensor& content = medium.content;
    if (content.shape.size() != (medium.is_sound() ? 1 : 3) || (content.dtype != DType::kU8 && !medium.is_sound()) ||
        content.data.bytes().size() > kMediumBytesMax) {
      return refused(fmt::format(
          "{} bytes of {} [{}] are no picture, U8 [height, width, 3], and no sound, F32 [samples], "
          "of at most {} bytes",
          content.data.bytes().size(), to_string(content.dtype), fmt::join(content.shape, ", "), kMediumBytesMax));
    }
  }
  if (failover_.elsewhere) RETURN_IF_ERROR(check_resumed());
  if (facts == nullptr) return {};
  if (request_.tokenizer_fingerprint != 0 && facts->tokenizer_fingerprint != 0 &&
      request_.tokenizer_fingerprint != facts->tokenizer_fingerprint) {
    return Error(Errc::kMismatch, "tokenizer fingerprint: the model's is {:016x}, the client's {:016x}",
                 facts->tokenizer_fingerprint, request_.tokenizer_fingerprint);
  }
  if (const auto token = first_beyond(text_, facts->vocab_size))
    return refused(fmt::format("prompt token id {}, the vocabulary has {}", *token, facts->vocab_size));
  if (prompt_.size + 1 > facts->context_max) {
    return Error(Errc::kOutOfRange, "the prompt has {} tokens, the context holds {} with the answer", prompt_.size,
                 facts->context_max);
  }
  return check_sampling(request_.sampling, facts->vocab_size);
}

// ---- phases ----

void Session::enter(const Desk& desk, Phase phase) {
  if (Worker* verifier = desk.fleet.find(workers_.verifier))
    verifier->rounds += int{is_in_round(phase)} - int{is_in_round(phase_)};
  for (const Replica& replica : workers_.replicas) {
    if (Worker* drafter = desk.fleet.find(replica.drafter))
      drafter->rounds += int{phase == Phase::kDrafting} - int{phase_ == Phase::kDrafting};
  }
  if (phase == Phase::kMoving) workers_.alone_since = failover_.since = desk.now;
  phase_ = phase;
  entered_ = desk.now;
}

Position Session::positions() const {
  // The last token of an answer needs no K/V.
  return request_.stepwise
             ? std::ssize(text_)
             : prompt_.size + std::min(request_.max_tokens, std::numeric_limits<Position>::max() - prompt_.size) - 1;
}

Fleet::Wanted Session::wanted() const {
  Fleet::Wanted wanted{.media = has_media(),
                       .encoding_class = encoding_.encoding_class,
                       .prompt = prompt_.size,
                       .prefixes = prompt_.prefixes};
  if (failover_.except.empty() && !has_token()) return wanted;
  wanted.numeric_class = failover_.numeric_class;
  wanted.except = failover_.except;
  if (!has_token()) return wanted;
  wanted.context_min = prompt_.size + request_.max_tokens - 1;
  if (failover_.elsewhere) wanted.name = failover_.told_verifier;
  return wanted;
}

bool Session::start(const Desk& desk) {
  // An answer of whatever length is shortened to what the roomiest verifier could hold.
  if (request_.shorten && !has_token()) {
    const std::int64_t fitting = desk.fleet.max_tokens_that_fit(prompt_.size);
    if (fitting >= 1) request_.max_tokens = std::min(request_.max_tokens, fitting);
  }
  if (prompt_.prefixes.empty())
    prompt_.prefixes =
        hash_prefixes(std::span(text_).first(static_cast<std::size_t>(prompt_.size)), request_.cache_scope);
  const std::optional<Fleet::Offer> offer = desk.fleet.choose_verifier(positions(), wanted());
  if (!offer) return false;
  Worker& verifier = desk.fleet.at(offer->verifier);
  const PairFacts& facts = verifier.hello.facts;
  if (auto fine = check(&facts); !fine) {
    fail(desk, fine.error().code, fine.error().message);
    return true;
  }
  const PeerId encoder = has_media() ? desk.fleet.choose_encoder(verifier.hello, encoding_.encoding_class) : PeerId();
  if (has_media() && encoder.empty() && verifier.hello.no_towers) return false;  // there will be room
  request_.max_tokens = std::min<std::int64_t>(request_.max_tokens, facts.context_max - prompt_.size + 1);
  if (tokens_left() < 1) {  // of one that began elsewhere: the context is full, or others' memory was larger
    finish(desk, Done{FinishReason::kLength, books_.metrics});
    return true;
  }
  if (phase_ == Phase::kWaiting) books_.metrics.queue_ns = (desk.now - books_.opened).count();
  workers_.verifier = offer->verifier;
  ++verifier.sessions;
  verifier.given.add(prompt_.prefixes);
  if (!offer->refuses) set_aside(desk, offer->positions);
  if (!request_.stepwise)
    policy_ = desk.policies.make(request_.policy, request_.draft_length, verifier.costs, verifier.batch,
                                 request_.governed && !request_.unverified && !drafts_have_a_say());
  if (draft_room() > 0) assign_drafters(desk);
  encoder.empty() ? send_prefill(desk) : encode_at(desk, encoder);
  return true;
}

void Session::send_prefill(const Desk& desk) {
  leave_draining_verifier(desk);
  if (workers_.verifier.empty()) return move_to_another_verifier(desk);
  const PairFacts& facts = desk.fleet.at(workers_.verifier).hello.facts;
  workers_.scored = 1;
  enter(desk, Phase::kPrefill);
  // All that a verifier of this text has K/V of: everything but the last token of an answer that has begun.
  const Position end = has_token() ? base() : prompt_.size;
  Prefill prefill{.tokens = {text_.begin(), text_.begin() + end},
                  .answered = end - prompt_.size,
                  .kv_from = rows_wanted(desk),
                  .positions_max = request_.stepwise ? 0 : std::min(positions(), facts.context_max),
                  .sampling = request_.sampling,
                  .compute_all = request_.unverified,
                  .cache_scope = request_.cache_scope,
                  .media = request_.media,
                  .wire = wire_form(desk)};
  if (has_token()) prefill.sampling.prompt_logprobs.reset();  // the client has them
  if (prefill.sampling.min_tokens > 0 || !prefill.sampling.grammar.empty()) {
    // A stop id beyond the vocabulary never comes.
    std::ranges::copy_if(request_.stop_ids, std::back_inserter(prefill.stop_ids),
                         [&](TokenId id) { return id < facts.vocab_size; });
  }
  ask(desk, 0, std::move(prefill));
}

void Session::on_tick(const Desk& desk) {
  const Duration waited = desk.now - entered_;
  switch (phase_) {
    case Phase::kWaiting:
    case Phase::kMoving:  // for room as long as need be, but for a verifier to join only so long
      if (desk.fleet.has_verifier(wanted()))
        workers_.alone_since = desk.now;
      else
        on_alone(desk, desk.now - workers_.alone_since);
      break;
    case Phase::kDrafting:
      if (waited >= kDraftTimeout || to_seconds(waited) >= round_.choice.patience_s) on_drafter_late(desk);
      break;
    case Phase::kPaused:
      if (desk.now - asked_.sent < kKeepAlive) break;
      if (++asked_.keep_alives > kKeepAlivesMax) {
        return fail(desk, Errc::kTimeout,
                    fmt::format("no step for {:.0f} s", to_seconds(kKeepAlive * asked_.keep_alives)));
      }
      repeat_request(desk);
      reply(desk, Heartbeat{});
      break;
    case Phase::kEncoding:
    case Phase::kPrefill:
    case Phase::kVerifying:
      if (desk.now - asked_.sent < kVerifyResend) break;
      if (++asked_.unheard > kUnheardMax) {
        Error why{Errc::kTimeout, fmt::format("{} requests, and no answer that can be read", asked_.unheard)};
        return phase_ == Phase::kEncoding ? distrust_encoder(desk, std::move(why))
                                          : distrust_verifier(desk, std::move(why));
      }
      repeat_request(desk);
      break;
    case Phase::kEnded: break;
  }
}

std::optional<TimePoint> Session::deadline() const {
  if (phase_ != Phase::kDrafting || round_.choice.patience_s >= to_seconds(kDraftTimeout)) return std::nullopt;
  return entered_ + from_seconds(round_.choice.patience_s);
}

void Session::add_to(std::map<PeerId, Load>& loads) const {
  Load& verifier = loads[workers_.verifier];
  ++verifier.sessions;
  verifier.rounds += is_in_round(phase_);
  verifier.kv_bytes += workers_.kv_bytes;
  if (!encoding_.encoder.empty()) ++loads[encoding_.encoder].sessions;
  for (const Replica& replica : workers_.replicas) {
    Load& drafter = loads[replica.drafter];
    ++drafter.sessions;
    drafter.rounds += phase_ == Phase::kDrafting;
  }
}

void Session::finish(const Desk& desk, Body last) {
  for (const PeerId& drafter : drafters()) release_drafter(desk, drafter, true);
  books_.done = std::holds_alternative<Done>(last);
  enter(desk, Phase::kEnded);
  leave_encoder(desk);
  leave_verifier(desk);
  reply(desk, std::move(last));
}

// ---- its workers ----

bool Session::on_worker(const Desk& desk, const PeerId& from, Message message) {
  if (auto* drafts = std::get_if<Candidates>(&message.body); drafts != nullptr && !drafts->after.empty()) {
    if (replica_of(from) != nullptr) on_ahead(desk, from, message.base, std::move(*drafts));
    return true;
  }
  if (message.round != round_.id) return true;
  if (from == workers_.verifier) return on_verifier(desk, std::move(message));
  if (from == encoding_.encoder) return on_encoder(desk, std::move(message));
  Replica* replica = replica_of(from);
  return replica == nullptr || on_drafter(desk, *replica, std::move(message));
}

bool Session::on_verifier(const Desk& desk, Message message) {
  const bool asked = phase_ == Phase::kPrefill || phase_ == Phase::kVerifying;
  asked_.unheard = 0;
  if (std::holds_alternative<Heartbeat>(message.body)) return true;  // in work
  if (auto* chunk = std::get_if<KvChunk>(&message.body)) {
    forward(desk, std::move(chunk->kv));
  } else if (auto* scores = std::get_if<PromptScores>(&message.body)) {
    if (asked) on_prompt_scores(desk, std::move(*scores));
  } else if (auto* verdict = std::get_if<Verdict>(&message.body)) {
    if (asked) on_verdict(desk, std::move(*verdict));
  } else if (const auto* failed = std::get_if<Failed>(&message.body)) {
    // It may be that its books say otherwise than ours: a Free was lost, and it will notice. The prompt is repeated
    // until then.
    const bool may_come = phase_ == Phase::kPrefill && failed->code == Errc::kUnavailable;
    if (!asked || may_come) return true;
    Error error{failed->code,
                fmt::format("verifier {}: {}", desk.fleet.at(workers_.verifier).hello.name, failed->message)};
    if (failed->code == Errc::kNotFound) {  // it was restarted, say
      lose_verifier(desk, std::move(error));
    } else {
      fail(desk, error.code, std::move(error.message));
    }
  } else {
    return false;
  }
  return true;
}

void Session::on_prompt_scores(const Desk& desk, PromptScores scores) {
  const Hello& verifier = desk.fleet.at(workers_.verifier).hello;
  const std::optional<std::int32_t> wanted = request_.sampling.prompt_logprobs;
  const Position end = scores.first + std::ssize(scores.logprobs);
  if (phase_ != Phase::kPrefill || has_token() || !wanted || scores.first != workers_.scored || end > prompt_.size ||
      !fits(scores.logprobs, static_cast<std::size_t>(*wanted), verifier.facts.vocab_size)) {
    return warn_of(desk, workers_.verifier,
                   fmt::format("verifier {}: log-probabilities of the prompt's tokens {} to {}, or not those that "
                               "were asked for, wanted them from {} to {}; dropped",
                               verifier.name, scores.first, end, workers_.scored, prompt_.size));
  }
  workers_.scored = end;
  reply(desk, std::move(scores));
}

bool Session::on_drafter(const Desk& desk, Replica& replica, Message message) {
  if (std::holds_alternative<Failed>(message.body)) {
    // Its books say otherwise than ours. The rows of a whole text are too many to try again and again.
    workers_.no_drafter = true;
    lose_drafter(desk, PeerId(replica.drafter));
    return true;
  }
  auto* candidates = std::get_if<Candidates>(&message.body);
  const auto* need = std::get_if<NeedKv>(&message.body);
  if (candidates == nullptr && need == nullptr) return false;
  if (need != nullptr) {
    replica.end = std::clamp<Position>(need->have, 0, base());
    replica.guided = 0;
  }
  replica.asked = false;
  if (candidates != nullptr) replica.guided = answered();
  if (phase_ != Phase::kDrafting) return true;  // late
  desk.fleet.at(replica.drafter).retry = {};
  if (candidates != nullptr) {
    on_candidates(desk, replica.drafter, std::move(*candidates));
  } else if (!awaits_drafts()) {
    round_.outcome.draft_wire_s = to_seconds(desk.now - entered_);
    end_drafting(desk);
  }
  return true;
}

void Session::lose_drafter(const Desk& desk, const PeerId& drafter) {
  release_drafter(desk, drafter, false);
  if (phase_ == Phase::kDrafting && !awaits_drafts()) end_drafting(desk);
}

void Session::on_worker_gone(const Desk& desk, const PeerId& peer, const std::string& what) {
  if (peer == workers_.verifier) {
    lose_verifier(desk, {Errc::kPeerGone, what});
  } else if (peer == encoding_.encoder) {
    lose_encoder(desk, {Errc::kPeerGone, what});
  } else if (replica_of(peer) != nullptr) {
    lose_drafter(desk, peer);
  }
}

void Session::set_aside(const Desk& desk, Position positions) {
  Worker& verifier = desk.fleet.at(workers_.verifier);
  const std::int64_t more = verifier.hello.capacity.kv_cost.bytes(positions) - workers_.kv_bytes;
  if (more <= 0) return;
  workers_.kv_bytes += more;
  verifier.kv_bytes += more;
}

void Session::ask(const Desk& desk, Position base, Body body) {
  asked_.message = {.session = id_, .round = round_.id, .base = base, .body = std::move(body)};
  asked_.unheard = 0;
  repeat_request(desk);
}

void Session::repeat_request(const Desk& desk) {
  asked_.sent = desk.now;
  const PeerId& to = phase_ == Phase::kEncoding ? encoding_.encoder : workers_.verifier;
  if (!to.empty()) desk.send(to, *asked_.message);
}

int Session::drafters_wanted(const Desk& desk) const {
  return drafts_have_a_say() || request_.unverified || request_.stepwise ? 1 : desk.drafters_per_text;
}

Session::Replica* Session::replica_of(const PeerId& drafter) {
  const auto found = std::ranges::find(workers_.replicas, drafter, &Replica::drafter);
  return found == workers_.replicas.end() ? nullptr : &*found;
}

bool Session::can_draft(const Desk& desk) const {
  return std::ranges::any_of(
      workers_.replicas, [&](const Replica& replica) { return desk.fleet.usable_drafter(replica.drafter) != nullptr; });
}

std::vector<PeerId> Session::drafters() const {
  std::vector<PeerId> peers;
  for (const Replica& replica : workers_.replicas) peers.push_back(replica.drafter);
  return peers;
}

void Session::assign_drafters(const Desk& desk) {
  while (!workers_.no_drafter && std::ssize(workers_.replicas) < drafters_wanted(desk)) {
    const PeerId peer = desk.fleet.choose_drafter(drafters(), wants_proven_drafter());
    if (peer.empty()) return;
    Worker& drafter = desk.fleet.at(peer);
    ++drafter.sessions;
    drafter.rounds += phase_ == Phase::kDrafting;
    workers_.replicas.push_back({.drafter = peer});
  }
}

void Session::renew_drafters(const Desk& desk) {
  const bool others = !desk.fleet.choose_drafter(drafters(), wants_proven_drafter()).empty();
  for (const PeerId& peer : drafters()) {
    const Worker* drafter = desk.fleet.usable_drafter(peer);
    if (drafter != nullptr ? drafter->draining : others) release_drafter(desk, peer, true);
  }
  assign_drafters(desk);
}

std::optional<Position> Session::rows_wanted(const Desk& desk) const {
  std::optional<Position> first;
  for (const Replica& replica : workers_.replicas) {
    if (desk.fleet.usable_drafter(replica.drafter) == nullptr) continue;
    first = std::min(first.value_or(replica.end), replica.end);
  }
  return first;
}

WireForm Session::wire_form(const Desk& desk) const {
  std::optional<WireForm> least;
  for (const Replica& replica : workers_.replicas) {
    const Worker* drafter = desk.fleet.find(replica.drafter);
    if (drafter == nullptr) continue;
    const WireForm chosen = drafts_have_a_say() ? WireForm::kExact : drafter->wire_choice.form(),
                   form = drafter->hello.wire == WireForm::kAuto ? chosen : drafter->hello.wire;
    least = std::min(least.value_or(form), form);
  }
  return least.value_or(WireForm::kExact);
}

void Session::weigh_wire(const Desk& desk) {
  const RoundOutcome& outcome = round_.outcome;
  // Of several nobody can say whose bytes took the time.
  if (workers_.replicas.size() != 1) return;
  Worker* drafter = desk.fleet.find(workers_.replicas[0].drafter);
  // A text's first drafts wait for its prompt's rows too, and drafts made ahead for nothing.
  const bool says_something = outcome.source == DraftSource::kAssistant && outcome.drafted > 0 && !outcome.ahead &&
                              outcome.draft_waited_s == 0 && !round_.moved && books_.metrics.rounds > 1;
  if (drafter == nullptr || drafter->hello.wire != WireForm::kAuto || !says_something) return;
  if (!drafter->wire_choice.observe(static_cast<double>(outcome.draft_bytes), outcome.draft_wire_s, outcome.round_s))
    return;
  desk.output.notices.push_back({false, fmt::format("drafter {}: from now on its rows travel as {}, by the time that "
                                                    "{} bytes take in a round of {:.1f} ms",
                                                    drafter->hello.name, to_string(drafter->wire_choice.form()),
                                                    outcome.draft_bytes, 1e3 * outcome.round_s)});
}

void Session::release_drafter(const Desk& desk, PeerId peer, bool tell) {
  if (Worker* drafter = desk.fleet.find(peer)) {
    --drafter->sessions;
    drafter->rounds -= phase_ == Phase::kDrafting;
    if (tell) desk.send(peer, {.session = id_, .body = Free{}});
  }
  std::erase_if(workers_.replicas, [&](const Replica& replica) { return replica.drafter == peer; });
  if (workers_.replicas.empty()) workers_.ahead.expect(0, 0);
}

bool Session::is_of_last_round(const KvRows& kv) const {
  return std::holds_alternative<Verify>(asked_.message->body) && kv.from >= asked_.message->base;
}

void Session::forward(const Desk& desk, KvRows kv) {
  const auto continues = [&](const Replica& replica) {
    return desk.fleet.usable_drafter(replica.drafter) != nullptr && kv.from <= replica.end && replica.end < kv.to;
  };
  if (std::ranges::none_of(workers_.replicas, continues)) return;
  const Hello& verifier = desk.fleet.at(workers_.verifier).hello;
  if (auto fine = check_rows(verifier.facts, kv); !fine)
    return warn_of(desk, workers_.verifier,
                   fmt::format("verifier {}: {}; dropped", verifier.name, fine.error().message));
  for (Replica& replica : workers_.replicas) {
    if (!continues(replica)) continue;
    KvRows rows = rows_from(kv, replica.end);
    replica.end = rows.to;
    if (is_of_last_round(rows)) round_.rows = static_cast<int>(rows.to - rows.from);
    desk.send(replica.drafter,
              {.session = id_, .round = round_.id, .base = rows.from, .body = KvChunk{std::move(rows)}});
  }
}

void Session::on_sent(const Message& message, std::size_t bytes) {
  RequestMetrics& metrics = books_.metrics;
  const auto count = static_cast<std::int64_t>(bytes);
  const auto* chunk = std::get_if<KvChunk>(&message.body);
  if (std::holds_alternative<Draft>(message.body) || (chunk != nullptr && is_of_last_round(chunk->kv))) {
    metrics.wire_bytes_to_drafter += count;
    if (phase_ == Phase::kDrafting) round_.outcome.draft_bytes += count;
  } else if (chunk != nullptr) {
    metrics.wire_bytes_to_drafter_prompt += count;
  } else if (std::holds_alternative<Verify>(message.body) || std::holds_alternative<Prefill>(message.body)) {
    metrics.wire_bytes_to_verifier += count;
  } else if (std::holds_alternative<Encode>(message.body)) {
    metrics.wire_bytes_to_encoder += count;
  }
}

// ---- a round ----

void Session::next_round(const Desk& desk, KvRows kv) {
  std::optional<bool> after_all;
  // Nobody drafts ahead for what is looked up behind the drafts.
  const RoundOutcome& before = round_.outcome;
  if (workers_.ahead.expects() && before.drafted > 0 && before.accepted <= before.own())
    after_all = before.accepted == before.own();
  round_ = {.id = next(round_.id), .began = desk.now, .hidden = std::move(round_.hidden), .after_all = after_all};
  const std::int64_t room = draft_room();
  if (room > 0) {
    renew_drafters(desk);
    forward(desk, std::move(kv));
  }
  if (request_.stepwise) return enter(desk, Phase::kPaused);
  draft(desk, std::max<std::int64_t>(room, 0));
}

std::int64_t Session::draft_room() const { return std::min<std::int64_t>(request_.draft_length, drafts_left()); }

void Session::draft(const Desk& desk, std::int64_t room) {
  Candidates ngram, table;
  if (room > 0 && Policies::looks_up(request_.policy)) {
    ngram = look_up(desk, DraftSource::kNgram, text_, room);
    table = look_up(desk, DraftSource::kTable, text_, room);
  }
  const DraftAhead::Guess* at_hand = workers_.ahead.find(text_);
  std::int64_t most = request_.added.any() || can_draft(desk) ? room : 0;
  if (at_hand != nullptr) most = std::min(room, std::ssize(at_hand->drafts.tokens));
  round_.choice = policy_->choose({.assistant = static_cast<int>(most),
                                   .ngram = static_cast<int>(ngram.tokens.size()),
                                   .table = static_cast<int>(table.tokens.size()),
                                   .at_hand = at_hand != nullptr,
                                   .ahead = may_draft_ahead(desk),
                                   .tree = may_draft_trees(),
                                   .drafters = std::max(1, desk.fleet.drafters_at_work() / drafters_wanted(desk))});
  round_.outcome.source = round_.choice.source;
  round_.outcome.arm = round_.choice.arm;
  if (round_.choice.source == DraftSource::kAssistant) return ask_drafter(desk, round_.choice.length);
  workers_.ahead.expect(0, 0);
  round_.drafts.add(0, round_.choice.source == DraftSource::kTable ? table : ngram, round_.choice.source,
                    round_.choice.length);
  end_drafting(desk);
}

void Session::ask_drafter(const Desk& desk, std::int64_t draft_length) {
  std::vector<Replica*> ready;
  for (Replica& replica : workers_.replicas) {
    replica.asked = false;
    if (draft_length > 0 && round_.hidden && replica.end == base() &&
        desk.fleet.usable_drafter(replica.drafter) != nullptr)
      ready.push_back(&replica);
  }
  const std::int64_t at_hand = draft_length > 0 ? take_ahead(draft_length) : 0;
  // Nobody drafts ahead of a tree: its ends are many.
  const int guesses = ready.empty() || round_.choice.tree ? 0 : guesses_wanted(desk, draft_length);
  const bool has_drafts = at_hand > 0;
  workers_.ahead.expect(base(), guesses * static_cast<int>(ready.size()));
  round_.queued = !ready.empty();
  for (Replica* replica : ready) {
    replica->asked = !has_drafts;
    round_.queued = round_.queued && desk.fleet.at(replica->drafter).rounds > 0;
    if (!has_drafts || guesses > 0) send_draft(desk, *replica, std::max(draft_length, at_hand), guesses, has_drafts);
  }
  if (!ready.empty() && (!has_drafts || guesses > 0)) round_.hidden.reset();
  if (!awaits_drafts()) return end_drafting(desk);
  enter(desk, Phase::kDrafting);
  round_.outcome.draft_rows = round_.rows;
}

void Session::send_draft(const Desk& desk, const Replica& replica, std::int64_t draft_length, int guesses,
                         bool has_drafts) {
  const SamplingParams& wanted = request_.sampling;
  std::vector<TokenId> answer;
  if (wanted.follows_answer()) answer.assign(text_.begin() + prompt_.size + replica.guided, text_.end());
  const bool known = !drafts_plainly_ && replica.guided > 0;
  desk.send(replica.drafter,
            {.session = id_,
             .round = round_.id,
             .base = base(),
             .body = Draft{.token = text_.back(),
                           .draft_length = static_cast<std::int32_t>(draft_length),
                           .hidden = *round_.hidden,
                           .sampling = drafts_plainly_ || known ? std::nullopt : std::optional(for_drafter(wanted)),
                           .index = answered(),
                           .want_state = request_.unverified,
                           .want_q = logs_rejections(desk),
                           .sampling_known = known,
                           .answer = std::move(answer),
                           .ahead = guesses,
                           .known = has_drafts ? round_.drafts.tokens : std::vector<TokenId>(),
                           .tree = round_.choice.tree,
                           .worth = drafts_have_a_say() ? 0 : round_.choice.worth,
                           .stop_ids = known ? std::vector<TokenId>() : request_.stop_ids}});
}

bool Session::is_sound(const Candidates& drafts, const PairFacts& facts) {
  return (drafts.q.empty() || drafts.q.size() == drafts.tokens.size()) &&
         TokenTree(std::ssize(drafts.tokens), drafts.depths).check() &&
         !first_beyond(drafts.tokens, facts.vocab_size) && (!drafts.state || check_hidden(facts, *drafts.state));
}

void Session::warn_of(const Desk& desk, const PeerId& peer, std::string text) const {
  if (desk.fleet.is_news(peer, text, desk.now)) desk.output.notices.push_back({true, std::move(text), id_});
}

void Session::warn_of_drafts(const Desk& desk, const PeerId& drafter, const Candidates& drafts,
                             const PairFacts& facts) const {
  warn_of(desk, drafter,
          fmt::format("drafter {}: {} candidates with {} distributions and {} depths, ids beyond the vocabulary of {}, "
                      "depths of no tree, or a state that is no hidden row; dropped",
                      desk.fleet.at(drafter).hello.name, drafts.tokens.size(), drafts.q.size(), drafts.depths.size(),
                      facts.vocab_size));
}

void Session::on_candidates(const Desk& desk, const PeerId& drafter, Candidates candidates) {
  const PairFacts& facts = *desk.fleet.facts();
  const std::int64_t limit = std::min<std::int64_t>(request_.draft_length, drafts_left());
  const bool sound = std::ssize(candidates.tokens) <= limit && is_sound(candidates, facts);
  if (!sound) warn_of_drafts(desk, drafter, candidates, facts);
  if (!sound && awaits_drafts()) return;
  round_.drafter = drafter;
  const std::int64_t waited = (desk.now - entered_).count(),
                     drafting = std::clamp<std::int64_t>(candidates.draft_ns, 0, waited);
  books_.metrics.draft_ns += drafting;
  books_.metrics.wire_ns += waited - drafting;
  round_.outcome.draft_s = to_seconds(Duration(drafting));
  // Said by a peer, and used for sums.
  const auto said = [](std::int64_t count) { return static_cast<double>(std::clamp<std::int64_t>(count, 1, 1 << 16)); };
  round_.outcome.draft_passes = said(candidates.passes);
  round_.outcome.draft_pass_rows = said(candidates.pass_rows) / round_.outcome.draft_passes;
  // Behind others' drafts it waited and travelled: how long each, nobody can say.
  (round_.queued ? round_.outcome.draft_waited_s : round_.outcome.draft_wire_s) =
      to_seconds(Duration(waited - drafting));
  if (sound) round_.drafts.add(0, candidates, DraftSource::kAssistant, limit);
  for (const Replica& other : workers_.replicas) {  // the round begins without theirs
    Worker* late = other.asked ? desk.fleet.find(other.drafter) : nullptr;
    if (late != nullptr) ++late->late_rounds;
  }
  // Where each draft must be worth its row, none may be.
  if (round_.drafts.empty() && round_.choice.worth == 0) judge_drafter(desk, drafter, false);
  if (!request_.unverified || round_.drafts.empty()) return end_drafting(desk);
  books_.metrics.drafting_rounds += 1;
  books_.metrics.drafted_tokens += round_.drafts.size();
  round_.hidden = std::move(candidates.state);
  emit(desk, std::move(round_.drafts.tokens), {}, {});
  if (phase_ != Phase::kEnded) next_round(desk, {});
}

void Session::on_drafter_late(const Desk& desk) {
  const Duration waited = desk.now - entered_;
  (round_.queued ? round_.outcome.draft_waited_s : round_.outcome.draft_wire_s) = to_seconds(waited);
  for (const PeerId& peer : drafters()) {
    if (!replica_of(peer)->asked) continue;
    judge_drafter(desk, peer, false);
    if (Worker* drafter = desk.fleet.find(peer)) ++drafter->late_rounds;
    // Before kDraftTimeout the drafter may be well; these drafts are not worth the wait.
    Worker* drafter = desk.fleet.usable_drafter(peer);
    if (waited < kDraftTimeout || drafter == nullptr) continue;
    drafter->miss(desk.now);
    std::string text = fmt::format("drafter {} did not answer within {:.1f} s; going on without it",
                                   drafter->hello.name, to_seconds(kDraftTimeout));
    warn_of(desk, peer, std::move(text));
  }
  end_drafting(desk);
}

void Session::judge_drafter(const Desk& desk, const PeerId& drafter, bool held) const {
  if (auto why = desk.fleet.count_round(drafter, held, desk.now))
    desk.output.notices.push_back({true, std::move(*why)});
}

void Session::end_drafting(const Desk& desk) {
  if (request_.unverified)
    return fail(desk, Errc::kUnavailable, "no drafter has drafted: without a verifier the answer ends here");
  if (!request_.stepwise) {
    add_sources(desk);
    extend_drafts(desk);
    return send_verify(desk);
  }
  enter(desk, Phase::kPaused);
  reply(desk, Candidates{.tokens = round_.drafts.tokens});
}

Candidates Session::look_up(const Desk& desk, DraftSource source, std::span<const TokenId> text,
                            std::int64_t most) const {
  const auto length = static_cast<std::size_t>(most);
  if (source == DraftSource::kNgram) {
    const std::span<const TokenId> drafts = ngram_draft(text, length);
    return {.tokens = {drafts.begin(), drafts.end()}};
  }
  const PairFacts& facts = *desk.fleet.facts();
  if (desk.table == nullptr || desk.table->fingerprint() != facts.backbone_fingerprint) return {};
  return {.tokens = desk.table->draft(text, length, facts.vocab_size)};
}

std::vector<TokenId> Session::text_with_drafts() const {
  std::vector<TokenId> text = text_;
  const std::vector<TokenId> path = round_.drafts.path(round_.drafts.first_end());
  text.insert(text.end(), path.begin(), path.end());
  return text;
}

Candidates Session::look_up_behind(const Desk& desk, DraftSource source, std::span<const TokenId> text,
                                   std::int64_t most) const {
  // Nothing follows a stop.
  if (std::ranges::find(request_.stop_ids, text.back()) != request_.stop_ids.end()) return {};
  return look_up(desk, source, text, most);
}

void Session::add_sources(const Desk& desk) {
  RoundDrafts& drafts = round_.drafts;
  const std::int64_t length = round_.choice.length,
                     most = std::min({drafts.size() + length, drafts_left(), std::int64_t{kDraftLengthMax}});
  const bool draws = !request_.sampling.greedy() && request_.sampling.rule == SamplingRule::kRejection;
  for (const DraftSource source : kLookUps) {
    if (!(source == DraftSource::kTable ? request_.added.table : request_.added.ngram)) continue;
    drafts.add(drafts.first_end(), look_up_behind(desk, source, text_with_drafts(), length), source, most);
    // Siblings are drawn from one distribution, or none of them is.
    if (!draws) drafts.add(0, look_up(desk, source, text_, length), source, most);
  }
  if (!drafts.empty()) round_.outcome.source = drafts.sources.front();
}

bool Session::may_draft_trees() const {
  const bool ahead_anyway = request_.draft_ahead.value_or(0) > 0, chains_alone = request_.unverified || ahead_anyway;
  return request_.policy == DraftPolicy::kAuto && !chains_alone && !drafts_have_a_say();
}

void Session::extend_drafts(const Desk& desk) {
  // Under `typical` drafts decide what the text becomes, and measured times shall have no more say in it than they
  // have.
  const bool lossy = drafts_have_a_say() && request_.sampling.rule != SamplingRule::kRejection;
  if (request_.policy != DraftPolicy::kAuto || round_.choice.length == 0 || round_.is_tree() || lossy) return;
  // The text alone did not pay on a machine, whatever it promised (docs/lab/sources.md).
  if (desk.table == nullptr) return;
  RoundDrafts& drafts = round_.drafts;
  RoundOutcome& begun = round_.outcome;
  std::vector<TokenId> text = text_with_drafts();  // long, perhaps: once for all sources
  for (const DraftSource source : kLookUps) {
    begun.drafted = static_cast<int>(drafts.size());
    const std::int64_t room = std::min<std::int64_t>(drafts_left(), kDraftLengthMax) - drafts.size();
    if (source == begun.source || room <= 0) continue;
    const Candidates more = look_up_behind(desk, source, text, room);
    if (more.tokens.empty()) continue;
    const int worth = policy_->extend(begun, source, static_cast<int>(more.tokens.size()));
    drafts.add(drafts.first_end(), more, source, drafts.size() + worth);
    text.insert(text.end(), more.tokens.begin(), more.tokens.begin() + worth);
    if (begun.drafted > 0) {
      begun.behind[static_cast<std::size_t>(source)] = worth;
    } else if (worth > 0) {
      begun.source = source;  // its drafter is late
    }
  }
}

void Session::send_verify(const Desk& desk) {
  leave_draining_verifier(desk);
  if (workers_.verifier.empty()) return move_to_another_verifier(desk);
  // A policy that wants plain rounds is spared the drafter's input; when it wants drafts again, one round fetches it.
  const bool drafts_wanted = policy_ == nullptr || round_.choice.length > 0;
  const bool drafting_goes_on = drafts_wanted && tokens_left() > 1;
  enter(desk, Phase::kVerifying);
  if (request_.stepwise) set_aside(desk, base() + 1 + round_.drafts.size());
  Verify verify{.tokens = {text_.back()}, .kv_from = drafting_goes_on ? rows_wanted(desk) : std::nullopt};
  verify.tokens.insert(verify.tokens.end(), round_.drafts.tokens.begin(), round_.drafts.tokens.end());
  const SamplingParams& sampling = request_.sampling;
  if (!sampling.greedy() && sampling.rule == SamplingRule::kRejection)
    verify.q = round_.drafts.q;  // else drafts must match
  verify.depths = round_.drafts.depths;
  verify.wire = wire_form(desk);
  ask(desk, base(), std::move(verify));
}

void Session::on_verdict(const Desk& desk, Verdict verdict) {
  Worker& verifier = desk.fleet.at(workers_.verifier);
  if (auto fine = check(verdict, verifier.hello); !fine) return distrust_verifier(desk, fine.error());
  verifier.suspect = false;
  if (verdict.hidden) {
    if (auto fine = check_hidden(verifier.hello.facts, *verdict.hidden); !fine) {
      warn_of(desk, workers_.verifier,
              fmt::format("verifier {}: {}; dropped", verifier.hello.name, fine.error().message));
      verdict.hidden.reset();
    }
  }
  if (phase_ == Phase::kPrefill && has_token())
    return failover_.elsewhere ? on_resumed(desk, std::move(verdict)) : on_moved(desk, std::move(verdict));
  std::optional<RoundReport> report;
  if (phase_ == Phase::kPrefill) {
    if (round_.moved) count_failover(desk);
    failover_.numeric_class = verifier.hello.numeric_class;
    if (has_media()) encoding_.encoding_class = verifier.hello.encoding_class;
    desk.fleet.keep_facts(verifier.hello.facts);
    books_.first_token = desk.now;
    books_.metrics.prefill_ns = (desk.now - books_.opened).count();
    books_.metrics.cached_prompt_tokens = std::min(verdict.cached_tokens, verdict.committed);
  } else {
    account(desk, verdict);
    if (request_.report_rounds)
      report = {.draft_length = round_.choice.length,
                .drafts = round_.drafts.tokens,
                .outcome = round_.outcome,
                .depths = round_.drafts.depths,
                .drafter = untold_drafter(desk)};
  }
  // The accepted drafts and the target's own token.
  std::vector<TokenId> fresh = round_.drafts.path(round_.row_of(verdict));
  fresh.push_back(verdict.next_token);
  emit(desk, std::move(fresh), std::move(verdict.logprobs), std::move(report));
  if (phase_ == Phase::kEnded) return;
  round_.hidden = std::move(verdict.hidden);
  next_round(desk, std::move(verdict.kv));
}

std::string Session::untold_drafter(const Desk& desk) {
  const Worker* drafter = desk.fleet.find(round_.drafter);
  const bool drafted = round_.outcome.source == DraftSource::kAssistant && !round_.drafts.empty();
  if (drafter == nullptr || !drafted || drafter->hello.name == workers_.told_drafter) return "";
  return workers_.told_drafter = drafter->hello.name;
}

Result<void> Session::check(const Verdict& verdict, const Hello& verifier) const {
  const std::int32_t vocab_size = verifier.facts.vocab_size;
  const bool prefill = phase_ == Phase::kPrefill;
  const std::int64_t drafts = prefill ? 0 : round_.drafts.size(), row = prefill ? 0 : round_.row_of(verdict);
  const Position committed = !prefill ? base() + verdict.accepted + 1 : has_token() ? base() : prompt_.size;
  if (row < 0 || row > drafts || verdict.accepted != round_.drafts.tree().depth(row) ||
      verdict.committed != committed || verdict.next_token < 0 || verdict.next_token >= vocab_size) {
    return Error(Errc::kMalformed, "it accepted {} of {} drafts, the last of row {}, and committed {}, wanted {}",
                 verdict.accepted, drafts, row, verdict.committed, committed);
  }
  if (prefill && !has_token() && request_.sampling.prompt_logprobs && workers_.scored != prompt_.size) {
    return Error(Errc::kMalformed, "log-probabilities of the prompt's first {} tokens, it has {}", workers_.scored,
                 prompt_.size);
  }
  const bool scored = request_.sampling.logprobs.has_value();
  if (verdict.logprobs.size() != (scored ? static_cast<std::size_t>(verdict.accepted) + 1 : 0) ||
      !fits(verdict.logprobs, request_.sampling.alternatives(), vocab_size)) {
    return Error(Errc::kMalformed, "{} logprobs for {} tokens, or not those that were asked for",
                 verdict.logprobs.size(), verdict.accepted + 1);
  }
  return {};
}

void Session::account(const Desk& desk, const Verdict& verdict) {
  RequestMetrics& metrics = books_.metrics;
  RoundOutcome& outcome = round_.outcome;
  const std::int64_t waited = (desk.now - entered_).count(),
                     verifying = std::clamp<std::int64_t>(verdict.verify_ns, 0, waited),
                     queued = std::clamp<std::int64_t>(verdict.waited_ns, 0, waited - verifying);
  ++metrics.rounds;
  metrics.verify_ns += verifying;
  metrics.wire_ns += waited - verifying;
  outcome.drafted = static_cast<int>(round_.drafts.size());
  outcome.accepted = verdict.accepted;
  outcome.verify_s = to_seconds(Duration(verifying));
  // Said by a peer, and used for sums.
  outcome.batch_rows = static_cast<int>(std::min<std::int64_t>(verdict.batch_rows, 1 << 16));
  outcome.waited_s = to_seconds(Duration(queued));
  outcome.round_s = to_seconds(desk.now - round_.began);
  weigh_wire(desk);
  if (policy_ != nullptr && !round_.moved) {
    CostModel& costs = desk.fleet.at(workers_.verifier).costs;
    if (round_.is_tree())
      outcome.tree = {static_cast<int>(round_.drafts.first_end()), round_.drafts.held_first(round_.row_of(verdict))};
    // What sources said together is nobody's.
    if (round_.is_tree() ? !request_.added.any() : round_.is_plain())
      costs.observe(outcome);
    else
      costs.observe_forward(outcome);
    if (round_.after_all && outcome.source == DraftSource::kAssistant && outcome.drafted > 0)
      costs.observe_ahead(*round_.after_all, outcome.ahead, outcome.draft_s + outcome.draft_wire_s);
    policy_->observe(outcome);
  }
  if (outcome.drafted == 0) return;
  const std::vector<DraftSource> kept = round_.drafts.sources_of(round_.row_of(verdict));
  if (std::ranges::count(round_.drafts.sources, DraftSource::kAssistant) > 0 && !request_.stepwise)
    judge_drafter(desk, round_.drafter, !kept.empty() && kept.front() == DraftSource::kAssistant);
  count_drafts(kept);
  if (logs_rejections(desk)) log_rejection(desk, verdict);
}

void Session::count_drafts(std::span<const DraftSource> kept) {
  RequestMetrics& metrics = books_.metrics;
  const std::int64_t accepted = std::ssize(kept);
  ++metrics.drafting_rounds;
  metrics.drafted_tokens += round_.drafts.size();
  metrics.accepted_tokens += accepted;
  metrics.ahead_rounds += round_.outcome.ahead;
  const auto count_looked_up = [&](DraftSource source, LookedUp& sums) {
    sums.rounds += round_.outcome.source == source;
    sums.drafted_tokens += std::ranges::count(round_.drafts.sources, source);
    sums.accepted_tokens += std::ranges::count(kept, source);
  };
  count_looked_up(DraftSource::kNgram, metrics.ngram);
  count_looked_up(DraftSource::kTable, metrics.table);
  // Of a tree's drafts for one place one counts.
  const auto places = static_cast<std::size_t>(round_.drafts.tree().height());
  if (metrics.drafted_per_position.size() < places) {
    metrics.drafted_per_position.resize(places);
    metrics.accepted_per_position.resize(places);
  }
  for (std::size_t i = 0; i < places; ++i) {
    ++metrics.drafted_per_position[i];
    metrics.accepted_per_position[i] += static_cast<std::int64_t>(i) < accepted;
  }
}

void Session::log_rejection(const Desk& desk, const Verdict& verdict) const {
  const std::vector<std::int64_t> lost = round_.drafts.tree().children(round_.row_of(verdict));
  if (lost.empty()) return;
  const auto slot = static_cast<std::size_t>(lost.front()) - 1;
  Rejection rejection{.session = id_,
                      .round = round_.id,
                      .base = base(),
                      .source = round_.drafts.sources[slot],
                      .slot = verdict.accepted,
                      .draft = round_.drafts.tokens[slot],
                      .target = verdict.next_token};
  const bool looked_up = rejection.source != DraftSource::kAssistant;
  if (!looked_up && !round_.drafts.q.empty()) compare(rejection, round_.drafts.q[slot]);
  desk.output.rejections.push_back(rejection);
}

void Session::emit(const Desk& desk, std::vector<TokenId> fresh, std::vector<TokenLogprobs> logprobs,
                   std::optional<RoundReport> round) {
  const auto stop = std::ranges::find_first_of(fresh, request_.stop_ids);
  const bool stopped = stop != fresh.end();
  if (stopped) fresh.erase(stop + 1, fresh.end());
  if (!logprobs.empty()) logprobs.resize(fresh.size());
  CHECK(std::ssize(fresh) <= tokens_left(), "{} tokens, {} left", fresh.size(), tokens_left());
  const std::int64_t index = answered();
  text_.insert(text_.end(), fresh.begin(), fresh.end());
  books_.metrics.decode_ns = (desk.now - books_.first_token).count();
  Tokens tokens{index, std::move(fresh), std::move(logprobs), std::move(round)};
  tell_how_to_go_on(desk, tokens);
  reply(desk, std::move(tokens));
  if (stopped || tokens_left() == 0)
    finish(desk, Done{stopped ? FinishReason::kStop : FinishReason::kLength, books_.metrics});
}

// ---- its client ----

bool Session::on_step(const Desk& desk, const Step& step) {
  const auto refuse = [&](std::string why) {
    reply(desk, Failed{Errc::kInvalidArgument, std::move(why)});
    return false;
  };
  if (phase_ != Phase::kPaused) return refuse("a step of a session that waits for none");
  asked_.keep_alives = 0;
  if (step.draft_length > 0) {
    // A second draft of one round shows the first again: its hidden row and K/V are the same.
    request_.draft_length = step.draft_length;
    if (!std::exchange(round_.asked_drafter, true)) {
      ask_drafter(desk, draft_room());
      return true;
    }
    const RoundDrafts all = std::exchange(round_.drafts, {});
    round_.drafts.add(0, {.tokens = all.tokens}, DraftSource::kAssistant, step.draft_length);
    end_drafting(desk);
    return true;
  }
  const std::int32_t vocab_size = desk.fleet.facts()->vocab_size;
  if (const auto token = first_beyond(step.drafts, vocab_size))
    return refuse(fmt::format("draft token id {}, the vocabulary has {}", *token, vocab_size));
  if (std::ssize(step.drafts) > tokens_left() - 1) {
    return refuse(fmt::format("{} drafts, the context has room for {}", step.drafts.size(), tokens_left() - 1));
  }
  round_.drafts = {};
  // The client says what it drafts, not from what.
  round_.drafts.add(0, {.tokens = step.drafts}, DraftSource::kAssistant, std::ssize(step.drafts));
  send_verify(desk);
  return true;
}

void Session::on_cancel(const Desk& desk, const Cancel& cancel) {
  if (!cancel.keep) return finish(desk, Failed{Errc::kCancelled, "cancelled"});
  if (*cancel.keep > answered()) {
    return fail(desk, Errc::kInvalidArgument,
                fmt::format("{} tokens to keep, the answer has {}", *cancel.keep, answered()));
  }
  finish(desk, Done{FinishReason::kStop, books_.metrics});
}

}  // namespace outrider
