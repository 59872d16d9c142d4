#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace outrider {

/// A Job of Kubernetes: commands one after the other, all as in_pod() writes their words.
struct KubernetesJob {
  std::string about, name, image;
  std::string ns = {};  ///< empty: Kustomize puts it in
  std::vector<std::vector<std::string>> commands = {};
  std::map<std::string, std::string> environment = {};
  bool dials = true;        ///< the coordinator: it has the client's keys and the ConfigMap's model as $(MODEL)
  std::int64_t shards = 0;  ///< completions of an Indexed Job; 0: it is none
  int tries = 20;           ///< again, for each shard: each pod that was taken away counts
  std::string cpu = "1", memory = "2Gi";
  std::string claim = {};  ///< at /packs; empty: none
  std::string queue = {};  ///< of Kueue; empty: none

  std::string manifest() const;
};

/// As YAML takes it, whatever it is.
std::string in_quotes(const std::string& text);

/// A part of an argument or of a variable's value: the kubelet makes $(NAME) the value of a variable, and $$ a $.
std::string in_pod(const std::string& text);

}  // namespace outrider
