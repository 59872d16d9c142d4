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

/// Keys of CURVE, as files and as text (docs/security.md). As text a key is 64 hexadecimal digits: ZeroMQ's own form
/// has characters that a shell takes for its own.
namespace outrider {

using Key = std::array<std::uint8_t, 32>;

struct KeyPair {
  Key secret, open;
};

std::string to_text(const Key& key);
std::optional<Key> parse_key(std::string_view text);
KeyPair new_key_pair();

/// Where keys are when no option says so: $XDG_CONFIG_HOME/outrider or ~/.config/outrider. Empty without a home.
std::filesystem::path key_folder();
inline constexpr const char* kPrivateKeyFile = "id_outrider";
inline constexpr const char* kAuthorizedFile = "authorized_keys";
inline constexpr const char* kKnownFile = "known_coordinator";

/// Makes a key: `path` gets the private half, for nobody but its owner to read, and PATH.pub the public one.
/// @return kInvalidArgument where one of the files exists, kIo where it cannot be written.
Result<KeyPair> create_private_key(const std::filesystem::path& path);
/// @return kNotFound without such a file, kInvalidArgument for one that others may read (of root's: others than its
///   group), kMalformed for one of something else.
Result<KeyPair> read_private_key(const std::filesystem::path& path);

/// The public keys that `text` says: the key itself, or a file with one a line (what follows a key on its line is for
/// people; # starts a comment).
/// @return at least one; kMalformed, or read_text()'s error.
Result<std::vector<Key>> read_public_keys(const std::string& text);

/// As what somebody may come: the Role of a worker, or a client.
enum class KeyRole : std::uint8_t { kVerifier, kDrafter, kEncoder, kClient };
inline constexpr std::array kKeyRoles{KeyRole::kVerifier, KeyRole::kDrafter, KeyRole::kEncoder, KeyRole::kClient};
inline const char* to_string(KeyRole role) {
  return std::array{"verifier", "drafter", "encoder", "client"}.at(static_cast<std::size_t>(role));
}
/// @return kInvalidArgument with all roles.
Result<KeyRole> parse_key_role(std::string_view text);

/// One line of an authorized_keys file: ROLE KEY NAME.
struct AuthorizedKey {
  KeyRole role;
  Key key;
  std::string name;
  bool operator==(const AuthorizedKey&) const = default;
};

/// The lines that say something, and what is wrong with the others: these authorize nobody.
struct AuthorizedKeys {
  std::vector<AuthorizedKey> keys;
  std::vector<std::string> problems;  ///< "line 3: ..."
};
AuthorizedKeys parse_authorized_keys(std::string_view text);
/// The keys of a list, and what is wrong with the others: kMalformed with their lines, or as read_text().
std::pair<std::vector<AuthorizedKey>, Result<void>> read_authorized_keys(const std::filesystem::path& list);

/// Adds a line to a list, which need not be there yet. Comments stay as they are.
/// @return kInvalidArgument for a name with other characters than letters, digits and .-_@, of none or more than 64, or
///   for what is there already.
Result<void> authorize_key(const std::filesystem::path& list, const AuthorizedKey& key);
/// Takes away all lines of this name. @return how many these were.
Result<int> revoke_keys(const std::filesystem::path& list, std::string_view name);

}  // namespace outrider
