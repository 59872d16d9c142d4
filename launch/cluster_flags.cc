#include "launch/cluster_flags.h"

#include <sys/resource.h>

#include "common/base/text.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/team.h"

namespace outrider {

void add_security_options(Command& command, Security& security, bool listens) {
  for (const char* name : {"--listen", "--join", "--connect", "--drafts-for"}) {
    if (Option* const option = command.get_option_no_throw(name))
      option->check([](const std::string& address) {
        return address.starts_with("inproc://")
                   ? fmt::format("{} is an address within one process, wanted {}", address, kAddressForm)
                   : std::string();
      });
  }
  add_node_options(command, security, named({"--key", listens ? "--authorized" : "--coordinator-key", "--insecure"}));
}

void ClusterFlags::add_to(Command& command) {
  const HelpGroup group(command, "Cluster");
  auto* elsewhere = command.add_option(
      "--connect", connect,
      "Use the coordinator at tcp://HOST:PORT; of several separated by commas, the first that answers");
  add_security_options(command, security, /*listens=*/false);
  add_number(command, "--failover-wait", cluster.coordinator.failover_wait_s, 0, 86'400,
             "Seconds that an answer waits for a coordinator after its own is lost");
  for (const char* option : {"--key", "--coordinator-key", "--insecure", "--failover-wait"})
    command.get_option(option)->needs(elsewhere);
  const auto of_cluster = [&](const char* name, const OptionInfo& info) {
    // An option that every worker has is declared once, for both.
    const bool is_new = info.of_cluster && command.get_option_no_throw(name) == nullptr;
    if (is_new) chosen_there.push_back(name);
    return is_new;
  };
  add_node_options(command, cluster.verifier, of_cluster);
  add_node_options(command, cluster.drafter, of_cluster);
  add_node_options(command, cluster.coordinator, of_cluster);
  command.add_flag("--processes", cluster.processes,
                   "Start coordinator, verifier and drafter as separate processes, connected over TCP");
  for (const std::string& option : chosen_there) elsewhere->excludes(command.get_option(option));
}

ClusterOptions ClusterFlags::options(const ModelFlags& model, const PairPaths& pair, bool drafts_wanted) const {
  ClusterOptions options = cluster;
  options.pair = pair;
  options.drafter.worker.verify_weights = options.verifier.worker.verify_weights;
  if (!connect.empty()) {
    options.drafters = 0;
    return options;
  }
  options.load_as(model.type_to_load(pair), /*chosen=*/!model.dtype.empty());
  const bool assistant = options.drafter.draft_model.empty();
  options.drafters = assistant ? model.wants_drafter(pair, drafts_wanted) : drafts_wanted;
  return options;
}

std::string answering_text(const ModelFlags& model, const PairPaths& pair, const ClusterFlags& cluster,
                           const ClusterOptions& options, const DraftLengthFlag& drafts) {
  const bool is_demo = model.model.empty() && model.backbone.empty();  // the user named no model
  const std::string name = served_name(pair.backbone) + (is_demo ? " (a demo model)" : "");
  if (!cluster.connect.empty()) return fmt::format("{} at {}, drafts: {}", name, cluster.connect, drafts.text);
  const int threads = options.verifier.threads > 0 ? options.verifier.threads : team_size();
  return fmt::format("{}, {}, {}, {}, drafts: {}", name, to_string(options.weight_type), to_string(active_isa()),
                     counted(threads, "thread"), options.drafters > 0 ? drafts.text : "none");
}

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 16384));
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace outrider
