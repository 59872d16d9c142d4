#include "launch/cluster/kubernetes_job.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/text.h"

namespace outrider {
namespace {

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

}  // namespace

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

std::string in_quotes(const std::string& text) { return nlohmann::json(text).dump(); }

std::string in_pod(const std::string& text) { return replaced(text, "$", "$$"); }

}  // namespace outrider
