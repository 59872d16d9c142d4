#include "launch/plan_file.h"

#include <cstdlib>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "launch/cluster/host_set.h"
#include "launch/command_line.h"
#include "launch/commit.h"

namespace outrider {
namespace fs = std::filesystem;

Build this_build() { return {OUTRIDER_VERSION, kBuildCommit}; }

PlanFile PlanFile::read(const fs::path& plan, const fs::path& hosts, const std::string& backend) {
  nlohmann::json object = or_throw(parse_json_object(or_throw(read_text(plan)), plan.string()));
  if (!hosts.empty()) {
    const bool from_environment = hosts == "env";
    const std::string text = or_throw(from_environment ? host_file_of_environment(std::getenv) : read_text(hosts));
    or_throw(place_on_hosts(object, text, hosts.string()));
  }
  return of(std::move(object), plan.string(), backend);
}

PlanFile PlanFile::of(nlohmann::json object, const std::string& name, const std::string& backend) {
  PlanFile result{.object = std::move(object), .plan = {}, .processes = {}};
  result.object.erase("lock");
  result.plan = or_throw(read_plan(result.object, name));
  result.processes = or_throw(plan_processes(result.plan, /*one_host=*/backend == "local"));
  return result;
}

void PlanFile::set(LaunchOptions& options, const std::string& backend) const {
  options.backend = backend_named(backend).value_or(Backend::kLocal);
  // The program's path on the hosts: over ssh the one in the PATH.
  options.program = !plan.program.empty() ? plan.program
                    : backend == "ssh"    ? "outrider"
                                          : fs::read_symlink("/proc/self/exe").string();
  options.build = this_build();
  options.dtype = plan.dtype;
}

fs::path default_run_dir(const fs::path& plan) {
  // Unique, since a loop, or another terminal or container, may launch one plan twice in a second.
  return fmt::format("{}.{:%Y%m%d-%H%M%S}.{}", plan.stem().string(), fmt::localtime(std::time(nullptr)), unused_name());
}

}  // namespace outrider
