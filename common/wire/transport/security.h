#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/option.h"

namespace outrider {

/// Keys of this process, and of the peers that it accepts (docs/security.md). Between machines keys are required: those
/// given here, else those at the default places (keys.h). On this machine they are used if one is given.
struct Security {
  std::filesystem::path key = {};                  ///< our private key
  std::filesystem::path authorized = {};           ///< for listening: keys that may connect, with their roles
  std::vector<std::string> coordinator_keys = {};  ///< for connecting: keys, or files of keys; any one of them suffices
  bool insecure = false;                           ///< go without keys between machines too
};

template <class Visitor>
void declare_options(Visitor&& visit, Security& security) {
  visit("--key", security.key, {"File of our private key (default: ~/.config/outrider/id_outrider)"});
  visit("--authorized", security.authorized,
        {"File of the keys that may connect, with their roles (default: ~/.config/outrider/authorized_keys)"});
  visit("--coordinator-key", security.coordinator_keys,
        {"The coordinator's public key, or a file of it; two while it changes (default: "
         "~/.config/outrider/known_coordinator)"});
  visit("--insecure", security.insecure,
        {"Use no keys between machines: anybody on the network can read, and anybody can join"});
}

}  // namespace outrider
