// The file of --policy-state, and what it is made into.
#include <string>

#include "common/base/check.h"
#include "common/policy/policies.h"
#include "tests/fuzz/driver.h"

namespace outrider {

FuzzSeeds fuzz_seeds() {
  Policies policies(1);
  const CostModel costs;
  BatchGoodput batch;
  for (const DraftPolicy policy : {DraftPolicy::kUcb1, DraftPolicy::kThompson}) {
    const auto length = policies.make(policy, 8, costs, batch);
    for (int i = 0; i < 20; ++i) {
      const DraftChoice choice = length->choose({.assistant = 8, .ngram = 4});
      length->observe({.source = choice.source,
                       .arm = choice.arm,
                       .drafted = choice.length,
                       .accepted = choice.length / 2,
                       .verify_s = 0.01,
                       .round_s = 0.02});
    }
  }
  return {policies.save()};
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  Policies policies(1);
  const std::string before = policies.save();
  const Result<void> loaded = policies.load({reinterpret_cast<const char*>(data), size});
  if (!loaded) {
    CHECK(policies.save() == before, "something changed");
    return 0;
  }
  const CostModel costs;
  BatchGoodput batch;
  for (const DraftPolicy policy : {DraftPolicy::kUcb1, DraftPolicy::kThompson}) {
    const DraftChoice choice = policies.make(policy, 8, costs, batch)->choose({.assistant = 8, .ngram = 4});
    CHECK(choice.length >= 0 && choice.length <= 8, "{} drafts", choice.length);
  }
  Policies again(1);
  const Result<void> kept = again.load(policies.save());
  CHECK(kept, "{}", kept.error().message);
  return 0;
}
