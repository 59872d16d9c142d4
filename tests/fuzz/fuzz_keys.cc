// Files and texts that say who gets in: keys, authorized_keys, known coordinators, API keys, the headers that show one.
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/wire/transport/address.h"
#include "common/wire/transport/keys.h"
#include "server/api_keys.h"
#include "server/web_guard.h"
#include "tests/fuzz/driver.h"
#include "tests/support/temporary_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  static const TemporaryDir dir;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const AuthorizedKey& key : parse_authorized_keys(text).keys) {
    CHECK(parse_key(to_text(key.key)) == key.key);
    CHECK(!key.name.empty() && key.name.size() <= 64, "name '{}'", key.name);
  }
  const std::filesystem::path file = dir.write("keys", text);
  std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  (void)read_private_key(file);
  (void)read_public_keys(file.string());
  if (text.find('\0') == text.npos) (void)read_public_keys(text);
  (void)ApiKeys::load(file);
  (void)key_of_authorization(text);
  const WebGuard guard({"chat.example"}, {"https://chat.example"});
  (void)guard.check_host(text);
  (void)guard.check_origin(text, "chat.example:80");
  (void)guard.shares_with(text);
  return 0;
}
