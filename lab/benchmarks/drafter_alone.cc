// Prints an assistant's own greedy text after the target's first token, beside the target's text.
//   drafter_alone MODEL [TOKENS] [PROMPT...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "lab/in_process_pair.h"
#include "lab/questions.h"
#include "launch/command_support.h"

namespace {

using namespace outrider;

void compare(const std::filesystem::path& model, std::int64_t tokens, const std::vector<std::string>& prompts) {
  const PairPaths paths = or_throw(pair_paths(model));
  const ModelFiles files = open_model(paths.backbone);
  const auto backbone = or_throw(Backbone::load(files, WeightType::kBf16, kRowsMax));
  const auto assistant = or_throw(
      Assistant::load(open_model(paths.assistant), backbone->config(), backbone->weights(), WeightType::kBf16));
  const TextSide text = load_text_side(files);
  for (const Question& question : user_turns(text, prompts)) {
    InProcessPair pair(*backbone, assistant.get());
    pair.prefill(question.prompt);
    const TokenId first = pair.token();
    // The assistant continues from its own predictions. Position and K/V stay those of the prompt, as in any draft.
    std::vector<TokenId> own = pair.draft(tokens - 1, text.stop_ids()), target = {first};
    while (std::ssize(target) < tokens && std::ranges::count(text.stop_ids(), target.back()) == 0)
      target.push_back(pair.round(0).tokens.back());
    own.insert(own.begin(), first);
    const auto same = std::ranges::mismatch(own, target).in1 - own.begin();
    std::printf("target     %s\nassistant  %s\nalike      %lld tokens\n\n", text.tokenizer.decode(target, true).c_str(),
                text.tokenizer.decode(own, true).c_str(), static_cast<long long>(same));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: drafter_alone MODEL [TOKENS] [PROMPT...]\n");
    return 2;
  }
  try {
    std::vector<std::string> prompts(argv + std::min(argc, 3), argv + argc);
    if (prompts.empty()) prompts.assign(kDemoPrompts.begin(), kDemoPrompts.begin() + kFewPrompts);
    compare(argv[1], argc > 2 ? std::max(1, std::atoi(argv[2])) : 32, prompts);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "drafter_alone: %s\n", error.what());
    return 1;
  }
}
