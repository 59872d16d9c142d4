#include "launch/cluster/kubernetes.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/text.h"
#include "common/hub/hub.h"
#include "common/os/files.h"
#include "common/pair/pair_files.h"

namespace outrider {

// Files of launch/kubernetes and its base.
std::string_view kustomization_yaml(), coordinator_yaml(), verifier_yaml(), drafter_yaml(), serve_yaml(),
    network_policy_yaml(), shards_yaml(), shard_policy_yaml();

namespace {

constexpr const char *kService = "tcp://outrider-coordinator:7070", *kImageModel = "/usr/share/outrider/models/nano";
constexpr const char* kPod = "/spec/template/spec";

/// Quotes any text for YAML.
std::string in_quotes(const std::string& text) { return nlohmann::json(text).dump(); }

/// Escapes a part of an argument or of a variable's value: the kubelet replaces $(NAME) by a variable, and $$ by a $.
std::string in_pod(const std::string& text) { return replaced(text, "$", "$$"); }

/// A Kubernetes Job with consecutive commands, whose words are escaped by in_pod().
struct KubernetesJob {
  std::string about, name, image;
  std::string ns = {};  ///< empty: set by Kustomize
  std::vector<std::vector<std::string>> commands = {};
  std::map<std::string, std::string> environment = {};
  bool dials = true;        ///< it is a client: has the client's keys and the ConfigMap's model as $(MODEL)
  std::int64_t shards = 0;  ///< completions of an Indexed Job; 0: not indexed
  int tries = 20;           ///< retries, per shard: each pod that was taken away counts
  std::string cpu = "1", memory = "2Gi";
  std::string claim = {};  ///< mounted at /packs; empty: none
  std::string queue = {};  ///< of Kueue; empty: none

