// What ends a role's process, with which status, and where its coordinator can be found.
#include "launch/lifetime.h"

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "common/os/files.h"
#include "common/wire/transport/reachable.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

std::string first_line(const Program& program) { return program.out().substr(0, program.out().find('\n')); }

bool listens(const Program& program) { return program.out().find('\n') != std::string::npos; }

TEST(Lifetime, EverySignalThatBatchSystemsSendIsARequestToEnd) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    Program program({"coordinator", "--listen", "tcp://127.0.0.1:0"});
    ASSERT_TRUE(eventually([&] { return listens(program); }));
    program.send(signal);
    EXPECT_EQ(describe(program.wait()), "exit 0") << "signal " << signal;
  }
}

TEST(Lifetime, ASecondSignalEndsTheProcessAtOnce) {
  const auto stubborn = [] {
    (void)Lifetime().run([](std::stop_token stop) -> Result<void> {
      kill(getpid(), SIGTERM);
      while (!stop.stop_requested()) usleep(1000);
      kill(getpid(), SIGUSR1);
      while (true) pause();
    });
  };
  EXPECT_EXIT(stubborn(), testing::ExitedWithCode(143), "");
}

TEST(Lifetime, ARoleEndsAMinuteBeforeItsDeadline) {
  Program program({"coordinator", "--listen", "tcp://127.0.0.1:0", "--deadline", "61s"});
  EXPECT_EQ(describe(program.wait()), "exit 0");
  Program other({"coordinator", "--listen", "tcp://127.0.0.1:0", "--deadline", "soon"});
  EXPECT_EQ(describe(other.wait()), "exit 1");
  EXPECT_EQ(lines_with(other.err(), {"outrider: --deadline is 'soon', wanted a local time"}).size(), 1u) << other.err();
}

TEST(Lifetime, WhatHasNotEndedByItsDeadlineIsEnded) {
  const auto stubborn = [] {
    (void)Lifetime{.with_stdin = false, .deadline = "6s"}.run([](std::stop_token stop) -> Result<void> {
      while (!stop.stop_requested()) usleep(1000);
      while (true) pause();
    });
  };
  EXPECT_EXIT(stubborn(), testing::ExitedWithCode(143), "");
}

TEST(Lifetime, TheEndOfStandardInputEndsARoleIfWanted) {
  Program held({"coordinator", "--listen", "tcp://127.0.0.1:0", "--exit-with-stdin"}, Program::Input::kWritten);
  Program other({"coordinator", "--listen", "tcp://127.0.0.1:0"}, Program::Input::kWritten);
  ASSERT_TRUE(eventually([&] { return listens(held) && listens(other); }));
  held.write("what is written there is of no interest\n");
  other.end_input();
  TransportContext context;
  EXPECT_EQ(status_of(context, first_line(held)).sessions, 0) << "it still answers";
  held.end_input();
  EXPECT_EQ(describe(held.wait()), "exit 0");
  EXPECT_EQ(status_of(context, first_line(other)).sessions, 0) << "nobody asked this one to end";
}

TEST(Lifetime, AWorkerWithoutCoordinatorEndsWithStatus75) {
  for (const char* role : {"verifier", "drafter"}) {
    Program program({role, "--join", "tcp://127.0.0.1:" + std::to_string(free_port()), "--exit-when-alone", "1"});
    EXPECT_EQ(describe(program.wait()), "exit 75");
    EXPECT_EQ(lines_with(program.err(), {"outrider: no coordinator for 1 s"}).size(), 1u) << program.err();
  }
}

TEST(Lifetime, AWorkerIsInTheBooksUnderItsName) {
  Coordinator coordinator;
  Program drafter({"drafter", "--join", coordinator.address, "--name", "drafter.7", "--exit-when-alone", "60"});
  TransportContext context;
  EXPECT_TRUE(eventually([&] {
    const Status status = status_of(context, coordinator.address);
    return status.workers.size() == 1 && status.workers[0].name == "drafter.7";
  }));
}

TEST(Lifetime, TheReadyFileIsThereWhileTheWorkerIsInTheBooks) {
  const TemporaryDir dir;
  const std::string file = dir / "joined";
  std::ofstream(file) << "left by an earlier process";
  const Coordinator coordinator;
  const int port = free_port();
  Program drafter({"drafter", "--join", "tcp://127.0.0.1:" + std::to_string(port), "--ready-file", file});
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(file); })) << "no coordinator is there";
  Program late({"coordinator", "--listen", "tcp://127.0.0.1:" + std::to_string(port)});
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(file); }));
  late.send(SIGKILL);
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(file); })) << "the coordinator is gone";
  Program other({"drafter", "--join", coordinator.address, "--ready-file", file});
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(file); }));
  other.send(SIGTERM);
  EXPECT_EQ(describe(other.wait()), "exit 0");
  EXPECT_FALSE(std::filesystem::exists(file));
  Program refused({"drafter", "--join", coordinator.address, "--ready-file", "/nowhere/at/all"});
  EXPECT_EQ(describe(refused.wait()), "exit 1");
  EXPECT_EQ(lines_with(refused.err(), {"outrider: ", "--ready-file /nowhere/at/all"}).size(), 1u) << refused.err();
}

TEST(AddressFile, HasWhereTheCoordinatorCanBeDialled) {
  const TemporaryDir dir;
  const std::filesystem::path file = dir / "coordinator.address";
  Program program({"coordinator", "--listen", "tcp://127.0.0.1:0", "--address-file", file});
  ASSERT_TRUE(eventually([&] { return listens(program); }));
  EXPECT_EQ(read_text(file).value(), first_line(program) + "\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "the unfinished file is gone";
}

TEST(AddressFile, LoopbackIsNoAddressForOthers) {
  EXPECT_EQ(reachable_addresses("tcp://127.0.0.1:7070"), std::vector<std::string>{"tcp://127.0.0.1:7070"});
  for (const std::string& address : reachable_addresses("tcp://0.0.0.0:7070")) {
    EXPECT_FALSE(address.starts_with("tcp://127.") || address.starts_with("tcp://0.")) << address;
    EXPECT_TRUE(address.ends_with(":7070")) << address;
  }
}

TEST(AddressFile, ThatCannotBeWrittenIsNamed) {
  Program program({"coordinator", "--listen", "tcp://127.0.0.1:0", "--address-file", "/nowhere/at/all"});
  EXPECT_EQ(describe(program.wait()), "exit 1");
  EXPECT_EQ(lines_with(program.err(), {"outrider: ", "/nowhere/at/all"}).size(), 1u) << program.err();
}

}  // namespace
}  // namespace outrider
