#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// This program's build.
struct Build {
  std::string version, commit;
};

/// Identifies this program: a hash of its file.
std::string build_id();
/// Returns the name in /proc/cpuinfo.
std::string cpu_model();

/// Returns this host's facts that affect answers or speed: program, CPU, instruction set, libraries, fingerprints of
/// models' weights. A model that cannot be opened has its error instead. @param dtype  of models that are not packs
nlohmann::ordered_json host_facts(const Build& build, const std::vector<std::string>& models, const std::string& dtype);

/// Returns the command that prints a host's facts, for the models of its processes.
std::vector<std::string> facts_command(const std::string& program, const std::string& dtype,
                                       const ProcessPlan& processes, const Host& host);
/// Returns a command for hosts that cannot run facts_command(): prints the machine types of the host and the program.
std::vector<std::string> machine_command(const std::string& program);
/// @return a message if the two types differ; none: they are equal or unknown
std::optional<std::string> wrong_architecture(std::string_view output, const std::string& program);

/// @return kMalformed unless it is output of facts_command()
Result<nlohmann::json> facts_in(std::string_view output, const std::string& host);

/// Returns lock.json: the plan with its hosts' facts, and the Slurm job of this process. @param facts  by host
nlohmann::ordered_json lock_of(const nlohmann::json& plan, const Build& build, const char* backend,
                               const nlohmann::ordered_json& facts);

/// Lists the differences of two JSON objects, a line each: "/lock/hosts/node1/isa: \"avx2\" | \"avx512\"".
std::vector<std::string> differences(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace outrider
