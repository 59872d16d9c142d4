// The program's sweep with nano: what it leaves behind, and what a kill leaves whole.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/compute/kernels/isa.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "lab/experiment/journal.h"
#include "lab/statistics.h"
#include "tests/support/program.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

/// Quick and never void: what is measured is of no interest here.
constexpr const char* kPlan = R"({"prompts": ["Count from 3 to 20.", "Tell me a story."], "repeats": 3, "seconds": 0,
  "void": {"spread": 1000, "steal": 1, "others": 1, "bandwidth": 1000},
  "sweeps": [{"output": [12], "rtt_ms": [0, 3], "draft_length": [2, "auto"]}]})";

/// Empty also where the process of a /proc file ends during the read.
std::string whole(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

/// As /proc has it; 0: there is no such process, or it has ended.
char state_of(pid_t pid) {
  const std::string stat = whole(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = stat.rfind(')');
  const char state = name_end == stat.npos ? 'Z' : stat.at(name_end + 2);
  return state == 'Z' ? '\0' : state;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::istringstream text(whole(fmt::format("/proc/{0}/task/{0}/children", parent)));
  for (pid_t pid = 0; text >> pid;) children.push_back(pid);
  return children;
}

std::vector<Json> lines_of(const std::filesystem::path& path) {
  const auto lines = read_journal(path);
  return lines ? *lines : std::vector<Json>();
}

TEST(Experiment, AKilledSweepResumesWithNoCellLostOrMeasuredTwice) {
  const TemporaryDir dir;
  const std::string plan = dir.write("plan.json", kPlan).string(), out = (dir / "out").string();
  const auto cells = dir / "out/cells.jsonl", requests = dir / "out/requests.jsonl";
  {
    Program first({"experiment", plan, "--out", out});
    ASSERT_TRUE(eventually([&] { return lines_of(cells).size() >= 2; })) << first.err();
    first.send(SIGKILL);
    first.wait();
  }
  const std::size_t before = lines_of(cells).size();
  ASSERT_LT(before, 4u);
  // As if the kill had come in the middle of a write.
  ASSERT_TRUE(replace_text(cells, *read_text(cells) + R"({"cell": 9, "att)"));
  ASSERT_TRUE(replace_text(requests, *read_text(requests) + "{\"cell\": 9}\n"));

  Program refused({"experiment", plan, "--out", out});
  EXPECT_EQ(describe(refused.wait()), "exit 1");
  EXPECT_NE(refused.err().find("continue with --resume"), std::string::npos) << refused.err();

  Program second({"experiment", plan, "--out", out, "--resume"});
  ASSERT_EQ(describe(second.wait()), "exit 0");
  std::map<std::int64_t, int> count, asked;
  for (const Json& cell : lines_of(cells)) {
    ++count[cell["cell"].get<std::int64_t>()];
    EXPECT_EQ(cell["texts_equal"], true);
    EXPECT_TRUE(cell["void"].is_null()) << cell["void"];
  }
  EXPECT_EQ(count, (std::map<std::int64_t, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
  for (const Json& request : lines_of(requests)) ++asked[request["cell"].get<std::int64_t>()];
  // Of each cell four arms, three repeats, two prompts.
  EXPECT_EQ(asked, (std::map<std::int64_t, int>{{0, 24}, {1, 24}, {2, 24}, {3, 24}}));
  EXPECT_EQ(lines_of(cells).front()["text"], lines_of(cells).back()["text"]);

  Program report({"experiment", "report", out});
  EXPECT_EQ(describe(report.wait()), "exit 0");
  EXPECT_NE(read_text(dir / "out/report.html")->find("When does a remote drafter pay?"), std::string::npos);

  // As if the cells were those of a running cluster.
  Json lock = Json::parse(*read_text(dir / "out/lock.json"));
  lock["cluster"] = {{"verifiers", 1}};
  ASSERT_TRUE(replace_text(dir / "out/lock.json", lock.dump()));
  Program here({"experiment", plan, "--out", out, "--resume"});
  EXPECT_EQ(describe(here.wait()), "exit 1");
  EXPECT_NE(here.err().find("lock.json: cluster.verifiers has changed"), std::string::npos) << here.err();
}

TEST(Experiment, AnOpenLoopCountsFromTheArrivalAndArrivalsAreTheSameForAllArms) {
  const TemporaryDir dir;
  std::string text = kPlan;
  text.replace(text.find("[{"), std::string::npos, R"([{"output": [12], "request_rate": [200]}]})");
  text.replace(text.find("\"seconds\": 0"), 12, "\"seconds\": 0.02");
  const std::string plan = dir.write("plan.json", text).string();
  Program program({"experiment", plan, "--out", (dir / "out").string()});
  ASSERT_EQ(describe(program.wait()), "exit 0") << program.err();
  std::map<std::int64_t, std::map<std::string, std::multiset<double>>> arrivals;  // by repeat and arm
  std::vector<double> first_tokens;
  for (const Json& request : lines_of(dir / "out/requests.jsonl")) {
    arrivals[request["repeat"]][request["arm"]].insert(request["arrival_s"].get<double>());
    EXPECT_GE(request["waited_ms"].get<double>(), 0);
    if (request["arm"] == "plain") first_tokens.push_back(request["time_to_first_token_ms"]);
    EXPECT_GE(request["latency_ms"].get<double>(),
              request["waited_ms"].get<double>() + request["generation_time_ms"].get<double>());
  }
  ASSERT_EQ(arrivals.size(), 3u);
  for (const auto& [repeat, arms] : arrivals) {
    ASSERT_EQ(arms.size(), 4u);
    EXPECT_EQ(arms.at("plain").size(), 4u);  // 200 a second, for 0.02 s
    for (const auto& [arm, times] : arms) EXPECT_EQ(times, arms.at("plain")) << arm;
  }
  const Json cell = lines_of(dir / "out/cells.jsonl").at(0);
  EXPECT_TRUE(cell["predicted"].is_null());
  EXPECT_EQ(cell["texts_equal"], true);
  EXPECT_GT(cell["arms"]["remote"]["latency_ms"]["p99"], cell["arms"]["remote"]["latency_ms"]["p50"]);
  EXPECT_DOUBLE_EQ(cell["arms"]["plain"]["time_to_first_token_ms"]["p50"], median(first_tokens));
  EXPECT_NE(read_text(dir / "out/report.html")->find("come by the clock"), std::string::npos);
}

TEST(Experiment, AFolderIsForOnePlanAndALockFileIsAPlan) {
  const TemporaryDir dir;
  const std::string plan = dir.write("plan.json", kPlan).string();
  dir.write("out/lock.json", R"({"plan": {"seed": 5}})");
  Program other({"experiment", plan, "--out", (dir / "out").string(), "--resume"});
  EXPECT_EQ(describe(other.wait()), "exit 1");
  EXPECT_NE(other.err().find("lock.json: plan."), std::string::npos) << other.err();
  const std::string lock = dir.write("lock.json", fmt::format(R"({{"plan": {}}})", kPlan)).string();
  Program dry({"experiment", lock, "--dry-run"});
  EXPECT_EQ(describe(dry.wait()), "exit 0");
  EXPECT_NE(dry.out().find("4 cells take "), std::string::npos) << dry.out();
}

/// kPlan with these sweeps, and `more` of its keys.
std::string plan_with(const std::string& sweeps, const std::string& more = "") {
  std::string text = kPlan;
  text.replace(text.find("[{"), std::string::npos, sweeps + more + "}");
  return text;
}

TEST(Experiment, LaunchesWhatItsPlanSaysWithTheAxesOfEachCell) {
  const TemporaryDir dir;
  dir.write("cluster.json", R"({"verifiers": [{}], "drafters": [{}]})");
  const std::string plan = dir.write("plan.json", plan_with(R"([{"output": [12], "threads": [1], "drafters": [1, 2]}])",
                                                            R"(, "launch": "cluster.json")"))
                               .string();
  Program program({"experiment", plan, "--out", (dir / "out").string()});
  ASSERT_EQ(describe(program.wait()), "exit 0") << program.err();
  const std::vector<Json> cells = lines_of(dir / "out/cells.jsonl");
  ASSERT_EQ(cells.size(), 2u);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    EXPECT_EQ(cells[i]["texts_equal"], true);
    EXPECT_EQ(cells[i]["arms"].size(), 4u);
    EXPECT_GT(cells[i]["arms"]["remote"]["drafted_tokens"], 0);
    EXPECT_TRUE(cells[i]["predicted"].is_object());
    const auto drafters_of = [&](const char* arm) {
      const auto text = read_text(dir / "out/launched" / std::to_string(i) / arm / "plan.json");
      const Json launched = text ? Json::parse(*text) : Json::object();
      return launched.contains("drafters") ? launched["drafters"][0]["count"].get<int>() : 0;
    };
    EXPECT_EQ(drafters_of("remote"), cells[i]["axes"]["drafters"]);
    EXPECT_EQ(drafters_of("colocated"), cells[i]["axes"]["drafters"]);
    EXPECT_EQ(drafters_of("plain"), 0);
  }
  EXPECT_EQ(cells[0]["text"], cells[1]["text"]);
  // lock.json needs no other file.
  const Json lock = Json::parse(*read_text(dir / "out/lock.json"));
  EXPECT_TRUE(lock["plan"]["launch"].is_object());
}

TEST(Experiment, RefusesByNameWhatALaunchedClusterOrThisCpuCannotHave) {
  const TemporaryDir dir;
  const auto refusal = [&](const std::string& text) {
    const std::string plan = dir.write("plan.json", text).string();
    Program program({"experiment", plan, "--out", (dir / "out").string()});
    EXPECT_EQ(describe(program.wait()), "exit 1");
    return program.err();
  };
  const std::string launch = R"(, "launch": {"verifiers": [{}], "drafters": [{}]})";
  EXPECT_NE(refusal(plan_with(R"([{"rtt_ms": [5]}])", launch)).find("rtt_ms is 5.0, but a launched cluster has"),
            std::string::npos);
  EXPECT_NE(refusal(plan_with(R"([{"drafter_cpu_share": [0.5]}])", launch)).find("drafter_cpu_share is 0.5, but"),
            std::string::npos);
  EXPECT_NE(
      refusal(plan_with(R"([{"threads": [1]}])", R"(, "launch": {"verifiers": [{"threads": 2}], "drafters": [{}]})"))
          .find("launch: verifiers[0].threads is 2, which the axis threads says"),
      std::string::npos);
  EXPECT_NE(
      refusal(plan_with(R"([{"output": [12]}])", R"(, "launch": {"verifiers": [{"thread": 2}], "drafters": [{}]})"))
          .find("verifiers[0].thread is no known key; the nearest is threads"),
      std::string::npos);
  if (detect_isa() == isas().back()) return;  // this CPU has them all
  const std::string strongest = to_string(isas().back());
  EXPECT_NE(
      refusal(plan_with(fmt::format(R"([{{"drafter_isa": ["{}"]}}])", strongest)))
          .find(fmt::format("drafter_isa is \"{}\", but this CPU has only {}", strongest, to_string(detect_isa()))),
      std::string::npos);
}

TEST(Experiment, ADraftersCpuAndItsInstructionSetAreAxesAndAKillLeavesNoneStopped) {
  const TemporaryDir dir;
  const std::string plan = dir.write("plan.json", plan_with(R"([{"output": [12], "drafter_isa": ["scalar"],
                                            "drafter_cpu_share": [1, 0.25]}])"))
                               .string();
  {
    Program first({"experiment", plan, "--out", (dir / "out").string()});
    ASSERT_TRUE(eventually([&] { return !lines_of(dir / "out/cells.jsonl").empty(); })) << first.err();
    // In the second cell the remote drafter is stopped again and again, and only it.
    std::vector<pid_t> children;
    EXPECT_TRUE(eventually([&] {
      children = children_of(first.pid());
      return std::ranges::count_if(children, [](pid_t pid) { return state_of(pid) == 'T'; }) == 1;
    })) << first.err();
    first.send(SIGKILL);
    first.wait();
    EXPECT_TRUE(
        eventually([&] { return std::ranges::none_of(children, [](pid_t pid) { return state_of(pid) != 0; }); }));
  }
  Program second({"experiment", plan, "--out", (dir / "out").string(), "--resume"});
  ASSERT_EQ(describe(second.wait()), "exit 0") << second.err();
  std::set<std::string> texts;
  for (const Json& cell : lines_of(dir / "out/cells.jsonl")) {
    EXPECT_EQ(cell["texts_equal"], true);
    texts.insert(cell["text"]);
  }
  EXPECT_EQ(texts.size(), 1u);  // whatever the drafter is, the text is the backbone's
}

}  // namespace
}  // namespace outrider
