#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// It describes this program.
struct Build {
  std::string version, commit;
};

/// Which program this is: a hash of its file.
std::string build_id();
/// It is the name in /proc/cpuinfo.
std::string cpu_model();

/// It describes this host as far as texts or speed depend on it: program, CPU, instruction set, libraries, the weights'
/// fingerprints of models. A model that cannot be opened has its error instead.
/// @param dtype  of models that are no packs
nlohmann::ordered_json host_facts(const Build& build, const std::vector<std::string>& models, const std::string& dtype);

/// The command that prints the facts of a host, with the models of its processes.
std::vector<std::string> facts_command(const std::string& program, const std::string& dtype,
                                       const ProcessPlan& processes, const Host& host);
/// A command for where that one cannot be run: prints what the host is, and for what machine the program is.
std::vector<std::string> machine_command(const std::string& program);
/// @return what to tell of its output where the two differ; none: they do not, or it is not known.
std::optional<std::string> wrong_architecture(std::string_view output, const std::string& program);

/// @return kMalformed for what is no output of facts_command().
Result<nlohmann::json> facts_in(std::string_view output, const std::string& host);

/// lock.json: the plan with what its hosts are, and the Slurm job that this process is in.
/// @param facts  by host
nlohmann::ordered_json lock_of(const nlohmann::json& plan, const Build& build, const char* backend,
                               const nlohmann::ordered_json& facts);

/// It lists the differences of two JSON objects, a line each: "/lock/hosts/node1/isa: \"avx2\" | \"avx512\"".
std::vector<std::string> differences(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace outrider
