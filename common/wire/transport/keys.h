#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

/// CURVE keys, as files and as text (docs/security.md). The text of a key is 64 hexadecimal digits: ZeroMQ's own form
/// contains characters that are special to a shell.
namespace outrider {

using Key = std::array<std::uint8_t, 32>;

struct KeyPair {
  Key secret, open;
};

std::string to_text(const Key& key);
std::optional<Key> parse_key(std::string_view text);
KeyPair new_key_pair();

/// Default folder of keys: $XDG_CONFIG_HOME/outrider or ~/.config/outrider. Empty without a home.
std::filesystem::path key_folder();
inline constexpr const char* kPrivateKeyFile = "id_outrider";
inline constexpr const char* kAuthorizedFile = "authorized_keys";
inline constexpr const char* kKnownFile = "known_coordinator";

/// Makes a key: `path` gets the private half, readable by its owner alone, and PATH.pub the public one.
/// @return kInvalidArgument if one of the files exists, kIo if it cannot be written
Result<KeyPair> create_private_key(const std::filesystem::path& path);
/// @return kNotFound without such a file, kInvalidArgument if others may read it (for root's: others than its group),
/// kMalformed if it is no private key
Result<KeyPair> read_private_key(const std::filesystem::path& path);

/// Reads public keys. `text` is a key, or a file with one key a line (the rest of the line is for people; # starts a
/// comment). @return at least one; kMalformed, or read_text()'s error
Result<std::vector<Key>> read_public_keys(const std::string& text);

/// Role that a key grants: a worker's Role, or client.
enum class KeyRole : std::uint8_t { kVerifier, kDrafter, kEncoder, kClient };
inline constexpr std::array kKeyRoles{KeyRole::kVerifier, KeyRole::kDrafter, KeyRole::kEncoder, KeyRole::kClient};
inline const char* to_string(KeyRole role) {
  return std::array{"verifier", "drafter", "encoder", "client"}.at(static_cast<std::size_t>(role));
}
/// @return kInvalidArgument with a list of all roles
Result<KeyRole> parse_key_role(std::string_view text);

/// One line of an authorized_keys file: ROLE KEY NAME.
struct AuthorizedKey {
  KeyRole role;
  Key key;
  std::string name;
  bool operator==(const AuthorizedKey&) const = default;
};

/// The valid lines, and the errors of the others, which authorize nobody.
struct AuthorizedKeys {
  std::vector<AuthorizedKey> keys;
  std::vector<std::string> problems;  ///< "line 3: ..."
};
AuthorizedKeys parse_authorized_keys(std::string_view text);
/// The keys of a list, and what is wrong with the others: kMalformed with their lines, or as read_text().
std::pair<std::vector<AuthorizedKey>, Result<void>> read_authorized_keys(const std::filesystem::path& list);

/// Adds a line to a list, which need not exist yet. Keeps comments.
/// @return kInvalidArgument for a name that is not 1 to 64 letters, digits and .-_@, or for an existing entry
Result<void> authorize_key(const std::filesystem::path& list, const AuthorizedKey& key);
/// Removes all lines with this name. @return their number
Result<int> revoke_keys(const std::filesystem::path& list, std::string_view name);

}  // namespace outrider
