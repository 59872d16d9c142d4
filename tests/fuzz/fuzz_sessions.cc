// The session logic of each role, told whatever the codec lets in by peers that have joined, by clients and by
// strangers, while time passes: no CHECK is reached, and the coordinator's books are what its sessions say.
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/client/client_core.h"
#include "coordinator-node/coordinator_core.h"
#include "drafter-node/drafter_core.h"
#include "encoder-node/encoder_core.h"
#include "tests/fuzz/drawn_messages.h"
#include "tests/fuzz/driver.h"
#include "tests/unit/protocol_support.h"
#include "verifier-node/verifier_core.h"

namespace outrider {
namespace {

constexpr std::size_t kStepsMax = 200;

WireMedium picture() {
  const auto pixels = std::make_shared<std::vector<std::byte>>(3);
  return {.content = {.dtype = DType::kU8, .shape = {1, 1, 3}, .data = SharedBytes(pixels, *pixels)}};
}

/// Half of what comes is a likely next word, so that sessions get somewhere.
Message likely(Drawer& draw, Role to) {
  const auto round = RoundId{static_cast<std::uint32_t>(draw.byte() % 4)};
  const std::int32_t accepted = draw.byte() % 3;
  const Position end = 3 + draw.byte() % 8;
  const SessionId session{50 + std::uint64_t{draw.byte()} % 2};
  if (to == Role::kEncoder) return {session, round, 0, Encode{picture()}};
  switch (draw.byte() % 5 + (to == Role::kVerifier ? 5 : 0)) {
    case 0:
      return {session, round, 0, Verdict{.next_token = 40, .committed = 3, .hidden = zeros({2}), .kv = rows(0, 3)}};
    case 1:
      return {
          session, round, 0,
          Verdict{.accepted = accepted, .next_token = 41, .committed = end, .hidden = zeros({2}), .kv = rows(3, end)}};
    case 2: return {session, round, end, Candidates{.tokens = {1, 2}, .draft_ns = 5}};
    case 3: return {session, round, end, NeedKv{.have = end}};
    case 4: return {session, round, 0, Encoded{{.content = zeros({1, 2})}}};
    case 5: return {session, {}, 0, Prefill{.tokens = {1, 2, 3}, .kv_from = Position{0}, .positions_max = 20}};
    case 6: return {session, round, end, Verify{.tokens = {40, 1, 2}, .kv_from = end}};
    case 7: return {session, round, 0, KvChunk{rows(0, end)}};
    default:
      return {session, round, end, Draft{.token = 4, .draft_length = 2, .hidden = zeros({2}), .ahead = accepted}};
  }
}
Message any_message(Drawer& draw, Role to) {
  return draw.byte() % 2 == 0 ? likely(draw, to) : MessageDrawer(draw).message();
}

void play_coordinator(Drawer& draw) {
  TimePoint now{seconds(100)};
  CoordinatorCore core({.instance = 50,
                        .queue = {.open_max = 8, .waiting_max = 8},
                        .audit = {.share = 0.5},
                        .drafters_per_sequence = 2});
  core.on_message("v", {.body = hello(Role::kVerifier)}, now);
  core.on_message("d", {.body = hello(Role::kDrafter)}, now);
  core.on_message("e", {.body = hello(Role::kEncoder)}, now);
  core.on_message("c",
                  {.session = SessionId{9},
                   .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 10, .draft_length = 2, .media = {picture()}}},
                  now);
  for (std::size_t step = 0; step < kStepsMax && !draw.empty(); ++step) {
    const PeerId peer = std::array{"v", "d", "e", "c", "w", "x"}.at(draw.byte() % 6);
    const std::uint8_t what = draw.byte();
    if (what < 200)
      core.on_message(peer, any_message(draw, Role::kDrafter), now);
    else if (what < 210)
      core.on_peer_gone(peer, now);
    else if (what < 220)
      core.on_message(peer,
                      {.body = hello(peer == "d"   ? Role::kDrafter
                                     : peer == "e" ? Role::kEncoder
                                                   : Role::kVerifier)},
                      now);
    else
      core.on_tick(now += milliseconds(1 << (draw.byte() % 14)));
    for (const Outgoing& out : core.take_output().send) {
      CHECK(!out.to.empty(), "a word to nobody");
      core.on_sent(out.message, 1);
    }
    std::map<PeerId, Load> loads = core.loads();
    for (const auto& [name, worker] : core.fleet().workers()) CHECK(loads[name] == worker, "{}'s books", name);
    CHECK(core.status().sessions < 32, "{} sessions", core.status().sessions);
  }
  core.stop(now);
}

/// What happens to a worker next: a message or time, else what it has to do is done. @return whether it was the former
template <class Core>
bool feed(Drawer& draw, Core& core, TimePoint& now, Role role = Role::kVerifier) {
  const std::uint8_t what = draw.byte();
  if (what < 160)
    core.on_message(any_message(draw, role), now);
  else if (what < 220)
    core.on_tick(now += milliseconds(1 << (draw.byte() % 18)));
  return what < 220;
}

void play_verifier(Drawer& draw) {
  TimePoint now{seconds(100)};
  VerifierCore core({.rows_max = 8,
                     .prefill_chunk = 4,
                     .capacity = {.sessions_max = 4, .kv_cost = {.bytes_per_position = 10}, .kv_bytes_max = 1000},
                     .reuse_min = 2},
                    hello(Role::kVerifier));
  core.on_message({.body = Welcome{50}}, now);
  std::vector<VerifyWork> out;
  for (std::size_t step = 0; step < kStepsMax && !draw.empty(); ++step) {
    if (!feed(draw, core, now) && !out.empty()) {
      std::vector<VerifyResult> results;
      for (const VerifyWork& work : std::exchange(out, {})) {
        VerifyResult& result = results.emplace_back(VerifyResult{.session = work.session, .round = work.round});
        const auto drafts = static_cast<std::int32_t>(work.tokens.size()) - 1;
        result.verdict.accepted = work.prefill ? 0 : draw.byte() % (drafts + 1);
        if (draw.byte() % 32 == 0) result.error = Error{Errc::kMalformed, "no token"};
      }
      core.on_batch_done(std::move(results), now);
    }
    VerifierCore::Output output = core.take_output();
    if (!output.batch.empty()) CHECK(out.empty(), "two batches at once");
    if (!output.batch.empty()) out = std::move(output.batch);
    CHECK(core.session_count() <= 4 && core.kv_bytes() <= 1000, "{} sessions, {} bytes", core.session_count(),
          core.kv_bytes());
  }
}

void play_drafter(Drawer& draw) {
  TimePoint now{seconds(100)};
  DrafterCore core({.sessions_max = 4}, hello(Role::kDrafter));
  core.on_message({.body = Welcome{50}}, now);
  std::vector<DraftTurn> out;
  for (std::size_t step = 0; step < kStepsMax && !draw.empty(); ++step) {
    if (!feed(draw, core, now)) {
      for (const DraftTurn& turn : std::exchange(out, {})) {
        DraftProgress progress{.more = draw.byte() % 2 == 0};
        progress.drafts.resize(draw.byte() % 3, Candidates{.tokens = {1, 2}, .draft_ns = 1, .after = {1}});
        core.on_turn(turn, std::move(progress));
      }
    }
    const DrafterCore::Output output = core.take_output();
    out.insert(out.end(), output.pass.begin(), output.pass.end());
    CHECK(core.session_count() <= 4, "{} sessions", core.session_count());
  }
}

void play_encoder(Drawer& draw) {
  TimePoint now{seconds(100)};
  EncoderCore core({.sessions_max = 4,
                    .kept_bytes_max = 60,
                    .soft_tokens = [](const WireMedium&) -> Result<SoftTokens> { return SoftTokens{.count = 1}; }},
                   hello(Role::kEncoder));
  core.on_message({.body = Welcome{50}}, now);
  bool out = false;
  for (std::size_t step = 0; step < kStepsMax && !draw.empty(); ++step) {
    if (!feed(draw, core, now, Role::kEncoder) && std::exchange(out, false))
      core.on_encoded(zeros({1, 2}), milliseconds(draw.byte()));
    const EncoderCore::Output output = core.take_output();
    CHECK(!output.work || !out, "two pictures at once");
    out = out || output.work;
    CHECK(core.session_count() <= 4 && core.kept_bytes() <= 60, "{} sessions, {} bytes", core.session_count(),
          core.kept_bytes());
  }
}

void play_client(Drawer& draw) {
  TimePoint now{seconds(100)};
  const std::vector<Generate> requests = {{.prompt = {1, 2}, .max_tokens = 10, .stop_ids = {7}},
                                          {.prompt = {3}, .max_tokens = 20, .stepwise = true}};
  std::size_t tokens = 0;
  AnswerEvents events;
  events.on_tokens = [&](std::size_t, std::span<const TokenId> more) { tokens += more.size(); };
  ClientCore core({}, requests, events, SessionId{}, now);
  for (std::size_t step = 0; step < kStepsMax && !draw.empty(); ++step) {
    Message message = any_message(draw, Role::kDrafter);
    message.session = SessionId{1 + std::uint64_t{draw.byte()} % 2};
    if (draw.byte() % 3 == 0) message.body = Tokens{.index = draw.byte() % 12, .tokens = {draw.byte(), draw.byte()}};
    Result<void> result;
    const std::uint8_t what = draw.byte();
    if (what < 200)
      result = core.on_message(message, now);
    else if (what < 210)
      result = core.on_connected(now);
    else
      result = core.on_tick(now += milliseconds(1 << (draw.byte() % 14)));
    (void)core.take_output();
    if (!result) break;
    CHECK(tokens <= 30, "{} tokens", tokens);
  }
}

}  // namespace

FuzzSeeds fuzz_seeds() {
  FuzzSeeds seeds;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CounterRng random(seed);
    std::string& input = seeds.emplace_back(100 + random.below(1500), '\0');
    for (char& c : input) c = static_cast<char>(random.next());
    input[0] = static_cast<char>(seed);
  }
  return seeds;
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  if (size == 0) return 0;
  Drawer draw({data + 1, size - 1});
  switch (data[0] % 5) {
    case 0: play_coordinator(draw); break;
    case 1: play_verifier(draw); break;
    case 2: play_drafter(draw); break;
    case 3: play_encoder(draw); break;
    default: play_client(draw);
  }
  return 0;
}
