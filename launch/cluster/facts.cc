#include "launch/cluster/facts.h"

#include <elf.h>
#include <omp.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <climits>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/base/random.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/linear.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/weights.h"
#include "common/os/files.h"
#include "common/pair/pair_files.h"
#include "launch/cluster/slurm_jobs.h"
#include "launch/suitable_type.h"

namespace outrider {
namespace {
using nlohmann::json;

/// Returns the output of `uname -m`.
std::string machine() {
  utsname names{};
  uname(&names);
  return names.machine;
}

/// Returns `uname -m` of machines for programs with this number in their ELF header; or the number.
std::string machine_of(int elf_machine) {
  switch (elf_machine) {
    case EM_X86_64: return "x86_64";
    case EM_AARCH64: return "aarch64";
    case EM_RISCV: return "riscv64";
    case EM_PPC64: return "ppc64le";
    case EM_S390: return "s390x";
    default: return fmt::format("machine {} of ELF", elf_machine);
  }
}

Result<std::string> fingerprint(const std::string& model, const std::string& dtype) {
  PairPaths pair;
  ASSIGN_OR_RETURN(pair, pair_paths(model));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(pair.backbone));
  WeightType type;
  if (dtype.empty() || is_pack(pair.backbone)) {
    ASSIGN_OR_RETURN(const SuitableType chosen, suitable_type(pair, std::nullopt));
    type = chosen.type;
  } else {
    ASSIGN_OR_RETURN(type, parse_weight_type(dtype));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const WeightSource> weights, open_weights(files, type));
  return fmt::format("{:016x} {}", weights->fingerprint(), to_string(type));
}

}  // namespace

std::string build_id() {
  const Result<MappedFile> program = MappedFile::open("/proc/self/exe");
  if (!program) return "";
  return fmt::format("{:016x}", fnv1a(program->bytes()));
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  const auto value = [](const std::string& line) { return line.substr(line.find(':') + 2); };
  std::string implementer;  // numbers on aarch64: designer and design
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return value(line);
    if (line.starts_with("CPU implementer")) implementer = value(line);
    if (line.starts_with("CPU part")) return fmt::format("implementer {}, part {}", implementer, value(line));
  }
  return "";
}

nlohmann::ordered_json host_facts(const Build& build, const std::vector<std::string>& models,
                                  const std::string& dtype) {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof name);
  const Gemm chosen = active_gemm();
  const char* const gemm = chosen == Gemm::kOwn ? "own" : chosen == Gemm::kOnednn ? "onednn" : "default";
  nlohmann::ordered_json facts = {{"hostname", name},
                                  {"version", build.version},
                                  {"commit", build.commit},
                                  {"build_id", build_id()},
                                  {"machine", machine()},
                                  {"cpu", cpu_model()},
                                  {"isa", to_string(detect_isa())},
                                  {"isa_in_use", to_string(active_isa())},
                                  {"gemm", gemm},
                                  {"onednn", onednn_version()},
                                  {"cores", omp_get_num_procs()}};
  for (const std::string& model : models) {
    const Result<std::string> found = no_throw([&] { return fingerprint(model, dtype); });
    facts["models"][model] = found ? *found : "error: " + found.error().message;
  }
  return facts;
}

std::vector<std::string> facts_command(const std::string& program, const std::string& dtype,
                                       const ProcessPlan& processes, const Host& host) {
  std::vector<std::string> words = {program, "launch", "facts"};
  if (!dtype.empty()) words.insert(words.end(), {"--dtype", dtype});
  std::set<std::string> models;
  for (const PlannedProcess& process : processes.processes) {
    if (process.host.name == host.name && process.role != "coordinator") models.insert(process.model);
  }
  words.insert(words.end(), models.begin(), models.end());
  return words;
}

std::vector<std::string> machine_command(const std::string& program) {
  return {"sh", "-c",
          "echo \"machine $(uname -m) $(od -An -tu2 -j18 -N2 \"$(command -v \"$1\")\")\"",  // e_machine
          "machine", program};
}

std::optional<std::string> wrong_architecture(std::string_view output, const std::string& program) {
  const std::size_t begin = output.rfind("machine ");  // a login shell may print something before
  std::istringstream words(std::string(begin == output.npos ? "" : output.substr(begin)));
  std::string word, host;
  int elf_machine = 0;
  if (!(words >> word >> host >> elf_machine) || machine_of(elf_machine) == host) return std::nullopt;
  return fmt::format("wrong architecture: the host is {}, {} is for {}", host, program, machine_of(elf_machine));
}

Result<json> facts_in(std::string_view output, const std::string& host) {
  const std::size_t begin = output.find('{');  // a login shell may print something before
  return parse_json_object(begin == output.npos ? "" : output.substr(begin), host);
}

nlohmann::ordered_json lock_of(const json& plan, const Build& build, const char* backend,
                               const nlohmann::ordered_json& facts) {
  nlohmann::ordered_json lock = plan;
  lock["lock"] = {{"version", build.version}, {"commit", build.commit}, {"backend", backend}, {"hosts", facts}};
  if (const nlohmann::ordered_json context = slurm_context(); !context.is_null()) lock["lock"]["slurm"] = context;
  return lock;
}

std::vector<std::string> differences(const json& a, const json& b) {
  const json flat_a = a.flatten(), flat_b = b.flatten();
  std::set<std::string> keys;
  for (const json& side : {flat_a, flat_b}) {
    for (const auto& [key, value] : side.items()) keys.insert(key);
  }
  std::vector<std::string> lines;
  for (const std::string& key : keys) {
    const json &left = member(flat_a, key.c_str()), &right = member(flat_b, key.c_str());
    if (left != right) lines.push_back(fmt::format("{}: {} | {}", key, to_text(left), to_text(right)));
  }
  return lines;
}

}  // namespace outrider
