// What drafts of each source bring on a file of questions, all of the same length, in one process.
//   draft_sources models/nano TABLE QUESTIONS [DRAFTS]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "common/decoding/drafting/draft_table.h"
#include "common/decoding/drafting/ngram.h"
#include "common/decoding/sampling/verify.h"
#include "common/os/files.h"
#include "lab/in_process_pair.h"
#include "lab/questions.h"
#include "launch/command_support.h"

namespace {

using namespace outrider;

constexpr std::int64_t kMaxTokens = 160;

struct Sums {
  std::int64_t tokens = 0, rounds = 0, hits = 0, drafted = 0, accepted = 0;
  std::array<double, 3> seconds = {};  ///< of each time that the questions were asked
};

using Drafts = std::function<std::vector<TokenId>(InProcessPair& text, std::span<const TokenId> history)>;

/// The answer's tokens.
std::vector<TokenId> answer(InProcessPair& pair, const Question& question, std::span<const TokenId> stop_ids,
                            const Drafts& drafts_of, Sums& sums, double& seconds) {
  pair.prefill(question.prompt);
  std::vector<TokenId> history = question.prompt;
  history.push_back(pair.token());
  const auto left = [&] { return std::ssize(question.prompt) + kMaxTokens - std::ssize(history); };
  const TimePoint start = now();
  bool stopped = std::ranges::count(stop_ids, history.back()) > 0;
  while (!stopped && left() > 0) {
    std::vector<TokenId> drafts = drafts_of(pair, history);
    drafts.resize(std::min(drafts.size(), static_cast<std::size_t>(left() - 1)));
    const VerifyOutcome outcome = verify_greedy(pair.verify(drafts).logits, drafts);
    pair.keep(outcome.accepted, outcome.next_token);
    sums.rounds += 1;
    sums.hits += !drafts.empty();
    sums.drafted += std::ssize(drafts);
    sums.accepted += outcome.accepted;
    drafts.resize(static_cast<std::size_t>(outcome.accepted));
    drafts.push_back(outcome.next_token);
    for (const TokenId token : drafts) {
      if (stopped) break;
      history.push_back(token);
      sums.tokens += 1;
      stopped = std::ranges::count(stop_ids, token) > 0;
    }
  }
  seconds += to_seconds(now() - start);
  return {history.begin() + std::ssize(question.prompt), history.end()};
}

void measure(const std::filesystem::path& model, const std::filesystem::path& table_path,
             const std::filesystem::path& questions, std::int64_t length) {
  const ModelFiles files = open_model(or_throw(pair_paths(model)).backbone);
  const auto backbone = or_throw(Backbone::load(files, WeightType::kBf16, kRowsMax));
  const auto assistant = or_throw(Assistant::load(open_model(or_throw(pair_paths(model)).assistant), backbone->config(),
                                                  backbone->weights(), WeightType::kBf16));
  const MappedFile file = or_throw(MappedFile::open(table_path));
  const DraftTable table = or_throw(DraftTable::of(file.bytes()));
  const TextSide text = load_text_side(files);
  std::vector<std::string> asked;
  for (const Conversations& question : read_question_file(questions)) asked.push_back(question.turns[0]);
  const auto vocab_size = static_cast<std::int32_t>(backbone->config().vocab_size);
  const auto most = static_cast<std::size_t>(length);
  const Drafts plain = [](auto&, auto) { return std::vector<TokenId>(); };
  const Drafts ngram = [&](auto&, std::span<const TokenId> history) {
    const auto drafts = ngram_draft(history, most);
    return std::vector<TokenId>(drafts.begin(), drafts.end());
  };
  const Drafts looked_up = [&](auto&, std::span<const TokenId> history) {
    return table.draft(history, most, vocab_size);
  };
  const Drafts drafted = [&](InProcessPair& pair, auto) { return pair.draft(length, text.stop_ids()); };
  const Drafts both = [&](InProcessPair& pair, std::span<const TokenId> history) {
    std::vector<TokenId> drafts = looked_up(pair, history);
    return drafts.empty() ? drafted(pair, history) : drafts;
  };
  const std::pair<const char*, Drafts> sources[] = {{"plain", plain},
                                                    {"n-gram", ngram},
                                                    {"table", looked_up},
                                                    {"assistant", drafted},
                                                    {"table, else assistant", both}};
  std::array<Sums, std::size(sources)> sums;
  for (std::size_t pass = 0; pass < sums[0].seconds.size(); ++pass) {
    for (const Question& question : user_turns(text, asked)) {
      std::vector<TokenId> expected;
      for (std::size_t i = 0; i < std::size(sources); ++i) {  // side by side: a noisy neighbour slows all alike
        InProcessPair pair(*backbone, assistant.get());
        const auto tokens = answer(pair, question, text.stop_ids(), sources[i].second, sums[i], sums[i].seconds[pass]);
        if (i == 0) expected = tokens;
        if (tokens != expected) throw std::runtime_error("the texts differ");
      }
    }
  }
  std::printf("%-22s %8s %8s %8s %14s %9s %9s\n", "", "tokens", "hits", "accepted", "tokens a round", "tokens/s",
              "x plain");
  const auto rate = [](Sums& of) {
    std::ranges::sort(of.seconds);
    return static_cast<double>(of.tokens) / 3 / of.seconds[1];
  };
  const double plain_rate = rate(sums[0]);
  for (std::size_t i = 0; i < std::size(sources); ++i) {
    Sums& of = sums[i];
    const auto share = [](std::int64_t a, std::int64_t b) {
      return static_cast<double>(a) / static_cast<double>(std::max<std::int64_t>(b, 1));
    };
    std::printf("%-22s %8lld %8.2f %8.3f %14.2f %9.1f %9.2f\n", sources[i].first, static_cast<long long>(of.tokens / 3),
                share(of.hits, of.rounds), share(of.accepted, of.drafted), share(of.tokens, of.rounds), rate(of),
                rate(of) / plain_rate);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: draft_sources MODEL TABLE QUESTIONS [DRAFTS]\n");
    return 2;
  }
  try {
    measure(argv[1], argv[2], argv[3], argc > 4 ? std::atoi(argv[4]) : 8);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
