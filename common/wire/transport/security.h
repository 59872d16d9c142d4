#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/option.h"

namespace outrider {

/// How this process proves who it is, and whom it lets in (docs/security.md). Beyond this machine keys are a must:
/// those given here, else those at the default places (keys.h). On this machine they are used if one is given.
struct Security {
  std::filesystem::path key = {};         ///< our private key
  std::filesystem::path authorized = {};  ///< of one that listens: whose keys may connect, and as what
  std::vector<std::string> coordinator_keys =
      {};                 ///< of one that connects: keys, or files of them; any of them will do
  bool insecure = false;  ///< beyond this machine too nobody has to prove anything
};

template <class Visitor>
void declare_options(Visitor&& visit, Security& security) {
  visit("--key", security.key, {"File of our private key (default: ~/.config/outrider/id_outrider)"});
  visit("--authorized", security.authorized,
        {"File of the keys that may connect, and as what (default: ~/.config/outrider/authorized_keys)"});
  visit("--coordinator-key", security.coordinator_keys,
        {"The coordinator's public key, or a file of it; two while it changes (default: "
         "~/.config/outrider/known_coordinator)"});
  visit("--insecure", security.insecure,
        {"Go without keys beyond this machine too: anybody on the way can read, and anybody may join"});
}

}  // namespace outrider
