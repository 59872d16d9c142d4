#include "server/api_keys.h"

#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/os/durable_file.h"
#include "server/http_message.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

// What `printf %s KEY | sha256sum` prints.
const std::string kAlpha = "sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";  // alpha
const std::string kBeta = "sha256:f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753";   // beta

struct ApiKeysTest : testing::Test {
  TemporaryDir dir;
  const std::filesystem::path file = dir.path() / "keys";

  Result<std::shared_ptr<ApiKeys>> load(const std::string& text) {
    EXPECT_TRUE(replace_text(file, text));
    return ApiKeys::load(file);
  }
  /// Whose key it is.
  static std::string name(ApiKeys& keys, const std::string& key) {
    const auto found = keys.find(key);
    return found == nullptr ? "nobody" : found->name();
  }
};

bool begins(const ApiKey& key, std::vector<std::shared_ptr<const void>>& open, TimePoint at = {}) {
  auto begun = key.begin(at);
  if (!begun) return false;
  open.push_back(*begun);
  return true;
}

TEST(HttpRequest, LeavesWhatItMakesToTheNameOfItsKey) {
  const auto owner = [](const char* client, std::shared_ptr<const ApiKey> key) {
    return HttpRequest{.method = "GET", .path = "/", .body = "", .client = client, .key = std::move(key)}.owner();
  };
  EXPECT_EQ(owner("key alice", std::make_shared<ApiKey>("alice", ApiKey::Limits{})), "key alice");
  EXPECT_EQ(owner("10.0.0.1", std::make_shared<ApiKey>("", ApiKey::Limits{})), "") << "all who have the one key";
  EXPECT_EQ(owner("10.0.0.1", nullptr), "");
}

TEST_F(ApiKeysTest, AFileSaysWhoMayAsk) {
  const auto keys = load("# team\n\n  alice " + kAlpha + "\nbob@x.org " + kBeta + " max_requests=2\r\n").value();
  EXPECT_EQ(name(*keys, "alpha"), "alice");
  EXPECT_EQ(name(*keys, "beta"), "bob@x.org");
  for (const char* wrong : {"", "alph", "alphaa", "Alpha", "alice"}) EXPECT_EQ(name(*keys, wrong), "nobody") << wrong;
  EXPECT_EQ(name(*ApiKeys::of("one for all"), "one for all"), "");
  EXPECT_EQ(name(*ApiKeys::of("one for all"), ""), "nobody");
}

TEST_F(ApiKeysTest, TheFirstWrongLineIsNamed) {
  const auto why = [&](const std::string& line) {
    const auto keys = load("alice " + kAlpha + "\n" + line + "\n");
    return keys ? "" : keys.error().message.substr(file.string().size());
  };
  EXPECT_EQ(why("bob"), ":2: '' of bob, wanted sha256: and 64 hexadecimal digits");
  EXPECT_EQ(why("bob beta"), ":2: 'beta' of bob, wanted sha256: and 64 hexadecimal digits");
  EXPECT_EQ(why("bob " + kBeta + "0"),
            fmt::format(":2: '{}0' of bob, wanted sha256: and 64 hexadecimal digits", kBeta));
  EXPECT_EQ(why("bob sha256:" + std::string(64, 'g')).substr(0, 3), ":2:");
  EXPECT_EQ(why("bob " + kBeta + " max_requests=0").substr(0, 22), ":2: 'max_requests=0' o");
  EXPECT_NE(why("bob " + kBeta + " max_request=3"), "");
  EXPECT_NE(why("bob " + kBeta + " max_requests=3x"), "");
  EXPECT_EQ(why("alice " + kBeta), ":2: a second line of alice");
  EXPECT_EQ(why("bob " + kAlpha), ":2: bob has the key of alice");
  EXPECT_NE(why("b\033[31m " + kBeta), "");
  EXPECT_EQ(ApiKeys::load(dir.path() / "nothing").error().code, Errc::kNotFound);
}

