// Writes tests/goldens/policy/nano_traces.json: how far the nano assistant's drafts hold at every position
// of the 24 golden answers. From that a simulator knows what any draft length would have given anywhere:
// greedy text is the same whatever was drafted.
//
//   ./build/tests/simulation/policy_record_traces > tests/goldens/policy/nano_traces.json

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "common/os/logging.h"
#include "embed/pair.h"
#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

constexpr std::int32_t kDraftLength = 16;

template <typename T>
T or_exit(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "policy_record_traces: %s\n", result.error().message.c_str());
  std::exit(1);
}

/// @return the answer's tokens, and for every round that could begin in it the drafts that would hold, of 16.
nlohmann::json record(Client& client, const SamplingParams& greedy, const NanoGolden& golden) {
  std::vector<TokenId> text = {or_exit(client.prefill(golden.prompt_ids, greedy))};
  std::vector<std::vector<TokenId>> drafts;
  while (text.size() < golden.greedy.size()) {
    drafts.push_back(or_exit(client.draft(kDraftLength)));
    text.push_back(or_exit(client.verify({})).front());
  }
  std::vector<int> runs;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    const auto room = std::min(drafts[i].size(), text.size() - i - 1);
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    const auto differs = std::mismatch(drafts[i].begin(), drafts[i].begin() + static_cast<std::ptrdiff_t>(room), from);
    runs.push_back(static_cast<int>(differs.first - drafts[i].begin()));
  }
  return {{"prompt", golden.prompt}, {"tokens", text}, {"runs", runs}};
}

}  // namespace
}  // namespace outrider

int main() {
  using namespace outrider;
  init_logging("policy_record_traces", "warn");
  const auto pair = or_exit(Pair::open_local({.pair = nano_pair()}));
  Client client = or_exit(pair->connect());
  nlohmann::json traces = nlohmann::json::array();
  for (const NanoGolden& golden : nano_goldens()) {
    traces.push_back(record(client, pair->text().greedy(), golden));
  }
  const nlohmann::json object = {
      {"draft_length", kDraftLength},
      {"command", "./build/tests/simulation/policy_record_traces > tests/goldens/policy/nano_traces.json"},
      {"traces", traces}};
  std::printf("%s\n", object.dump().c_str());
}