  std::string manifest() const;
};

std::string container_of(const KubernetesJob& job, std::size_t number) {
  const std::vector<std::string>& words = job.commands[number];
  const bool ours = words.front() == "outrider";
  std::string text = fmt::format("        - name: run-{}\n          image: {}\n          {}:\n", number, job.image,
                                 ours ? "args" : "command");
  for (std::size_t i = ours ? 1 : 0; i < words.size(); ++i)
    text += fmt::format("            - {}\n", in_quotes(words[i]));
  if (job.dials || !job.environment.empty()) text += "          env:\n";
  for (const auto& [name, value] : job.environment)
    text += fmt::format("            - name: {}\n              value: {}\n", in_quotes(name), in_quotes(in_pod(value)));
  if (job.dials)
    text +=
        "            - name: MODEL\n              valueFrom:\n                configMapKeyRef:\n"
        "                  name: outrider-model\n                  key: client\n";
  text += "          resources:\n";
  for (const char* side : {"requests", "limits"})
    text += fmt::format("            {}:\n              cpu: {}\n              memory: {}\n", side, in_quotes(job.cpu),
                        in_quotes(job.memory));
  text +=
      "          securityContext:\n            allowPrivilegeEscalation: false\n"
      "            readOnlyRootFilesystem: true\n            capabilities:\n              drop: [ALL]\n";
  if (job.dials || !job.claim.empty()) text += "          volumeMounts:\n";
  if (job.dials) text += "            - name: keys\n              mountPath: /keys\n              readOnly: true\n";
  if (!job.claim.empty()) text += "            - name: packs\n              mountPath: /packs\n";
  return text;
}

std::string KubernetesJob::manifest() const {
  std::string text = fmt::format(
      "# {}\napiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {}\n{}  labels:\n"
      "    app.kubernetes.io/component: run\n{}spec:\n",
      about, name, ns.empty() ? "" : fmt::format("  namespace: {}\n", in_quotes(ns)),
      queue.empty() ? "" : fmt::format("    kueue.x-k8s.io/queue-name: {}\n", in_quotes(queue)));
  if (shards > 0) text += fmt::format("  completionMode: Indexed\n  completions: {0}\n  parallelism: {0}\n", shards);
  text += fmt::format("  backoffLimit: {}\n", tries * std::max<std::int64_t>(shards, 1));
  text +=
      "  template:\n    metadata:\n      labels:\n"
      "        app.kubernetes.io/name: outrider\n        app.kubernetes.io/component: run\n";
  if (dials) text += "        outrider/dials: coordinator\n";
  text +=
      "    spec:\n      restartPolicy: OnFailure\n      automountServiceAccountToken: false\n"
      "      terminationGracePeriodSeconds: 60\n"
      "      securityContext:\n        runAsNonRoot: true\n        runAsUser: 10001\n        runAsGroup: 10001\n"
      "        fsGroup: 10001\n        seccompProfile:\n          type: RuntimeDefault\n";
  if (commands.size() > 1) text += "      initContainers:\n";
  for (std::size_t i = 0; i < commands.size(); ++i) {
    if (i + 1 == commands.size()) text += "      containers:\n";
    text += container_of(*this, i);
  }
  if (dials || !claim.empty()) text += "      volumes:\n";
  if (dials)
    text +=
        "        - name: keys\n          secret:\n            secretName: outrider-client-keys\n"
        "            defaultMode: 0400\n";
  if (!claim.empty())
    text += fmt::format("        - name: packs\n          persistentVolumeClaim:\n            claimName: {}\n",
                        in_quotes(claim));
  return text;
}

Error no_manifest(const std::string& why) { return {Errc::kInvalidArgument, "kubernetes: " + why}; }

std::string namespace_of(const Plan& plan) { return plan.kubernetes.ns.empty() ? "outrider" : plan.kubernetes.ns; }

std::string image_of(const Plan& plan, const std::string& version) {
  return plan.kubernetes.image.empty() ? "outrider:" + version : plan.kubernetes.image;
}

RenderedFile namespace_file(const Plan& plan) {
  return {"kubernetes/namespace.yaml", fmt::format("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {}\n  labels:\n"
                                                   "    pod-security.kubernetes.io/enforce: restricted\n",
                                                   in_quotes(namespace_of(plan)))};
}

/// Joins options with their values: --threads=8.
std::vector<std::string> joined(const std::vector<std::string>& options) {
  std::vector<std::string> words;
  for (const std::string& word : options) {
    if (word.starts_with("--") || words.empty())
      words.push_back(word);
    else
      words.back() += "=" + word;
  }
  return words;
}

/// CPUs and memory; empty: those of the base.
struct PodSize {
  std::string cpu, memory;
};

/// Returns what a verifier needs by the files of its model: in memory them and a GiB, and more than one CPU if they are
/// large. This machine may lack the files, whose size is then unknown.
PodSize size_for(const std::string& model) {
  namespace fs = std::filesystem;
  constexpr std::uintmax_t kGiB = std::uintmax_t{1} << 30;
  std::error_code error;
  if (!model.empty() && !fs::exists(model, error)) return {};
  const Result<PairPaths> pair = pair_paths(model);
  if (!pair) return {};
  const std::uintmax_t bytes = bytes_on_disk(pair->backbone);
  return {bytes < kGiB ? "1" : "", fmt::format("{}Gi", 1 + (bytes + kGiB - 1) / kGiB)};
}

/// Removes an option. @return its value; empty: it was not there
std::string take(std::vector<std::string>& words, const std::string& option) {
  const auto found =
      std::ranges::find_if(words, [&](const std::string& word) { return word.starts_with(option + "="); });
  if (found == words.end()) return "";
  const std::string value = found->substr(option.size() + 1);
  words.erase(found);
  return value;
}

/// The same for an option whose value may be the next word.
std::string take_either(std::vector<std::string>& words, const std::string& option) {
  const auto found = std::ranges::find(words, option);
  if (found == words.end() || found + 1 == words.end()) return take(words, option);
  const std::string value = *(found + 1);
  words.erase(found, found + 2);
  return value;
}

/// Operations of a JSON patch (RFC 6902) on a workload.
class Patch {
 public:
  Patch(std::string kind, std::string name) : kind_(std::move(kind)), name_(std::move(name)) {}

