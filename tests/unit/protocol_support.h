#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/time.h"
#include "common/wire/messages/donor_rows.h"
#include "common/wire/messages/membership.h"
#include "common/wire/messages/messages.h"

// What the tests of the session logic share: a small model, rows of zeros, and a loop that can be stopped.
namespace outrider {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline PairFacts small_facts() {
  return {.embedding_fingerprint = 7,
          .hidden_size = 2,
          .vocab_size = 100,
          .context_max = 20,
          .donors = {{.sliding = true, .layer = 1, .num_key_value_heads = 1, .head_dim = 2, .sliding_window = 3},
                     {.layer = 2, .num_key_value_heads = 1, .head_dim = 2}}};
}

inline WireTensor zeros(std::vector<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  const auto owner = std::make_shared<std::vector<float>>(static_cast<std::size_t>(count));
  return {
      .dtype = DType::kF32, .shape = std::move(shape), .data = SharedBytes(owner, std::as_bytes(std::span(*owner)))};
}

inline KvRows rows(Position from, Position to) {
  KvRows kv{.from = from, .to = to, .donors = {}};
  for (const DonorFacts& donor : small_facts().donors) {
    const Position first = first_useful_row(donor, from, to);
    kv.donors.push_back({first, zeros({to - first, 1, 2}), zeros({to - first, 1, 2})});
  }
  return kv;
}

inline Hello hello(Role role) {
  const bool verifier = role == Role::kVerifier;
  return {.role = role,
          .name = std::string(to_string(role)).substr(0, 1),
          .facts = small_facts(),
          .numeric_class = verifier ? "zeros" : "",
          .encoding_class = role == Role::kDrafter ? "" : "soft-zeros"};
}

/// Of a drafter that needs tokens alone.
inline Hello token_hello() {
  return {.role = Role::kDrafter,
          .name = "t",
          .facts = {.vocab_size = 100, .context_max = 20},
          .needs = DraftInput::kTokens};
}

template <typename Body>
const Body* find(const std::vector<Outgoing>& outgoing, const PeerId& to, Message* message = nullptr) {
  for (const Outgoing& out : outgoing) {
    if (out.to != to) continue;
    if (const auto* body = std::get_if<Body>(&out.message.body)) {
      if (message != nullptr) *message = out.message;
      return std::get_if<Body>(message != nullptr ? &message->body : &out.message.body);
    }
  }
  return nullptr;
}

/// A node's loop, which can be stopped: ticks a core every 20 ms by a LoopClock.
struct Loop {
  template <typename Core>
  void run(Core& core, Duration duration) {
    for (const TimePoint end = real + duration; real < end;) {
      real += milliseconds(20);
      core.on_tick(clock.at(real));
    }
  }
  void pause(Duration duration) { real += duration; }
  TimePoint now() { return clock.at(real); }

  TimePoint real{seconds(1000)};
  LoopClock clock{real};
};

/// A worker's core with one session that waits for a request.
inline void check_worker_pause(auto& core, Loop& loop) {
  ASSERT_EQ(core.session_count(), 1u);
  loop.pause(std::chrono::minutes(10));
  loop.run(core, milliseconds(20));
  EXPECT_TRUE(core.membership().joined());
  EXPECT_EQ(core.session_count(), 1u);
  loop.run(core, milliseconds(3100));
  EXPECT_FALSE(core.membership().joined());
}

}  // namespace outrider
