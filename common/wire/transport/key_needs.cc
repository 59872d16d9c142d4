#include "common/wire/transport/key_needs.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "common/os/files.h"
#include "common/os/logging.h"
#include "common/wire/transport/address.h"

namespace outrider {
namespace {

/// Returns true when keys are required or requested. @param address  another machine's, or ""
Result<bool> wants_keys(const Security& security, const std::string& address, bool asked_for) {
  static std::atomic<bool> warned = false;
  if (asked_for && security.insecure)
    return Error{Errc::kInvalidArgument, "--insecure goes without keys, and there are options that name some"};
  if (asked_for || address.empty()) return asked_for;
  if (security.insecure && !warned.exchange(true)) {
    log_warn(
        "event=insecure address={} reason=\"--insecure: nothing on this connection is encrypted, nobody has to prove "
        "who "
        "they are (docs/security.md)\"",
        address);
  }
  return !security.insecure;
}

/// Returns the given file, or else the default one.
std::filesystem::path file_or_default(const std::filesystem::path& given, const char* name) {
  const std::filesystem::path folder = key_folder();
  return given.empty() && !folder.empty() ? folder / name : given;
}

/// The message tells how to create the file.
Error missing(const std::string& address, const char* what, const std::filesystem::path& path, const char* advice,
              const Error& error) {
  if (error.code != Errc::kNotFound && !path.empty()) return error;
  const std::string where = address.empty() ? "" : fmt::format("{} can be another machine's, and ", address);
  return Error(Errc::kInvalidArgument,
               "{}there is no {} {}: {}; --insecure goes without keys where the other end does too (docs/security.md)",
               where, what, path.empty() ? "(no home folder to look in)" : path.string(), advice);
}

Result<KeyPair> own_key(const Security& security, const std::string& address) {
  const std::filesystem::path path = file_or_default(security.key, kPrivateKeyFile);
  Result<KeyPair> own = read_private_key(path);
  if (own) return own;
  return missing(address, "private key", path, "make one with 'outrider keys new'", own.error());
}

}  // namespace

Result<std::optional<KeysToListen>> keys_to_listen(const Security& security, const std::string& address) {
  if (address.starts_with("inproc://")) return std::optional<KeysToListen>();
  const std::string elsewhere = is_local(address) ? "" : address;
  ASSIGN_OR_RETURN(const bool wanted,
                   wants_keys(security, elsewhere, !security.key.empty() || !security.authorized.empty()));
  if (!wanted) return std::optional<KeysToListen>();
  ASSIGN_OR_RETURN(const KeyPair own, own_key(security, elsewhere));
  std::filesystem::path path = file_or_default(security.authorized, kAuthorizedFile);
  if (const auto list = read_text(path); !list) {
    return missing(elsewhere, "list of keys that may connect", path,
                   "add some by 'outrider keys authorize ROLE NAME KEY'", list.error());
  }
  return std::optional(KeysToListen{own, std::move(path)});
}

Result<std::optional<KeysToConnect>> keys_to_connect(const Security& security,
                                                     const std::vector<std::string>& addresses) {
  const auto remote = std::ranges::find_if_not(addresses, is_local);
  const std::string elsewhere = remote == addresses.end() ? "" : *remote;
  ASSIGN_OR_RETURN(const bool wanted,
                   wants_keys(security, elsewhere, !security.key.empty() || !security.coordinator_keys.empty()));
  if (!wanted) return std::optional<KeysToConnect>();
  KeysToConnect credentials;
  ASSIGN_OR_RETURN(credentials.own, own_key(security, elsewhere));
  std::vector<std::string> known = security.coordinator_keys;
  const std::filesystem::path path = file_or_default("", kKnownFile);
  if (known.empty()) known = {path.string()};
  for (const std::string& one : known) {
    const auto keys = read_public_keys(one);
    if (!keys && !security.coordinator_keys.empty()) return keys.error();
    if (!keys) {
      return missing(elsewhere, "coordinator's public key", path,
                     "put it there ('outrider keys public' prints it at the coordinator) or give --coordinator-key",
                     keys.error());
    }
    credentials.coordinator.insert(credentials.coordinator.end(), keys->begin(), keys->end());
  }
  return std::optional(std::move(credentials));
}

}  // namespace outrider