TEST_F(ApiKeysTest, AFileThatChangesIsReadAgainAndAWrongOneIsNot) {
  const auto keys = load("alice " + kAlpha + " max_requests=1\n").value();
  std::vector<std::shared_ptr<const void>> open;
  EXPECT_TRUE(begins(*keys->find("alpha"), open));
  ASSERT_TRUE(replace_text(file, "alice " + kAlpha + " max_requests=2\nbob " + kBeta + "\n"));
  EXPECT_EQ(name(*keys, "beta"), "bob");
  EXPECT_TRUE(begins(*keys->find("alpha"), open));
  EXPECT_FALSE(begins(*keys->find("alpha"), open)) << "what was open before counts";
  ASSERT_TRUE(replace_text(file, "alice\n"));
  EXPECT_EQ(name(*keys, "beta"), "bob");
  ASSERT_TRUE(replace_text(file, "bob " + kBeta + "\n"));
  EXPECT_EQ(name(*keys, "alpha"), "nobody");
  std::filesystem::remove(file);
  EXPECT_EQ(name(*keys, "beta"), "bob") << "an editor may be about to write it";
}

TEST_F(ApiKeysTest, RequestsAtOnceAreBounded) {
  const ApiKey key("alice", {.requests_max = 2});
  std::vector<std::shared_ptr<const void>> open;
  EXPECT_TRUE(begins(key, open));
  EXPECT_TRUE(begins(key, open));
  const auto refused = key.begin({}).error();
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.message, "the key 'alice' has 2 requests open, wanted at most 2");
  open.pop_back();
  EXPECT_TRUE(begins(key, open));
}

TEST_F(ApiKeysTest, TokensOfAMinuteAreBoundedAndComeBackWithTime) {
  const ApiKey key("alice", {.tokens_per_minute = 60});
  std::vector<std::shared_ptr<const void>> open;
  const TimePoint start(std::chrono::hours(1));
  const auto after = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  EXPECT_TRUE(begins(key, open, start));
  key.spend(90, start);
  const auto refused = key.begin(after(10)).error();
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.retry_after_s, 21) << "30 were too many, 10 have come back";
  EXPECT_TRUE(begins(key, open, after(31)));
  key.spend(1, after(31));
  EXPECT_FALSE(begins(key, open, after(31)));
  EXPECT_TRUE(begins(key, open, after(3600)));
  key.spend(60, after(3600));
  EXPECT_FALSE(begins(key, open, after(3600))) << "an hour saves no more than a minute's";
}

TEST_F(ApiKeysTest, WhoHasOverdrawnYearsIsToldADay) {
  const ApiKey key("alice", {.tokens_per_minute = 1});
  const TimePoint start(std::chrono::hours(1));
  EXPECT_TRUE(key.begin(start));
  key.spend(std::int64_t{1} << 40, start);
  EXPECT_EQ(key.begin(start).error().retry_after_s, 86'401);
}

TEST(KeyOfAuthorization, IsABearersOrAPassword) {
  EXPECT_EQ(key_of_authorization("Bearer secret"), "secret");
  EXPECT_EQ(key_of_authorization("bearer secret"), "secret");
  EXPECT_EQ(key_of_authorization("Basic bWU6c2VjcmV0"), "secret") << "me:secret";
  EXPECT_EQ(key_of_authorization("Basic OnNlY3JldA=="), "secret") << ":secret";
  EXPECT_EQ(key_of_authorization("Basic bTpzZQ=="), "se") << "m:se";
  for (const char* wrong : {"", "secret", "Bearer", "Digest secret", "Basic", "Basic ", "Basic secret",
                            "Basic c2VjcmV0", "Basic ====", "Basic bWU6c2Vjcm!!"})
    EXPECT_EQ(key_of_authorization(wrong), "") << wrong;
}

}  // namespace
}  // namespace outrider
