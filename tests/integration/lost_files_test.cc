// Files that are cut short, full or left behind while the program uses them.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"
#include "tests/support/http_client.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

std::string pack_to(const std::filesystem::path& dir) {
  Program pack({"pack", nano_pair().backbone, "--dtype", "f32", "-o", dir});
  return describe(pack.wait());
}

TEST(LostFiles, OutputThatCannotBeWrittenIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const std::string& arguments :
       {std::string("--version"), std::string("inspect --help"), "inspect " + nano_pair().backbone.string()}) {
    const int status = std::system(fmt::format("{} {} > /dev/full 2> /dev/null", OUTRIDER_PROGRAM, arguments).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << arguments;
  }
}

TEST(LostFiles, AModelThatIsCutShortWhileItIsInUseIsNamed) {
  TemporaryDir dir;
  ASSERT_EQ(pack_to(dir / "model"), "exit 0");
  const auto weights = dir / "model/weights.bump";
  Serve serve({"--backbone", dir / "model", "--draft-length", "0"}, /*wait_until_ready=*/false);
  ASSERT_TRUE(eventually([&] { return serve.workers() == 1 || !serve.program.running(); }));
  std::filesystem::resize_file(weights, 4096);
  Connection client(serve.port);
  client.send("POST", "/v1/completions", R"({"prompt": "Once upon a time", "max_tokens": 5})");
  EXPECT_EQ(describe(serve.program.wait()), "exit 1");
  EXPECT_EQ(serve.program.err(),
            fmt::format("outrider: {}: a part that was there is gone: the file was cut short while it was in use, or "
                        "its disk failed\n",
                        weights.string()));
}

TEST(LostFiles, WhatAKilledPackHasLeftTheNextOneRemoves) {
  TemporaryDir dir;
  const auto abandoned = dir.write("model.partial-1/weights.bump", "some").parent_path();  // as it was called before
  const auto under_way = dir.write("model.partial-2/weights.bump", "some").parent_path();
  const auto another = dir.write("model2.partial-3/weights.bump", "some").parent_path();
  const int lock = open(under_way.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  EXPECT_EQ(pack_to(dir / "model"), "exit 0");
  EXPECT_FALSE(std::filesystem::exists(abandoned));
  EXPECT_TRUE(std::filesystem::exists(under_way)) << "somebody writes it";
  EXPECT_TRUE(std::filesystem::exists(another));
  close(lock);
}

}  // namespace
}  // namespace outrider
