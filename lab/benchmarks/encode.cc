// How long the tokenizer takes for a megabyte of text, ordinary and pathological.
//   encode_benchmark models/nano/backbone
#include <cstdio>
#include <string>

#include "common/base/random.h"
#include "common/base/time.h"
#include "common/checkpoint/model_files.h"
#include "common/tokenizer/tokenizer.h"

namespace {

constexpr std::size_t kBytes = 1 << 20;

std::string repeated(const std::string& text) {
  std::string result;
  while (result.size() < kBytes) result += text;
  return result;
}

template <typename Next>
std::string drawn(Next next) {
  outrider::CounterRng rng(1);
  std::string result;
  while (result.size() < kBytes) result += static_cast<char>(next(rng));
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace outrider;
  const auto files = ModelFiles::open(argc > 1 ? argv[1] : "models/nano/backbone");
  if (!files) {
    std::fprintf(stderr, "%s\n", files.error().message.c_str());
    return 1;
  }
  const auto tokenizer = Tokenizer::load(*files);
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  const auto measure = [&](const char* name, const std::string& text) {
    const TimePoint start = now();
    const std::size_t count = tokenizer->encode(text).size();
    std::printf("%-24s %8zu ids %8.1f ms\n", name, count, 1e3 * to_seconds(now() - start));
  };
  measure("aaaa", repeated("a"));
  measure("newlines", repeated("\n"));
  measure("spaces", repeated(" "));
  measure("<<<<", repeated("<"));
  measure("words without spaces", repeated("thequickbrownfoxjumpsoverthelazydog"));
  measure("ideographs", repeated("漢字かな交じり文"));
  measure("random letters", drawn([](CounterRng& rng) { return 'a' + rng.below(26); }));
  measure("random words", drawn([](CounterRng& rng) { return rng.below(6) == 0 ? ' ' : 'a' + rng.below(26); }));
  measure("random bytes", drawn([](CounterRng& rng) { return rng.below(256); }));
}
