#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "launch/cluster/facts.h"
#include "launch/cluster/launcher.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// It describes this program.
Build this_build();

/// A plan as a command reads it, and its processes.
struct PlanFile {
  nlohmann::json object;  ///< as it was read, without what it says of an earlier run
  Plan plan;
  ProcessPlan processes;

  /// @param hosts  a file in place of the plan's hosts, unless empty
  /// @throws std::runtime_error, the one line that a person needs
  static PlanFile read(const std::filesystem::path& plan, const std::filesystem::path& hosts,
                       const std::string& backend);

  /// The same of a plan that has been read. @param name  of it, in messages
  static PlanFile of(nlohmann::json object, const std::string& name, const std::string& backend);

  /// Sets what of a launch follows from plan and backend.
  void set(LaunchOptions& options, const std::string& backend) const;
};

/// PLAN.TIME.X, which no other launch has: X is drawn.
std::filesystem::path default_run_dir(const std::filesystem::path& plan);

}  // namespace outrider
