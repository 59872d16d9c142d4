// Measures the drafts of a draft model, alone and with its own assistant, in turns on the same rounds: processor time
// of one thread. Rounds are those of a drafter beside the verifier: drafts, then the target's pass.
//   cascade TARGET DRAFT_PAIR [DRAFTS] [TEMPERATURE]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <stdexcept>

#include "common/compute/kernels/ops.h"
#include "common/compute/kernels/team.h"
#include "common/model/gemma4/generation_config.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/chat_format.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/pair/pair_files.h"
#include "drafter-node/draft_engine.h"
#include "drafter-node/whole_model/whole_model.h"

namespace {

using namespace outrider;

constexpr int kAnswer = 120;  ///< tokens

/// Easy and hard prompts.
constexpr const char* kPrompts[] = {
    "Tell me a story about a lighthouse.",
    "Turn this list into JSON: Finn is 20 and lives near the river; Noah is 48 and lives near the park.",
    "Explain in two sentences why the sky is blue.",
    "Write a letter to a friend who has moved away.",
    "Count from 3 to 20.",
    "What is the difference between a lake and a river?",
};

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

ModelFiles open_model(const std::filesystem::path& path) { return or_throw(ModelFiles::open(path)); }

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

/// Returns processor time of one thread, which other load does not affect.
double cpu_ms() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// One of the two drafters, with the times of its rounds.
struct Drafter {
  DraftEngine engine;
  std::vector<double> round_ms = {};
  std::int64_t passes = 0;
};

std::unique_ptr<DraftModel> load(const PairPaths& paths, bool cascade) {
  const ModelFiles files = open_model(paths.backbone);
  auto backbone = or_throw(Backbone::load(files, WeightType::kBf16, kWholeModelRows));
  std::unique_ptr<Assistant> assistant;
  if (cascade)
    assistant = or_throw(
        Assistant::load(open_model(paths.assistant), backbone->config(), backbone->weights(), WeightType::kBf16));
  return make_draft_model(std::move(backbone), std::move(assistant));
}

/// Returns the drafts of a round with rows [from, base).
std::vector<TokenId> draft(Drafter& drafter, SessionId id, RoundId round, std::span<const TokenId> text, Position from,
                           Draft request) {
  const auto base = static_cast<Position>(text.size()) - 1;
  const double start = cpu_ms();
  drafter.engine.run(
      {.session = id, .kv = {.from = from, .to = base, .tokens = {text.begin() + from, text.end() - 1}}});
  request.token = text.back();
  drafter.engine.run({.kind = DraftWork::Kind::kDraft, .session = id, .round = round, .base = base, .draft = request});
  for (;;) {
    const DraftTurn turn{id, round, base};
    std::vector<DraftProgress> made = drafter.engine.step({&turn, 1});
    if (made[0].drafts.empty()) continue;
    if (from > 0) drafter.round_ms.push_back(cpu_ms() - start);
    if (from > 0) drafter.passes += made[0].drafts[0].passes;
    return std::move(made[0].drafts[0].tokens);
  }
}

void measure(const char* target, const char* draft_pair, std::int32_t drafts, float temperature) {
  set_team_size(1);
  const ModelFiles files = open_model(or_throw(pair_paths(target)).backbone);
  const auto backbone = or_throw(Backbone::load(files, WeightType::kBf16, 256));
  const PairPaths paths = or_throw(pair_paths(draft_pair));
  Drafter both[] = {{DraftEngine(load(paths, false), {})}, {DraftEngine(load(paths, true), {})}};
  const Tokenizer tokenizer = or_throw(Tokenizer::load(files));
  const std::vector<TokenId> stop_ids = or_throw(load_generation_config(files)).eos_token_ids;
  const ChatFormat format = or_throw(load_chat_format(files));
  SamplingScratch scratch;
  std::uint64_t id = 0;
  for (const char* prompt : kPrompts) {
    for (Drafter& drafter : both) drafter.round_ms.clear(), drafter.passes = 0;
    std::vector<double> plain_ms, verify_ms;
    std::int64_t rounds = 0, accepted = 0;
    const SamplingParams sampling{.temperature = temperature, .seed = ++id};
    const auto choose = [&](std::span<const float> logits, std::int64_t index) {
      if (sampling.greedy()) return static_cast<TokenId>(argmax(logits));
      std::vector<float> scores(logits.begin(), logits.end());
      if (const float cap = backbone->config().final_logit_softcapping; cap > 0)
        softcap_in_place(Matrix<float>(scores.data(), {1, std::ssize(scores)}), cap);
      Distribution p;
      make_distribution(scores, sampling, scratch, &p);
      return draw(p, Noise(sampling.seed, index, Noise::Stream::kDraw));
    };
    KvCache cache = backbone->make_cache();
    const auto forward = [&](std::span<const TokenId> rows, std::int64_t outputs) {
      const Segment segment{.cache = &cache, .tokens = rows, .output_rows = outputs};
      return backbone->forward({&segment, 1});
    };
    std::vector<TokenId> text = or_throw(render_user_turn(tokenizer, prompt, format));
    text.push_back(choose(forward(text, 1).logits[0].span(), 0));
    Position sent = 0;
    for (std::int64_t index = 1, round = 1; index < kAnswer; ++round) {
      Draft request{.draft_length = drafts, .index = index, .sampling_known = sent > 0};
      if (sent == 0 && !sampling.greedy()) request.sampling = sampling;
      std::vector<TokenId> made[2];
      for (int i = 0; i < 2; ++i) {
        const auto at = static_cast<std::size_t>((i + round) % 2);
        made[at] = draft(both[at], SessionId{id}, RoundId{static_cast<std::uint32_t>(round)}, text, sent, request);
      }
      if (made[0] != made[1]) throw std::runtime_error("the cascade drafts other tokens");
      sent = std::ssize(text) - 1;
      std::vector<TokenId> rows = {text.back()};
      const double plain = cpu_ms();
      forward(rows, 1);
      plain_ms.push_back(cpu_ms() - plain);
      cache.truncate(sent);
      rows.insert(rows.end(), made[0].begin(), made[0].end());
      const double verify = cpu_ms();
      const Backbone::Output out = forward(rows, std::ssize(rows));
      verify_ms.push_back(cpu_ms() - verify);
      std::int64_t held = 0;
      TokenId next = choose(out.logits[0].span(), index);
      for (; held < std::ssize(made[0]) && next == made[0][static_cast<std::size_t>(held)]; ++held)
        next = choose(out.logits[held + 1].span(), index + held + 1);
      text.insert(text.end(), made[0].begin(), made[0].begin() + held);
      text.push_back(next);
      cache.truncate(std::ssize(text) - 1);
      index += held + 1;
      accepted += held;
      ++rounds;
      if (std::ranges::find(stop_ids, next) != stop_ids.end()) break;
    }
    const double tokens = 1 + static_cast<double>(accepted) / static_cast<double>(rounds);
    std::printf("%s\n  %lld rounds, %.2f tokens a round; the target's pass of 1 row %.2f ms, of %d rows %.2f ms\n",
                prompt, static_cast<long long>(rounds), tokens, median(plain_ms), drafts + 1, median(verify_ms));
    for (std::size_t i = 0; i < 2; ++i) {
      if (both[i].round_ms.empty()) continue;
      const double ms = median(both[i].round_ms);
      std::printf("  %-8s %d drafts in %.2f ms, %.2f passes; %.2f times plain\n", i == 0 ? "alone" : "cascade", drafts,
                  ms, static_cast<double>(both[i].passes) / static_cast<double>(both[i].round_ms.size()),
                  tokens * median(plain_ms) / (ms + median(verify_ms)));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: cascade TARGET DRAFT_PAIR [DRAFTS] [TEMPERATURE]\n");
    return 2;
  }
  try {
    measure(argv[1], argv[2], argc > 3 ? std::clamp(std::atoi(argv[3]), 1, kDraftLengthMax) : 8,
            argc > 4 ? static_cast<float>(std::atof(argv[4])) : 0.0f);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cascade: %s\n", error.what());
    return 1;
  }
}