  const std::string& kind() const { return kind_; }

  void operation(const char* op, const std::string& path, const std::string& value) {
    text_ += fmt::format("      - op: {}\n        path: {}\n        value: {}\n", op, path, value);
  }
  void remove(const std::string& path) { text_ += fmt::format("      - op: remove\n        path: {}\n", path); }
  void argument(const std::string& word) {
    operation("add", fmt::format("{}/containers/0/args/-", kPod), in_quotes(in_pod(word)));
  }
  void resource(const char* what, const std::string& amount) {
    for (const char* side : {"requests", "limits"})
      operation("replace", fmt::format("{}/containers/0/resources/{}/{}", kPod, side, what), in_quotes(amount));
  }
  std::string text() const {
    if (text_.empty()) return "";
    return fmt::format("  - target:\n      kind: {}\n      name: {}\n    patch: |\n{}", kind_, name_, text_);
  }

 private:
  const std::string kind_, name_;
  std::string text_;
};

Result<void> check_role(const RolePlan& role, const std::string& key) {
  if (!role.cpuset.empty()) return no_manifest(key + ".cpuset: the kubelet gives pods their CPUs");
  if (!role.deadline.empty())
    return no_manifest(key + ".deadline: a Deployment would start the pod again; wanted none");
  return {};
}

template <class Group>
Result<void> check_groups(const std::vector<Group>& groups, const char* key) {
  if (groups.size() > 1)
    return no_manifest(
        fmt::format("{} groups of {}, wanted one: the base has one workload for them", groups.size(), key));
  for (const Group& group : groups) RETURN_IF_ERROR(check_role(group, fmt::format("{}[0]", key)));
  return {};
}

/// Refuses names of the hub: pods have no folder for a download.
Result<void> check_models(const Plan& plan) {
  std::vector<std::string> models = {plan.model};
  for (const VerifierPlan& group : plan.verifiers)
    models.insert(models.end(), {group.model, group.backbone, group.assistant});
  for (const DrafterPlan& group : plan.drafters) {
    models.insert(models.end(), {group.model, group.backbone, group.assistant});
    for (const std::string& option : joined(group.options)) models.push_back(option.substr(option.find('=') + 1));
  }
  for (const std::string& model : models) {
    if (hub_name(model))
      return no_manifest(fmt::format("a model is {}, and pods have no folder for a download; wanted a path, such as of "
                                     "a pack under /packs", model));
  }
  return {};
}

class Overlay {
 public:
  Overlay(const Plan& plan, const ProcessPlan& processes, std::string version)
      : plan_(plan), processes_(processes), version_(std::move(version)) {}

  Result<void> check() const;
  std::string kustomization() const;
  std::string job() const;
  /// Returns the shards of verifiers on hosts of their own; empty: there are none.
  std::string shards() const;

 private:
  std::string model_of(const std::string& groups) const {
    const std::string& model = groups.empty() ? plan_.model : groups;
    return model.empty() ? kImageModel : model;
  }
  /// Returns the model of drafters, front ends and commands.
  std::string client_model() const { return model_of(plan_.drafters.empty() ? "" : plan_.drafters[0].model); }
  /// Returns the hosts of a role's processes, or of one verifier's shards.
  std::vector<Host> hosts_of(const std::string& role, const std::string& name = "") const;
  void add_role(Patch& patch, const RolePlan& role, const std::vector<Host>& nodes, bool has_environment) const;
  template <class Group>
  void add_worker(Patch& patch, const Group& group, const std::vector<Host>& hosts, bool placed, PodSize size) const;
  template <class Group>
  std::string worker(const Group& group, const char* role, const char* kind, const PodSize& size) const;
  std::string volume(const char* name) const;
  bool shards_elsewhere() const { return !plan_.verifiers.front().shard_hosts.empty(); }
  std::string shard_patches() const;

