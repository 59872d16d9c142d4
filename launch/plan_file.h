#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "launch/cluster/facts.h"
#include "launch/cluster/launcher.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// Returns this program's build.
Build this_build();

/// A plan as read by a command, with its processes.
struct PlanFile {
  nlohmann::json object;  ///< as read, without results of an earlier run
  Plan plan;
  ProcessPlan processes;

  /// @param hosts  a file that replaces the plan's hosts, unless empty @throws std::runtime_error with a one-line
  /// message
  static PlanFile read(const std::filesystem::path& plan, const std::filesystem::path& hosts,
                       const std::string& backend);

  /// The same for a plan that has been read. @param name  in messages
  static PlanFile of(nlohmann::json object, const std::string& name, const std::string& backend);

  /// Sets the launch options that follow from plan and backend.
  void set(LaunchOptions& options, const std::string& backend) const;
};

/// Returns PLAN.TIME.X, unique by its random X.
std::filesystem::path default_run_dir(const std::filesystem::path& plan);

}  // namespace outrider
