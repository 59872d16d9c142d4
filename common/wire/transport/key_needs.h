#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/transport/keys.h"
#include "common/wire/transport/security.h"

/// Which keys an address needs, and those that Security or the default places have for it.
namespace outrider {

/// What a process has that listens.
struct KeysToListen {
  KeyPair own;
  std::filesystem::path authorized;  ///< the list of keys that may connect: a file that can be read
};
/// @return none where `address` needs no keys; kInvalidArgument where keys are missing, with what to do
Result<std::optional<KeysToListen>> keys_to_listen(const Security& security, const std::string& address);

/// What a process has that connects.
struct KeysToConnect {
  KeyPair own;
  std::vector<Key> coordinator;  ///< at least one, of which the other end has one
};
/// @return as keys_to_listen()
Result<std::optional<KeysToConnect>> keys_to_connect(const Security& security,
                                                     const std::vector<std::string>& addresses);

}  // namespace outrider
