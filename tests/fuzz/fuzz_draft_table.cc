// The file of --draft-table, and drafts from it.
#include <string>

#include "common/base/check.h"
#include "common/decoding/drafting/draft_table.h"
#include "tests/fuzz/driver.h"

namespace outrider {

FuzzSeeds fuzz_seeds() {
  FuzzSeeds seeds;
  for (const int order : {kTableOrderMin, kTableOrderMax}) {
    DraftTableCounts counts(order);
    for (TokenId next = 0; next < 40; ++next)
      counts.add(std::vector<TokenId>{1, 2, 1, 2, next % 3, 1, 2, 1, 2, next}, 2);
    seeds.push_back(counts.file(7));
  }
  return seeds;
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  const auto table = DraftTable::of(std::as_bytes(std::span(data, size)));
  if (!table) return 0;
  std::vector<TokenId> history;
  for (const TokenId token : {1, 2, 1, 2, 0, 1, 2, 1, 2}) {
    history.push_back(token);
    const std::vector<TokenId> drafts = table->draft(history, 8, 30);
    CHECK(drafts.size() <= 8, "{} drafts", drafts.size());
    for (const TokenId draft : drafts) CHECK(draft >= 0 && draft < 30, "draft {}", draft);
  }
  return 0;
}
