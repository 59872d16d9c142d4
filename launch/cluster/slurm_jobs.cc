#include "launch/cluster/slurm_jobs.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/base/time.h"
#include "common/os/child.h"

namespace outrider {
namespace {

constexpr int kSlurmSeconds = 60;

/// Returns the jobs that are queued or running.
std::vector<std::string> alive(const std::vector<std::string>& jobs) {
  std::vector<std::vector<std::string>> commands;
  for (const std::string& job : jobs) commands.push_back(slurm_alive_command(job));
  const std::vector<Captured> answers = run_all(commands, kSlurmSeconds);
  std::vector<std::string> result;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (answers[i].status == 0) result.push_back(jobs[i]);
  }
  return result;
}

}  // namespace

Result<std::string> ask_slurm_of_this_job(const std::string& format) {
  const char* const id = std::getenv("SLURM_JOB_ID");
  const std::string job = id == nullptr ? "" : id;
  if (job.empty() || job.find_first_not_of("0123456789_") != job.npos)
    return Error(Errc::kUnavailable, "SLURM_JOB_ID is '{}', wanted a job's number", job);
  Captured answer = run_all({{"squeue", "-h", "-j", job, "-o", format}}, kSlurmSeconds).front();
  answer.out.erase(std::min(answer.out.find_first_of(" \n"), answer.out.size()));
  if (answer.status != 0 || answer.out.empty()) return Error(Errc::kUnavailable, "squeue says nothing of job {}", job);
  return std::move(answer.out);
}

nlohmann::ordered_json slurm_context() {
  nlohmann::ordered_json context;
  for (const auto& [key, variable] : {std::pair("job_id", "SLURM_JOB_ID"),
                                      {"cluster", "SLURM_CLUSTER_NAME"},
                                      {"partition", "SLURM_JOB_PARTITION"},
                                      {"nodes", "SLURM_JOB_NODELIST"},
                                      {"drafter_nodes", "SLURM_JOB_NODELIST_HET_GROUP_1"},
                                      {"restarts", "SLURM_RESTART_COUNT"}}) {
    if (const char* const value = std::getenv(variable)) context[key] = value;
  }
  if (!context.contains("job_id")) return nullptr;
  if (const Result<std::string> limit = ask_slurm_of_this_job("%l")) context["time_limit"] = *limit;
  return context;
}

std::vector<std::string> slurm_alive_command(const std::string& job) {
  return {"sh", "-c", fmt::format("[ -n \"$(squeue --noheader --jobs={} 2>/dev/null)\" ]", job)};
}

Result<void> submit_to_slurm(const std::vector<RenderedFile>& scripts, const RunFolder& folder) {
  for (const RenderedFile& script : scripts) {
    const Captured answer =
        run_all({{"sbatch", "--parsable", (folder.path() / script.name).string()}}, kSlurmSeconds).front();
    if (answer.status != 0)
      return Error(Errc::kIo, "sbatch {}: {}", script.name, answer.out.substr(0, answer.out.find('\n')));
    LedgerEntry entry{.name = script.name, .where = "slurm", .host = {}, .process = {}, .job = {}};
    entry.job = answer.out.substr(0, answer.out.find_first_of(";\n"));  // "12" or "12;cluster"
    RETURN_IF_ERROR(folder.append(entry));
  }
  return {};
}

void end_slurm_jobs(const std::vector<std::string>& jobs, int grace_seconds) {
  std::vector<std::string> rest = alive(jobs);
  std::vector<std::vector<std::string>> commands;
  // A queued job has no script to ask; --batch reaches the script of a running one.
  for (const std::string& job : rest) {
    commands.push_back({"scancel", "--state=PENDING", job});
    commands.push_back({"scancel", "--batch", "--signal=USR1", job});
  }
  run_all(commands, kSlurmSeconds);
  const TimePoint deadline = now() + std::chrono::seconds(grace_seconds);
  while (!(rest = alive(rest)).empty() && now() < deadline) std::this_thread::sleep_for(std::chrono::seconds(1));
  commands.clear();
  for (const std::string& job : rest) commands.push_back({"scancel", job});
  run_all(commands, kSlurmSeconds);
}

}  // namespace outrider
