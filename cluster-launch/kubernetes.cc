#include "cluster-launch/kubernetes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/text.h"

namespace outrider {
namespace {

constexpr const char *kService = "tcp://outrider-coordinator:7070", *kImageModel = "/usr/share/outrider/models/nano";
constexpr const char* kPod = "/spec/template/spec";

Error no_manifest(const std::string& why) { return {Errc::kInvalidArgument, "kubernetes: " + why}; }

/// As YAML takes it, whatever it is.
std::string in_quotes(const std::string& text) { return nlohmann::json(text).dump(); }

std::string namespace_of(const Plan& plan) { return plan.kubernetes.ns.empty() ? "outrider" : plan.kubernetes.ns; }

/// Options of a command line as one word each: --threads=8.
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

/// Takes an option out. @return its value; empty: it was not there.
std::string take(std::vector<std::string>& words, const std::string& option) {
  const auto found =
      std::ranges::find_if(words, [&](const std::string& word) { return word.starts_with(option + "="); });
  if (found == words.end()) return "";
  const std::string value = found->substr(option.size() + 1);
  words.erase(found);
  return value;
}

/// Operations of a JSON patch (RFC 6902) on a workload.
class Patch {
 public:
  Patch(const char* kind, std::string name) : kind_(kind), name_(std::move(name)) {}

  void operation(const char* op, const std::string& path, const std::string& value) {
    text_ += fmt::format("      - op: {}\n        path: {}\n        value: {}\n", op, path, value);
  }
  void argument(const std::string& word) {
    operation("add", fmt::format("{}/containers/0/args/-", kPod), in_quotes(word));
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
  const char* kind_;
  const std::string name_;
  std::string text_;
};

Result<void> check_role(const RolePlan& role, const std::string& key) {
  if (!role.cpuset.empty()) return no_manifest(key + ".cpuset: the kubelet gives pods their CPUs");
  if (!role.deadline.empty())
    return no_manifest(key + ".deadline: a Deployment would start the pod again; wanted none");
  return {};
}

template <class Group>
Result<void> check_groups(const std::vector<Group>& groups, const char* key, const std::string& claim) {
  if (groups.size() > 1)
    return no_manifest(
        fmt::format("{} groups of {}, wanted one: the base has one workload for them", groups.size(), key));
  for (const Group& group : groups) RETURN_IF_ERROR(check_role(group, fmt::format("{}[0]", key)));
  if (key == std::string("drafters") && !groups.empty() && groups[0].model.starts_with("/packs/") && claim.empty())
    return no_manifest(fmt::format(
        "drafters[0].model is {}, and drafters have no volume there; wanted kubernetes.claim", groups[0].model));
  return {};
}

class Overlay {
 public:
  Overlay(const Plan& plan, const ProcessPlan& processes, std::string version)
      : plan_(plan), processes_(processes), version_(std::move(version)) {}

  Result<void> check() const;
  std::string kustomization() const;
  std::string job() const;

 private:
  std::string model_of(const std::string& groups) const {
    const std::string& model = groups.empty() ? plan_.model : groups;
    return model.empty() ? kImageModel : model;
  }
  void add_role(Patch& patch, const RolePlan& role, const char* name, bool has_environment) const;
  template <class Group>
  std::string worker(const Group& group, const char* role, const char* kind, const std::string& memory) const;
  std::string volume(const char* name) const;
  std::string container(std::size_t number, const std::vector<std::string>& command) const;