  const Plan& plan_;
  const ProcessPlan& processes_;
  const std::string version_;
};

Result<void> Overlay::check() const {
  if (!plan_.coordinator.listen.empty())
    return no_manifest(fmt::format("coordinator.listen is {}: the Service has port 7070", plan_.coordinator.listen));
  RETURN_IF_ERROR(check_models(plan_));
  RETURN_IF_ERROR(check_role(plan_.coordinator, "coordinator"));
  RETURN_IF_ERROR(check_groups(plan_.verifiers, "verifiers"));
  RETURN_IF_ERROR(check_groups(plan_.drafters, "drafters"));
  if (client_model().starts_with("/packs/") && plan_.kubernetes.claim.empty())
    return no_manifest(fmt::format("{}model is {}, and drafters and front ends have no volume there; wanted "
                                   "kubernetes.claim",
                                   client_model() == plan_.model ? "" : "drafters[0].", client_model()));
  if (!plan_.encoders.empty()) return no_manifest("encoders: the base has no workload for them");
  for (const RunPlan& run : plan_.run) {
    for (const std::string& word : run.command) {
      if (word.find("{run_dir}") != word.npos)
        return no_manifest("run: {run_dir} is on this machine, and pods do not see it");
    }
  }
  return {};
}

std::vector<Host> Overlay::hosts_of(const std::string& role, const std::string& name) const {
  std::vector<Host> hosts;
  for (const PlannedProcess& process : processes_.processes) {
    const bool there = std::ranges::find(hosts, process.host.name, &Host::name) != hosts.end();
    if (process.role == role && process.name.starts_with(name) && !there) hosts.push_back(process.host);
  }
  return hosts;
}

/// Adds the keys common to all roles. @param nodes  empty: any
void Overlay::add_role(Patch& patch, const RolePlan& role, const std::vector<Host>& nodes, bool has_environment) const {
  std::vector<std::string> entries;
  for (const auto& [key, value] : role.environment)
    entries.push_back(fmt::format("{{name: {}, value: {}}}", in_quotes(key), in_quotes(in_pod(value))));
  const std::string path = fmt::format("{}/containers/0/env", kPod);
  if (!has_environment && !entries.empty()) patch.operation("add", path, fmt::format("[{}]", fmt::join(entries, ", ")));
  for (const std::string& entry : entries) {
    if (has_environment) patch.operation("add", path + "/-", entry);
  }
  if (nodes.empty()) return;
  std::vector<std::string> names;
  for (const Host& node : nodes) names.push_back(in_quotes(node.name));
  patch.operation(
      "add", fmt::format("{}/affinity", kPod),
      fmt::format("{{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: "
                  "[{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{}]}}]}}]}}}}}}",
                  fmt::join(names, ", ")));
}

/// Adds what the pods of a group have in common, shards' included. @param placed  on these hosts alone
template <class Group>
void Overlay::add_worker(Patch& patch, const Group& group, const std::vector<Host>& hosts, bool placed,
                         PodSize size) const {
  std::vector<std::string> options = joined(group.options);
  std::string threads = take(options, "--threads");
  if ((threads.empty() || threads == "0") && hosts.front().cpus > 0) threads = std::to_string(hosts.front().cpus);
  if (!threads.empty() && threads != "0") size.cpu = threads;
  if (!group.backbone.empty()) patch.argument("--backbone=" + group.backbone);
  if (!size.cpu.empty()) patch.resource("cpu", size.cpu);
  if (!size.memory.empty()) patch.resource("memory", size.memory);
  // A model inside the image needs no volume.
  if (patch.kind() == "StatefulSet" && !model_of(group.model).starts_with("/packs/")) {
    patch.remove("/spec/volumeClaimTemplates");
    patch.operation("add", fmt::format("{}/volumes/-", kPod), "{name: packs, emptyDir: {}}");
  }
  add_role(patch, group, placed ? hosts : std::vector<Host>(), /*has_environment=*/true);
}

template <class Group>
std::string Overlay::worker(const Group& group, const char* role, const char* kind, const PodSize& size) const {
  Patch patch(kind, fmt::format("outrider-{}", role));
  std::vector<std::string> options = joined(group.options);
  take(options, "--threads");
  const std::string dtype = group.dtype.empty() ? plan_.dtype : group.dtype;
  if (!group.assistant.empty()) patch.argument("--assistant=" + group.assistant);
  if (!dtype.empty()) patch.argument("--dtype=" + dtype);
  for (const std::string& option : options) patch.argument(option);
  if (role == std::string("verifier") && shards_elsewhere()) {
    patch.argument("--listen-shards=tcp://0.0.0.0:7071");
    patch.argument("--authorized=/keys/authorized_keys");
  }
  add_worker(patch, group, hosts_of(role), !group.hosts.empty(), size);
  return patch.text();
}

/// Returns the size of a verifier, and of each shard of it: the plan's, or by its model.
PodSize verifier_size(const Plan& plan) {
  const VerifierPlan& group = plan.verifiers.front();
  PodSize size = size_for(group.model.empty() ? plan.model : group.model);
  if (!(group.dtype.empty() ? plan.dtype : group.dtype).empty()) size.memory.clear();  // not that of the files
  if (!plan.kubernetes.verifier_memory.empty()) size.memory = plan.kubernetes.verifier_memory;
  return size;
}

std::string Overlay::shards() const {
  if (!shards_elsewhere()) return "";
  std::string text(shard_policy_yaml());
  const int verifiers = processes_.count("verifier");
  const std::string shards = replaced(shards_yaml(), "SHARDS", std::to_string(processes_.count("shard") / verifiers));
  for (int i = 0; i < verifiers; ++i) text += "---\n" + replaced(shards, "VERIFIER", std::to_string(i));
  return text;
}

std::string Overlay::shard_patches() const {
  if (!shards_elsewhere()) return "";
  const VerifierPlan& group = plan_.verifiers.front();
  std::string text;
  for (int i = 0; i < processes_.count("verifier"); ++i) {
    Patch patch("StatefulSet", fmt::format("outrider-shard-{}", i));
    add_worker(patch, group, hosts_of("shard", fmt::format("verifier.{}.", i)), /*placed=*/true, verifier_size(plan_));
    text += patch.text();
  }
  // Shards dial a verifier by name while it waits for them, and then it is not ready.
  Patch service("Service", "outrider-verifier");
  service.operation("add", "/spec/publishNotReadyAddresses", "true");
  // A verifier is away while one of its shards is.
  Patch budget("PodDisruptionBudget", "outrider-verifier");
  budget.operation("replace", "/spec/selector",
                   "{matchLabels: {app.kubernetes.io/name: outrider}, matchExpressions: [{key: "
                   "app.kubernetes.io/component, operator: In, values: [verifier, shard]}]}");
  return text + service.text() + budget.text();
}

/// Returns the claim at /packs for a Deployment whose base has none.
std::string Overlay::volume(const char* name) const {
  if (plan_.kubernetes.claim.empty()) return "";
  Patch patch("Deployment", name);
  patch.operation("add", fmt::format("{}/volumes/-", kPod),
                  fmt::format("{{name: packs, persistentVolumeClaim: {{claimName: {}, readOnly: true}}}}",
                              in_quotes(plan_.kubernetes.claim)));
  patch.operation("add", fmt::format("{}/containers/0/volumeMounts/-", kPod),
                  "{name: packs, mountPath: /packs, readOnly: true}");
  return patch.text();
}

std::string Overlay::kustomization() const {
  const std::string image = image_of(plan_, version_);
  const std::size_t colon = image.rfind(':');
  const bool tagged = colon != image.npos && image.find('/', colon) == image.npos;
  const VerifierPlan& verifiers = plan_.verifiers.front();
  const int drafters = processes_.count("drafter");
  std::string text = fmt::format(
      "# Rendered by `outrider launch`: lines may be changed.\n"
      "apiVersion: kustomize.config.k8s.io/v1beta1\n"
      "kind: Kustomization\n"
      "namespace: {}\n"
      "resources:\n  - base\n  - namespace.yaml\n{}{}"
      "images:\n  - name: outrider\n    newName: {}\n    newTag: {}\n"
      "configMapGenerator:\n  - name: outrider-model\n    behavior: merge\n    literals:\n"
      "      - {}\n      - {}\n      - {}\n      - {}\n"
      "replicas:\n  - name: outrider-verifier\n    count: {}\n  - name: outrider-drafter\n    count: {}\n"
      "patches:\n",
      in_quotes(namespace_of(plan_)), shards_elsewhere() ? "  - shards.yaml\n" : "",
      plan_.run.empty() ? "" : "  - run.yaml\n",
      in_quotes(tagged ? image.substr(0, colon) : image), in_quotes(tagged ? image.substr(colon + 1) : "latest"),
      in_quotes("verifier=" + model_of(verifiers.model)),
      in_quotes("drafter=" + client_model()), in_quotes("client=" + client_model()),
      in_quotes("name=" + std::filesystem::path(model_of(verifiers.model)).filename().string()),
      processes_.count("verifier"), drafters);
  Patch coordinator("Deployment", "outrider-coordinator");
  for (const std::string& option : joined(plan_.coordinator.options)) coordinator.argument(option);
  add_role(coordinator, plan_.coordinator,
           plan_.coordinator.hosts.empty() ? std::vector<Host>() : hosts_of("coordinator"), /*has_environment=*/false);
  text += coordinator.text() + worker(verifiers, "verifier", "StatefulSet", verifier_size(plan_)) + shard_patches();
  if (drafters > 0) {
    text += worker(plan_.drafters[0], "drafter", "Deployment", {"", plan_.kubernetes.drafter_memory}) +
            volume("outrider-drafter");
    // Both bounds are the plan's count. To follow the load, raise the second.
    Patch scaler("HorizontalPodAutoscaler", "outrider-drafter");
    for (const char* bound : {"minReplicas", "maxReplicas"})
      scaler.operation("replace", fmt::format("/spec/{}", bound), std::to_string(drafters));
    text += scaler.text();
  } else {
    text +=
        "  - patch: |\n      $patch: delete\n      apiVersion: autoscaling/v2\n      kind: HorizontalPodAutoscaler\n"
        "      metadata:\n        name: outrider-drafter\n";
  }
  return text + volume("outrider-serve");
}

std::string Overlay::job() const {
  KubernetesJob job{.about =
                        "The plan's commands, one after the other. A command that fails is tried again; one that "
                        "ended with 75 continues where it stopped.",
                    .name = "outrider-run",
                    .image = "outrider",
                    .claim = plan_.kubernetes.claim,
                    .queue = plan_.kubernetes.queue};
  for (const RunPlan& run : plan_.run) {
    job.commands.push_back(
        fill_in(run.command, {.values = {{"{coordinator}", kService}, {"{model}", "$(MODEL)"}},
                              .program = "outrider",
                              .client_key = {"--key=/keys/client", "--coordinator-key=/keys/coordinator.pub"},
                              .write = in_pod}));
  }
  return job.manifest();
}

/// Refuses settings that a plan with shards must not have.
Result<void> check_sharded(const Plan& plan) {
  const std::vector<std::string>& words = plan.run.size() == 1 ? plan.run[0].command : std::vector<std::string>();
  if (words.size() < 2 || words[0] != "outrider" || words[1] != "batch")
    return no_manifest("shards: wanted one command under run, and that an outrider batch");
  for (const char* other :
       {"{coordinator}", "{run_dir}", "--connect", "--endpoint", "--plan", "--shard", "--threads"}) {
    if (std::ranges::any_of(words, [&](const std::string& word) { return word.find(other) != word.npos; }))
      return no_manifest(fmt::format("shards: the batch has {}, wanted all of it in one process", other));
  }
  if (plan.kubernetes.claim.empty())
    return no_manifest("shards: no kubernetes.claim, wanted the volume of the batch's files");
  if (!plan.drafters.empty() || !plan.encoders.empty() || !plan.hosts.empty() || plan.verifiers.size() != 1)
    return no_manifest("shards: a pod is a whole process; wanted one group of verifiers, and no other role or hosts");
  return check_role(plan.verifiers[0], "verifiers[0]");
}

/// Renders a batch that an Indexed Job's pods share, each a process by itself; and the job that merges their outputs.
Result<std::vector<RenderedFile>> render_sharded(const Plan& plan, const std::string& version) {
  RETURN_IF_ERROR(check_models(plan));
  RETURN_IF_ERROR(check_sharded(plan));
  const VerifierPlan& group = plan.verifiers.front();
  std::vector<std::string> options = joined(group.options), words = plan.run[0].command;
  const std::string threads = take(options, "--threads"), output = take_either(words, "--output");
  if (!options.empty() || !group.hosts.empty() || group.count > 1 || !group.backbone.empty() ||
      !group.assistant.empty() || !plan.coordinator.options.empty())
    return no_manifest(
        "shards: wanted threads, model, dtype and environment of verifiers[0] alone, and nothing of the coordinator");
  if (!output.starts_with("/packs/") || !output.ends_with(".jsonl"))
    return no_manifest(fmt::format("shards: --output is '{}', wanted /packs/NAME.jsonl", output));
  const std::string stem = in_pod(output.substr(0, output.rfind('.')));
  const std::string dtype = group.dtype.empty() ? plan.dtype : group.dtype;
  const std::string& model = group.model.empty() ? plan.model : group.model;
  const std::int64_t shards = plan.kubernetes.shards;
  KubernetesJob job{.about = fmt::format("A batch in {} parts. A pod that is taken away continues where it stopped.",
                                         shards),
                    .name = "outrider-run",
                    .image = in_quotes(image_of(plan, version)),
                    .ns = namespace_of(plan),
                    .environment = group.environment,
                    .dials = false,
                    .shards = shards,
                    .claim = plan.kubernetes.claim,
                    .queue = plan.kubernetes.queue};
  KubernetesJob merge = job;
  job.cpu = threads.empty() || threads == "0" ? "1" : threads;
  const std::string memory = verifier_size(plan).memory;
  job.memory = memory.empty() ? "4Gi" : memory;
  words = fill_in(words, {.values = {{"{model}", in_pod(model.empty() ? kImageModel : model)}},
                          .program = "outrider",
                          .client_key = {},
                          .write = in_pod});
  words.insert(words.end(), {"--threads=" + job.cpu, fmt::format("--shard=$(JOB_COMPLETION_INDEX)/{}", shards),
                             fmt::format("--output={}.$(JOB_COMPLETION_INDEX).jsonl", stem)});
  if (!dtype.empty()) words.push_back("--dtype=" + dtype);
  job.commands = {words};
  merge.about = "Makes one output of the parts, once all are done.";
  merge.name = "outrider-merge";
  merge.shards = 0;
  merge.tries = 3;  // lines with errors are a failure too, though the output is there
  words = {"outrider", "batch", "merge", stem + ".jsonl"};
  for (std::int64_t i = 0; i < shards; ++i) words.push_back(fmt::format("{}.{}.jsonl", stem, i));
  merge.commands = {words};
  return std::vector<RenderedFile>{
      namespace_file(plan), {"kubernetes/run.yaml", job.manifest()}, {"kubernetes/merge.yaml", merge.manifest()}};
}

}  // namespace

std::vector<RenderedFile> kubernetes_base() {
  std::vector<RenderedFile> files;
  for (const auto& [name, text] : {std::pair("kustomization", kustomization_yaml()),
                                   {"coordinator", coordinator_yaml()},
                                   {"verifier", verifier_yaml()},
                                   {"drafter", drafter_yaml()},
                                   {"serve", serve_yaml()},
                                   {"network-policy", network_policy_yaml()}})
    files.push_back({fmt::format("kubernetes/base/{}.yaml", name), std::string(text)});
  return files;
}

Result<std::vector<RenderedFile>> render_kubernetes(const Plan& plan, const ProcessPlan& processes,
                                                    const std::string& version) {
  if (plan.kubernetes.shards > 0) return render_sharded(plan, version);
  const Overlay overlay(plan, processes, version);
  RETURN_IF_ERROR(overlay.check());
  std::vector<RenderedFile> files = {{"kubernetes/kustomization.yaml", overlay.kustomization()}, namespace_file(plan)};
  if (const std::string shards = overlay.shards(); !shards.empty()) files.push_back({"kubernetes/shards.yaml", shards});
  if (!plan.run.empty()) files.push_back({"kubernetes/run.yaml", overlay.job()});
  return files;
}

std::string how_to_apply(const Plan& plan, const std::string& run_dir) {
  const std::string name = shell_line({namespace_of(plan)}), folder = shell_line({run_dir});
  if (plan.kubernetes.shards > 0) {
    return fmt::format(
        "kubectl -n {0} delete job outrider-run outrider-merge --ignore-not-found\n"
        "kubectl apply -f {1}/kubernetes/namespace.yaml -f {1}/kubernetes/run.yaml\n"
        "until kubectl -n {0} wait --for=condition=complete --timeout=60s job/outrider-run; do "
        "kubectl -n {0} get job/outrider-run && kubectl -n {0} get pods --selector app.kubernetes.io/component=run || "
        "break; done\n"
        "kubectl apply -f {1}/kubernetes/merge.yaml\n"
        "until kubectl -n {0} logs --follow job/outrider-merge 2>/dev/null; do sleep 1; done\n",
        name, folder);
  }
  // The clients' key is made once: front ends read it when they start.
  std::string text = fmt::format(
      "kubectl apply -f {0}/kubernetes/namespace.yaml\n"
      "test -s {0}/keys/api-key || openssl rand -hex 24 | tr -d '\\n' >{0}/keys/api-key\n",
      folder);
  const bool shards = !plan.verifiers.front().shard_hosts.empty();
  using Files = std::vector<std::string>;
  for (const auto& [role, others] :
       {std::pair("coordinator", Files{"authorized_keys"}),
        {"verifier", shards ? Files{"coordinator.pub", "verifier.pub", "authorized_keys"} : Files{"coordinator.pub"}},
        {"drafter", Files{"coordinator.pub"}},
        {"client", Files{"coordinator.pub", "api-key"}}}) {
    text += fmt::format("kubectl -n {0} create secret generic outrider-{1}-keys --from-file={2}/keys/{1}", name, role,
                        folder);
    for (const std::string& other : others) text += fmt::format(" --from-file={}/keys/{}", folder, other);
    text += " --dry-run=client -o yaml | kubectl apply -f -\n";
  }
  // A Job's template cannot be changed.
  if (!plan.run.empty()) text += fmt::format("kubectl -n {} delete job outrider-run --ignore-not-found\n", name);
  return text + fmt::format(
                    "kubectl apply -k {0}/kubernetes\n"
                    "# where pods of another run folder were running, whose keys were others:\n"
                    "#   kubectl -n {1} rollout restart deployment,statefulset\n"
                    "# at the end, with the volumes and the packs on them:\n"
                    "#   kubectl delete namespace {1}\n",
                    folder, name);
}

}  // namespace outrider
