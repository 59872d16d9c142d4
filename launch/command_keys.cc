#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "common/base/complain.h"
#include "common/base/text.h"
#include "common/os/files.h"
#include "common/wire/transport/keys.h"
#include "launch/command_line.h"

namespace outrider {
namespace {

struct KeysFlags {
  std::filesystem::path key, authorized;
  std::string role, name, text;
};

/// Returns the given file, or else the default one.
std::filesystem::path place_of(const std::filesystem::path& given, const char* option, const char* name) {
  if (!given.empty()) return given;
  if (key_folder().empty()) throw CommandError("there is no home folder: give {} FILE", option);
  return key_folder() / name;
}
std::filesystem::path key_file(const KeysFlags& flags) { return place_of(flags.key, "--key", kPrivateKeyFile); }
std::filesystem::path list_file(const KeysFlags& flags) {
  return place_of(flags.authorized, "--authorized", kAuthorizedFile);
}

void make_key(const KeysFlags& flags) {
  const KeyPair pair = or_throw(create_private_key(key_file(flags)));
  std::printf("%s\n", to_text(pair.open).c_str());
}

void print_public_key(const KeysFlags& flags) {
  const std::filesystem::path file = key_file(flags);
  const Result<KeyPair> pair = read_private_key(file);
  if (!pair && pair.error().code == Errc::kNotFound)
    throw CommandError("there is no private key {}: make one with 'outrider keys new'", file.string());
  std::printf("%s\n", to_text(or_throw(pair).open).c_str());
}

void authorize(KeysFlags flags) {
  const KeyRole role = or_throw(parse_key_role(flags.role));
  if (flags.text.empty()) std::cin >> flags.text;
  const std::vector<Key> keys = or_throw(read_public_keys(std::string(without_byte_order_mark(flags.text))));
  if (keys.size() > 1) throw CommandError("{}: has {} keys, wanted one", flags.text, keys.size());
  or_throw(authorize_key(list_file(flags), {role, keys[0], flags.name}));
  std::printf("%s is authorized as %s in %s\n", flags.name.c_str(), to_string(role), list_file(flags).c_str());
}

void revoke(const KeysFlags& flags) {
  const std::filesystem::path file = list_file(flags);
  const int revoked = or_throw(revoke_keys(file, flags.name));
  if (revoked == 0) throw CommandError("{}: has no key with the name {}", file.string(), flags.name);
  std::printf("%s of %s revoked in %s\n", counted(revoked, "key").c_str(), flags.name.c_str(), file.c_str());
}

void list_keys(const KeysFlags& flags) {
  const std::filesystem::path file = list_file(flags);
  const AuthorizedKeys lines = parse_authorized_keys(or_throw(read_text(file)));
  for (const AuthorizedKey& key : lines.keys)
    std::printf("%-8s %s %s\n", to_string(key.role), to_text(key.key).c_str(), key.name.c_str());
  for (const std::string& problem : lines.problems) complain("{}: {}; it authorizes nobody", file.string(), problem);
  if (!lines.problems.empty()) throw ExitStatus(1);
}

}  // namespace

void add_keys_command(Command& app) {
  Command* keys = app.add_subcommand("keys", "Manage the keys that may connect to a coordinator (docs/security.md)");
  keys->require_subcommand();
  auto flags = std::make_shared<KeysFlags>();
  const auto add = [&](const char* name, const char* help, auto action, bool of_own_key) {
    Command* command = keys->add_subcommand(name, help);
    if (of_own_key) {
      command->add_option("--key", flags->key, "The private key's file (default: ~/.config/outrider/id_outrider)");
    } else {
      command->add_option("--authorized", flags->authorized,
                          "A coordinator's list of keys (default: ~/.config/outrider/authorized_keys)");
    }
    command->callback([flags, action] { action(*flags); });
    return command;
  };
  add("new", "Make a key for this machine and print its public key", make_key, true);
  add("public", "Print this machine's public key", print_public_key, true);
  Command* command = add("authorize", "Authorize a key", authorize, false);
  command->add_option("role", flags->role, "Its role: verifier, drafter, encoder or client")->required();
  command->add_option("name", flags->name, "Name of its owner in logs and reports")->required();
  command->add_option("key", flags->text, "The public key, or a file with it (default: read from standard input)");
  command = add("revoke", "Revoke all keys with a name", revoke, false);
  command->add_option("name", flags->name, "The name given to 'authorize'")->required();
  add("list", "List the authorized keys", list_keys, false);
}

}  // namespace outrider
