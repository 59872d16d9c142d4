#include "launch/cluster/readiness.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/text.h"

namespace outrider {
namespace {

/// First token of every Gemma sequence.
constexpr TokenId kBeginOfText{2};
/// Sequences per verifier, in case other clients' take their places.
constexpr int kSequencesMax = 4;

}  // namespace

Result<Client> connect_any(TransportContext& context, const std::vector<std::string>& addresses) {
  std::string reasons;
  for (const std::string& address : addresses) {
    Result<Client> client = Client::connect(context, address);
    const Result<void> answers = [&]() -> Result<void> {
      if (!client) return client.error();
      RETURN_IF_ERROR(client->status());
      return {};
    }();
    if (answers) return client;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", address, answers.error().message);
  }
  return Error{Errc::kUnavailable, reasons.empty() ? "the coordinator has no address yet" : reasons};
}

std::vector<PlannedProcess> missing_workers(const ProcessPlan& plan, const Status& status) {
  std::vector<PlannedProcess> missing;
  std::ranges::copy_if(plan.processes, std::back_inserter(missing), [&](const PlannedProcess& process) {
    if (process.role == "coordinator" || process.role == "shard") return false;
    return std::ranges::none_of(status.workers, [&](const WorkerStatus& worker) {
      return worker.name == process.name || worker.name.ends_with("/" + process.name);  // KEY/NAME
    });
  });
  return missing;
}

std::string workers_text(std::ptrdiff_t verifiers, std::ptrdiff_t drafters) {
  return counted(verifiers, "verifier") + " and " + counted(drafters, "drafter");
}

Result<void> prove_verifiers(TransportContext& context, const std::vector<std::string>& addresses) {
  std::vector<Client> holding;  // each keeps one sequence open
  while (true) {
    ASSIGN_OR_RETURN(Client client, connect_any(context, addresses));
    ASSIGN_OR_RETURN(const TokenId token, client.prefill({kBeginOfText}));
    (void)token;
    holding.push_back(std::move(client));
    ASSIGN_OR_RETURN(const Status status, holding.back().status());
    const auto idle = std::ranges::find_if(status.workers, [](const WorkerStatus& worker) {
      return worker.role == Role::kVerifier && !worker.draining && worker.sessions == 0;
    });
    if (idle == status.workers.end()) return {};
    if (static_cast<int>(holding.size()) >= kSequencesMax * std::max(status.verifiers, 1))
      return Error(Errc::kUnavailable, "{}: none of {} texts was given to it", idle->name, holding.size());
  }
}

}  // namespace outrider