  const Plan& plan_;
  const ProcessPlan& processes_;
  const std::string version_;
};

Result<void> Overlay::check() const {
  if (!plan_.coordinator.listen.empty())
    return no_manifest(fmt::format("coordinator.listen is {}: the Service has port 7070", plan_.coordinator.listen));
  RETURN_IF_ERROR(check_role(plan_.coordinator, "coordinator"));
  RETURN_IF_ERROR(check_groups(plan_.verifiers, "verifiers", plan_.kubernetes.claim));
  RETURN_IF_ERROR(check_groups(plan_.drafters, "drafters", plan_.kubernetes.claim));
  if (!plan_.encoders.empty()) return no_manifest("encoders: the base has no workload for them");
  for (const RunPlan& run : plan_.run) {
    for (const std::string& word : run.command) {
      if (word.find("{run_dir}") != word.npos)
        return no_manifest("run: {run_dir} is on this machine, and pods do not see it");
    }
  }
  return {};
}

/// What all roles have.
void Overlay::add_role(Patch& patch, const RolePlan& role, const char* name, bool has_environment) const {
  std::vector<std::string> entries;
  for (const auto& [key, value] : role.environment)
    entries.push_back(fmt::format("{{name: {}, value: {}}}", in_quotes(key), in_quotes(value)));
  const std::string path = fmt::format("{}/containers/0/env", kPod);
  if (!has_environment && !entries.empty()) patch.operation("add", path, fmt::format("[{}]", fmt::join(entries, ", ")));
  for (const std::string& entry : entries) {
    if (has_environment) patch.operation("add", path + "/-", entry);
  }
  if (role.hosts.empty()) return;
  std::vector<std::string> nodes;
  for (const PlannedProcess& process : processes_.processes) {
    const std::string node = in_quotes(process.host.name);
    if (process.role == name && std::ranges::count(nodes, node) == 0) nodes.push_back(node);
  }
  patch.operation(
      "add", fmt::format("{}/affinity", kPod),
      fmt::format("{{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: "
                  "[{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{}]}}]}}]}}}}}}",
                  fmt::join(nodes, ", ")));
}

template <class Group>
std::string Overlay::worker(const Group& group, const char* role, const char* kind, const std::string& memory) const {
  Patch patch(kind, fmt::format("outrider-{}", role));
  std::vector<std::string> options = joined(group.options);
  std::string threads = take(options, "--threads");
  const PlannedProcess& first = *std::ranges::find(processes_.processes, role, &PlannedProcess::role);
  if ((threads.empty() || threads == "0") && first.host.cpus > 0) threads = std::to_string(first.host.cpus);
  const std::string dtype = group.dtype.empty() ? plan_.dtype : group.dtype;
  for (const auto& [option, value] :
       {std::pair("--backbone", group.backbone), {"--assistant", group.assistant}, {"--dtype", dtype}}) {
    if (!value.empty()) patch.argument(fmt::format("{}={}", option, value));
  }
  for (const std::string& option : options) patch.argument(option);
  if (!threads.empty() && threads != "0") patch.resource("cpu", threads);
  if (!memory.empty()) patch.resource("memory", memory);
  add_role(patch, group, role, /*has_environment=*/true);
  return patch.text();
}

/// The claim at /packs of a Deployment whose base has none there.
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
  const std::string image = plan_.kubernetes.image.empty() ? "outrider:" + version_ : plan_.kubernetes.image;
  const std::size_t colon = image.rfind(':');
  const bool tagged = colon != image.npos && image.find('/', colon) == image.npos;
  const VerifierPlan& verifiers = plan_.verifiers.front();
  const int drafters = processes_.count("drafter");
  std::string text = fmt::format(
      "# Rendered by `outrider launch`: lines may be changed.\n"
      "apiVersion: kustomize.config.k8s.io/v1beta1\n"
      "kind: Kustomization\n"
      "namespace: {}\n"
      "resources:\n  - base\n  - namespace.yaml\n{}"
      "images:\n  - name: outrider\n    newName: {}\n    newTag: {}\n"
      "configMapGenerator:\n  - name: outrider-model\n    behavior: merge\n    literals:\n"
      "      - {}\n      - {}\n      - {}\n"
      "replicas:\n  - name: outrider-verifier\n    count: {}\n  - name: outrider-drafter\n    count: {}\n"
      "patches:\n",
      in_quotes(namespace_of(plan_)), plan_.run.empty() ? "" : "  - run.yaml\n",
      in_quotes(tagged ? image.substr(0, colon) : image), in_quotes(tagged ? image.substr(colon + 1) : "latest"),
      in_quotes("verifier=" + model_of(verifiers.model)),
      in_quotes("drafter=" + model_of(plan_.drafters.empty() ? "" : plan_.drafters[0].model)),
      in_quotes("client=" + model_of(plan_.drafters.empty() ? "" : plan_.drafters[0].model)),
      processes_.count("verifier"), drafters);
  Patch coordinator("Deployment", "outrider-coordinator");
  for (const std::string& option : joined(plan_.coordinator.options)) coordinator.argument(option);
  add_role(coordinator, plan_.coordinator, "coordinator", /*has_environment=*/false);
  text += coordinator.text() + worker(verifiers, "verifier", "StatefulSet", plan_.kubernetes.verifier_memory);
  if (drafters > 0) {
    text += worker(plan_.drafters[0], "drafter", "Deployment", plan_.kubernetes.drafter_memory) +
            volume("outrider-drafter");
    // As many as the plan has; whoever wants them to follow the load raises the second.
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

/// A container of the Job.
std::string Overlay::container(std::size_t number, const std::vector<std::string>& command) const {
  const bool ours = command[0] == "outrider";
  std::vector<std::string> words(command.begin() + (ours ? 1 : 0), command.end());
  if (ours && std::ranges::count(command, "{coordinator}") > 0)
    words.insert(words.end(), {"--key=/keys/client", "--coordinator-key=/keys/coordinator.pub"});
  std::string text = fmt::format("        - name: run-{}\n          image: outrider\n          {}:\n", number,
                                 ours ? "args" : "command");
  for (const std::string& word : words) {
    const std::string filled = replaced(replaced(word, "{coordinator}", kService), "{model}", "$(MODEL)");
    text += fmt::format("            - {}\n", in_quotes(filled));
  }
  text +=
      "          env:\n            - name: MODEL\n              valueFrom:\n                configMapKeyRef:\n"
      "                  name: outrider-model\n                  key: client\n"
      "          resources:\n            requests:\n              cpu: \"1\"\n              memory: 2Gi\n"
      "            limits:\n              cpu: \"1\"\n              memory: 2Gi\n"
      "          securityContext:\n            allowPrivilegeEscalation: false\n"
      "            readOnlyRootFilesystem: true\n            capabilities:\n              drop: [ALL]\n"
      "          volumeMounts:\n            - name: keys\n              mountPath: /keys\n              readOnly: "
      "true\n";
  if (!plan_.kubernetes.claim.empty()) text += "            - name: packs\n              mountPath: /packs\n";
  return text;
}

std::string Overlay::job() const {
  std::string text =
      "# The plan's commands, one after the other. One that fails is tried again: what ends with 75 goes on where it "
      "was.\n"
      "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: outrider-run\n  labels:\n"
      "    app.kubernetes.io/component: run\nspec:\n  backoffLimit: 20\n  template:\n    metadata:\n      labels:\n"
      "        app.kubernetes.io/name: outrider\n        app.kubernetes.io/component: run\n        outrider/dials: "
      "coordinator\n    spec:\n"
      "      restartPolicy: OnFailure\n      automountServiceAccountToken: false\n      terminationGracePeriodSeconds: "
      "60\n"
      "      securityContext:\n        runAsNonRoot: true\n        runAsUser: 10001\n        runAsGroup: 10001\n"
      "        fsGroup: 10001\n        seccompProfile:\n          type: RuntimeDefault\n";
  if (plan_.run.size() > 1) text += "      initContainers:\n";
  for (std::size_t i = 0; i < plan_.run.size(); ++i) {
    if (i + 1 == plan_.run.size()) text += "      containers:\n";
    text += container(i, plan_.run[i].command);
  }
  text +=
      "      volumes:\n        - name: keys\n          secret:\n            secretName: outrider-client-keys\n"
      "            defaultMode: 0400\n";
  if (!plan_.kubernetes.claim.empty())
    text += fmt::format("        - name: packs\n          persistentVolumeClaim:\n            claimName: {}\n",
                        in_quotes(plan_.kubernetes.claim));
  return text;
}

}  // namespace

Result<std::vector<RenderedFile>> render_kubernetes(const Plan& plan, const ProcessPlan& processes,
                                                    const std::string& version) {
  const Overlay overlay(plan, processes, version);
  RETURN_IF_ERROR(overlay.check());
  std::vector<RenderedFile> files = {
      {"kubernetes/kustomization.yaml", overlay.kustomization()},
      {"kubernetes/namespace.yaml", fmt::format("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {}\n  labels:\n"
                                                "    pod-security.kubernetes.io/enforce: restricted\n",
                                                in_quotes(namespace_of(plan)))}};
  if (!plan.run.empty()) files.push_back({"kubernetes/run.yaml", overlay.job()});
  return files;
}

std::string how_to_apply(const Plan& plan, const std::string& run_dir) {
  const std::string name = namespace_of(plan), folder = shell_line({run_dir});
  std::string text = fmt::format("kubectl apply -f {}/kubernetes/namespace.yaml\n", folder);
  for (const auto& [role, other] : {std::pair("coordinator", "authorized_keys"),
                                    {"verifier", "coordinator.pub"},
                                    {"drafter", "coordinator.pub"},
                                    {"client", "coordinator.pub"}}) {
    text += fmt::format(
        "kubectl -n {0} create secret generic outrider-{1}-keys --from-file={2}/keys/{1} --from-file={2}/keys/{3}{4}\n",
        name, role, folder, other,
        role == std::string_view("client") ? " --from-literal=api-key=$(openssl rand -hex 24)" : "");
  }
  return text + fmt::format("kubectl apply -k {}/kubernetes\n", folder);
}

}  // namespace outrider
