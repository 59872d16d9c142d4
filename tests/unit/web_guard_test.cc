#include "server/web_guard.h"

#include <string>

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(WebGuard, OnlyNamesThatNobodyElseCanPointHereAreTaken) {
  const WebGuard guard({"localhost", "Server.lan"}, {});
  for (const char* host : {"localhost", "LOCALHOST:8000", "127.0.0.1:8000", "192.168.1.7", "[::1]:8000", "[fe80::1]",
                           "server.lan:80", "page.localhost:8000"})
    EXPECT_FALSE(guard.check_host(host)) << host;
  for (const char* host : {"evil.example",
                           "evil.example:8000",
                           "localhost.evil.example",
                           "127.0.0.1.evil.example",
                           "localhost@evil.example",
                           "1.2.3",
                           "",
                           ":8000",
                           "[evil.example]",
                           "evil.example:[::1]",
                           "[",
                           "server.lan.",
                           "2130706433",
                           "localhost:80.evil.example",
                           "localhost:80:80",
                           "localhost:8o",
                           "localhost:-1",
                           "localhost:70000",
                           "[::1]80",
                           "[::1].evil.example",
                           "[::1]:80.evil.example",
                           "[127.0.0.1]",
                           "::1",
                           "127.0.0.1:80@evil.example",
                           "localhost:80/x"}) {
    const auto refused = guard.check_host(host);
    ASSERT_TRUE(refused) << host;
    EXPECT_EQ(refused->status, 403);
  }
  EXPECT_FALSE(WebGuard({"*"}, {}).check_host("evil.example"));
}

TEST(WebGuard, OnlyItsOwnPagesAndThoseThatItWasToldOfMayAsk) {
  const WebGuard guard({"localhost"}, {"https://chat.example"});
  for (const char* origin : {"http://localhost:8000", "https://localhost:8000", "https://chat.example"})
    EXPECT_FALSE(guard.check_origin(origin, "LocalHost:8000")) << origin;
  for (const char* origin : {"http://evil.example", "null", "", "http://localhost", "http://localhost:80",
                             "http://chat.example", "https://chat.example.evil.example", "localhost:8000"}) {
    const auto refused = guard.check_origin(origin, "localhost:8000");
    ASSERT_TRUE(refused) << origin;
    EXPECT_EQ(refused->status, 403);
  }
  EXPECT_TRUE(guard.shares_with("https://chat.example"));
  EXPECT_FALSE(guard.shares_with("http://localhost:8000")) << "needs no leave";
  EXPECT_FALSE(WebGuard({}, {"*"}).check_origin("http://evil.example", "localhost"));
}

TEST(WebGuard, WhatNothingCanMatchIsNamed) {
  for (const char* host : {"*", "llm.example", "LLM.Example", "localhost", "127.0.0.1"}) {
    EXPECT_EQ(wrong_host(host), "");
    EXPECT_FALSE(WebGuard({host}, {}).check_host(host == std::string("*") ? "any.example" : host)) << host;
  }
  for (const char* host :
       {"", "llm.example:8000", "llm.example:", "https://llm.example", "llm.example/", "*.example", "a b", "[::1]"})
    EXPECT_NE(wrong_host(host), "") << host;
  for (const char* origin : {"*", "null", "file://", "https://chat.example", "HTTPS://chat.example",
                             "http://localhost:3000", "http://[::1]:3000", "chrome-extension://abcdef",
                             "https://chat.example:80"}) {
    EXPECT_EQ(wrong_origin(origin), "");
    EXPECT_FALSE(WebGuard({}, {origin}).check_origin(origin, "localhost")) << origin;
  }
  for (const char* origin : {"", "https://chat.example/", "https://chat.example/x", "chat.example", "localhost:3000",
                             "https://", "://chat.example", "https://*.example", "https://chat.example:443",
                             "http://chat.example:80", "https://user@chat.example", "https://chat.example:"})
    EXPECT_NE(wrong_origin(origin), "") << origin;
}

TEST(WebGuard, AServerKnowsItsOwnNames) {
  const auto names = own_names("server.lan");
  EXPECT_EQ(names[0], "localhost");
  EXPECT_EQ(names[1], "server.lan");
}

}  // namespace
}  // namespace outrider
