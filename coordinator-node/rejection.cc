#include "coordinator-node/rejection.h"

#include <cmath>

namespace outrider {

void compare(Rejection& rejection, const Distribution& q) {
  const double draft = q.probability(rejection.draft), target = q.probability(rejection.target);
  if (target <= 0) return;
  std::int32_t rank = 0;
  for (const TokenId id : q.ids) {
    const double p = q.probability(id);
    rank += p > target || (p == target && id < rejection.target);
  }
  rejection.rank = rank;
  if (draft > 0) rejection.margin = std::log(draft) - std::log(target);
}

}  // namespace outrider
