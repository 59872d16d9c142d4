#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/client/client.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// Returns a client of the coordinator at the first of these addresses that answers.
/// @return kUnavailable if none does, with the reason of each
Result<Client> connect_any(TransportContext& context, const std::vector<std::string>& addresses);

/// Returns the plan's workers that have not joined under their name.
std::vector<PlannedProcess> missing_workers(const ProcessPlan& plan, const Status& status);

/// "1 verifier and 2 drafters".
std::string workers_text(std::ptrdiff_t verifiers, std::ptrdiff_t drafters);

/// Produces one token on each verifier. No client can choose its verifier, so sequences are begun and kept open until
/// every verifier has one: the coordinator assigns the next sequence to the verifier with the fewest, counting other
/// clients' too. @return an error if that failed
Result<void> prove_verifiers(TransportContext& context, const std::vector<std::string>& addresses);

}  // namespace outrider
