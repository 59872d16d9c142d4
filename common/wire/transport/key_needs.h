#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/transport/keys.h"
#include "common/wire/transport/security.h"

/// Keys that an address requires, and their files from Security or the default places.
namespace outrider {

/// Keys of a process that listens.
struct KeysToListen {
  KeyPair own;
  std::filesystem::path authorized;  ///< readable file that lists the keys that may connect
};
/// @return none if `address` needs no keys; kInvalidArgument if keys are missing, with advice
Result<std::optional<KeysToListen>> keys_to_listen(const Security& security, const std::string& address);

/// Keys of a process that connects.
struct KeysToConnect {
  KeyPair own;
  std::vector<Key> coordinator;  ///< at least one; the other end must have one of them
};
/// @return see keys_to_listen()
Result<std::optional<KeysToConnect>> keys_to_connect(const Security& security,
                                                     const std::vector<std::string>& addresses);

}  // namespace outrider
