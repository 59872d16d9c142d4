#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/client/client.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// A client of the coordinator at the first of these addresses that answers.
/// @return kUnavailable if none does, with the reason of each.
Result<Client> connect_any(TransportContext& context, const std::vector<std::string>& addresses);

/// It lists the plan's workers that are not in the coordinator's books under their name.
std::vector<PlannedProcess> missing_workers(const ProcessPlan& plan, const Status& status);

/// "1 verifier and 2 drafters".
std::string workers_text(std::ptrdiff_t verifiers, std::ptrdiff_t drafters);

/// Lets one token come through each verifier. No client can choose its verifier, so texts are begun and held open until
/// every verifier has one: the coordinator gives the next to the one with the fewest. Other clients' texts count as
/// ours.
/// @return why it could not be shown.
Result<void> prove_verifiers(TransportContext& context, const std::vector<std::string>& addresses);

}  // namespace outrider
