// Plans: every key is read or refused by name, hosts are expanded, and processes are placed on them.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "common/os/child.h"
#include "launch/cluster/backend.h"
#include "launch/cluster/deadline.h"
#include "launch/cluster/facts.h"
#include "launch/cluster/host_set.h"
#include "launch/cluster/kubernetes.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"
#include "launch/cluster/run_folder.h"
#include "launch/cluster/slurm.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using nlohmann::json;

/// Two verifiers, drafters on every host, and an encoder.
json example() {
  return json::parse(R"({
    "program": "/opt/outrider", "model": "/srv/e4b", "dtype": "int8",
    "hosts": [{"name": "node[1-3]", "address": "10.0.0.[1-3]", "ssh": ["-p", "2222"], "cpus": 8}],
    "coordinator": {"hosts": "node1", "max_requests": 64},
    "verifiers": [{"count": 2, "hosts": "node[1-2]", "threads": 8, "cpuset": "0-7", "environment": {"A": "b c"}}],
    "drafters": [{"hosts": "node[1-3],node3", "exit_when_alone": 30}],
    "encoders": [{"hosts": "node3", "threads": 4}],
    "run": [{"command": ["outrider", "run", "Hi.", "--connect", "{coordinator}"]}]
  })");
}

std::string error_of(const json& plan) {
  const Result<Plan> read = read_plan(plan, "p.json");
  if (!read) return read.error().message;
  const Result<ProcessPlan> processes = plan_processes(*read, false);
  return processes ? "" : processes.error().message;
}

TEST(HostSet, IsExpandedAsSlurmDoes) {
  const auto names = [](const char* set) { return expand_host_set(set).value(); };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("a"), (Names{"a"}));
  EXPECT_EQ(names("node[1-3,7],gpu"), (Names{"node1", "node2", "node3", "node7", "gpu"}));
  EXPECT_EQ(names("n[08-10]x"), (Names{"n08x", "n09x", "n10x"}));
  EXPECT_EQ(names("r[1-2]n[0,3]"), (Names{"r1n0", "r1n3", "r2n0", "r2n3"}));
}

TEST(Backend, OfSlurmIsAStepOnTheNodeOfTheAddress) {
  EXPECT_EQ(command_on(Backend::kSrun, {.name = "a", .address = "n1", .ssh = {"-p", "1"}}, {"echo", "b c"}),
            (std::vector<std::string>{"srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n1",
                                      "--kill-on-bad-exit=0", "--no-kill", "sh", "-c", "exec echo 'b c'"}));
  for (const Backend backend : {Backend::kLocal, Backend::kSsh, Backend::kSrun})
    EXPECT_EQ(backend_named(to_string(backend)), backend);
  EXPECT_FALSE(backend_named("slurm"));
}

TEST(Deadline, IsATimeOrADuration) {
  const auto left = [](const char* text) {
    const std::chrono::duration<double> seconds =
        parse_deadline(text).value().value() - std::chrono::system_clock::now();
    return seconds.count();
  };
  EXPECT_NEAR(left("90s"), 90, 5);
  EXPECT_NEAR(left("15m"), 900, 5);
  EXPECT_NEAR(left("2h"), 7200, 5);
  for (const char* far : {"9999999h", "2147483647h", "9999-12-31T23:59:59"}) EXPECT_GT(left(far), 1e9) << far;
  EXPECT_LT(left("0001-01-01T00:00:00"), 0);
  EXPECT_FALSE(parse_deadline("").value());
  const WallTime time = parse_deadline("2026-11-22T19:00:00").value().value();
  EXPECT_EQ(parse_deadline("2026-11-22T19:00:01").value().value() - time, std::chrono::seconds(1));
  for (const char* text :
       {"tomorrow", "90", "s", "-5s", "5d", "2h5m", "99999999999s", "2026-11-22", "2026-11-22T19:00:00Z"}) {
    const auto deadline = parse_deadline(text);
    ASSERT_FALSE(deadline) << text;
    EXPECT_NE(deadline.error().message.find(std::string("'") + text + "', wanted"), std::string::npos);
  }
}

TEST(HostSet, HasAtMost4096NamesHoweverTheyAreWritten) {
  std::string names = "n0";
  for (int i = 1; i < 4096; ++i) names += fmt::format(",n{}", i);
  EXPECT_TRUE(expand_host_set(names));
  EXPECT_FALSE(expand_host_set(names + ",n4096"));
  EXPECT_FALSE(expand_host_set("n[1-4097]"));
}

TEST(HostSet, WhatIsNoneIsNamed) {
  const std::string wide = "n[" + std::string(1 << 20, '0') + "-1]";
  for (const char* set : {"", "a,", "n[", "n]", "n[]", "n[3-1]", "n[x]", "n[1][2][3][4][5][6]", "n[1-99][1-99]",
                          "n[1-99999]", "n[1-9999999999]", "../x", "a/b", "-oProxyCommand=x", ".", wide.c_str()}) {
    const Result<std::vector<std::string>> names = expand_host_set(set);
    ASSERT_FALSE(names) << set;
    EXPECT_NE(names.error().message.find("host set '"), std::string::npos) << names.error().message;
    EXPECT_LT(names.error().message.size(), 400u);
  }
}

TEST(Plan, ProcessesGoToTheirHostsInTurn) {
  const Plan plan = read_plan(example(), "p.json").value();
  const ProcessPlan processes = plan_processes(plan, false).value();
  std::string places;
  for (const PlannedProcess& process : processes.processes)
    places += process.name + "@" + process.host.name + "=" + process.host.address + " ";
  EXPECT_EQ(places,
            "coordinator@node1=10.0.0.1 verifier.0@node1=10.0.0.1 verifier.1@node2=10.0.0.2 drafter.0@node1=10.0.0.1 "
            "drafter.1@node2=10.0.0.2 drafter.2@node3=10.0.0.3 drafter.3@node3=10.0.0.3 encoder.0@node3=10.0.0.3 ");
  EXPECT_EQ(processes.listen, "tcp://0.0.0.0:*");
  EXPECT_EQ(plan_processes(plan, /*one_host=*/true)->listen, "tcp://127.0.0.1:*");
  EXPECT_EQ(shell_line(processes.processes[1].command("/opt/outrider", {"--join", "x"})),
            "env 'A=b c' taskset -c 0-7 /opt/outrider verifier --name verifier.0 --model /srv/e4b --dtype int8 "
            "--threads 8 --exit-when-alone 60 --exit-with-stdin --join x");
}

TEST(Plan, ADeadlineIsTheProcesssOwn) {
  json plan = example();
  plan["drafters"][0]["deadline"] = "slurm";
  plan["coordinator"]["deadline"] = "2h";
  const ProcessPlan processes = plan_processes(read_plan(plan, "p.json").value(), false).value();
  EXPECT_EQ(shell_line(processes.processes[0].command("o", {})),
            "o coordinator --max-requests 64 --deadline 2h --exit-with-stdin");
  EXPECT_EQ(shell_line(processes.processes.back().command("o", {})),
            "o encoder --name encoder.0 --model /srv/e4b --dtype int8 --threads 4 --exit-when-alone 60 "
            "--exit-with-stdin");
  EXPECT_FALSE(processes.processes.back().required());
  EXPECT_EQ(shell_line(processes.processes[6].command("o", {})),
            "o drafter --name drafter.3 --model /srv/e4b --dtype int8 --exit-when-alone 30 --deadline slurm "
            "--exit-with-stdin");
  plan["drafters"][0]["deadline"] = "late";
  EXPECT_NE(error_of(plan).find("drafter.0: --deadline is 'late', wanted a local time"), std::string::npos)
      << error_of(plan);
}

TEST(Plan, ShardsJoinAtAddressesLikeTheCoordinators) {
  json plan = example();
  plan["verifiers"][0].update({{"count", 1}, {"shards", 2}, {"shard_hosts", "node2"}});
  for (const auto& [listen, at] : {std::pair("", "tcp://0.0.0.0:*"), {"tcp://[::]:7070", "tcp://[::]:*"}}) {
    plan["coordinator"]["listen"] = listen;
    const ProcessPlan processes = plan_processes(read_plan(plan, "p.json").value(), false).value();
    EXPECT_TRUE(processes.processes[1].listens_for_shards());
    EXPECT_EQ(processes.processes[1].options.back(), at);
    EXPECT_EQ(processes.processes[2].name, "verifier.0.shard.1");
  }
}

TEST(Plan, ShardsAreANumberOrAuto) {
  json plan = example();
  for (const auto& [value, option] : {std::pair<json, const char*>(3, " --shards 3 "), {"auto", " --shards auto "}}) {
    plan["verifiers"][0]["shards"] = value;
    const ProcessPlan processes = plan_processes(read_plan(plan, "p.json").value(), false).value();
    const std::string line = shell_line(processes.processes[1].command("o", {}));
    EXPECT_NE(line.find(option), std::string::npos) << line;
  }
  for (const json& wrong : {json(0), json(65), json("0"), json("all")}) {
    plan["verifiers"][0]["shards"] = wrong;
    EXPECT_NE(error_of(plan).find("verifiers[0].shards is "), std::string::npos) << error_of(plan);
  }
}

TEST(Plan, TheSmallestOneIsForThisHost) {
  const Plan plan = read_plan(json::parse(R"({"verifiers": [{}]})"), "p.json").value();
  const ProcessPlan processes = plan_processes(plan, false).value();
  ASSERT_EQ(processes.processes.size(), 2u);
  EXPECT_EQ(processes.processes[1].host.name, "localhost");
  EXPECT_EQ(processes.listen, "tcp://127.0.0.1:*");
}

TEST(Plan, AnUnknownKeyNamesItselfAndItsNearestNeighbour) {
  struct Case {
    const char* at;
    const char* key;
    const char* nearest;
  };
  for (const auto& [at, key, nearest] : {Case{"", "drafter", "drafters"},
                                         {"/hosts/0", "cpu", "cpus"},
                                         {"/coordinator", "max_request", "max_requests"},
                                         {"/verifiers/0", "thread", "threads"},
                                         {"/drafters/0", "exit_alone", "exit_when_alone"},
                                         {"/run/0", "comand", "command"},
                                         {"/slurm", "shap", "shape"},
                                         {"/kubernetes", "images", "image"}}) {
    json plan = example();
    plan[json::json_pointer(at)][key] = 1;
    const std::string error = error_of(plan);
    EXPECT_NE(error.find(std::string(key) + " is no known key; the nearest is " + nearest), std::string::npos) << error;
  }
}

/// Sets a key to a value of a wrong type, at every place that the schema has. Calls `check` with the plan and the key.
void spoil_every_key(const json& schema, const json::json_pointer& at,
                     const std::function<void(json, std::string)>& check) {
  for (const auto& [key, of_key] : schema["properties"].items()) {
    if (!of_key.contains("type") && !of_key.contains("enum")) continue;
    const json::json_pointer here = at / key;
    json plan = example();
    const bool number = of_key.contains("type") && (of_key["type"] == "integer" || of_key["type"] == "number");
    plan[here] = number ? json("x") : json(-7);
    check(plan, key);
    if (of_key.contains("minimum")) {
      plan[here] = of_key["minimum"].get<std::int64_t>() - 1;
      check(plan, key);
    }
    if (of_key.contains("properties")) spoil_every_key(of_key, here, check);
    if (of_key.contains("items") && of_key["items"].contains("properties"))
      spoil_every_key(of_key["items"], here / std::size_t{0}, check);
  }
}

TEST(Plan, ItsSchemaAndItsReaderAgreeOnEveryKey) {
  const json schema = plan_schema();
  int keys = 0;
  spoil_every_key(schema, json::json_pointer(), [&](const json& plan, const std::string& key) {
    ++keys;
    const std::string error = error_of(plan);
    EXPECT_NE(error.find(key), std::string::npos) << "of " << key << ": '" << error << "'";
    EXPECT_EQ(error.find("is no key"), std::string::npos) << error;
  });
  EXPECT_GT(keys, 40);
  EXPECT_EQ(schema["required"], json({"verifiers"}));
}

TEST(Plan, WhatDoesNotFitIsNamed) {
  const auto with = [](const char* at, const json& value) {
    json plan = example();
    plan[json::json_pointer(at)] = value;
    return error_of(plan);
  };
  const auto expect = [](const std::string& error, const char* part) {
    EXPECT_NE(error.find(part), std::string::npos) << "no '" << part << "' in: " << error;
  };
  expect(with("/drafters/0/hosts", "node9"), "drafters[0].hosts: node9 is none of the plan's hosts");
  expect(with("/hosts/0/address", "10.0.0.[1-2]"), "has 3 names, its address '10.0.0.[1-2]' 2");
  expect(with("/hosts/1", {{"name", "node2"}}), "node2 is there twice");
  expect(with("/verifiers/0/threads", 9), "9 threads on node1, which has 8 CPUs");
  for (const char* local : {"tcp://127.0.0.1:7070", "tcp://localhost:7070", "tcp://[::1]:7070"})
    expect(with("/coordinator/listen", local), "which other hosts cannot dial");
  expect(with("/verifiers", json::array()), "verifiers is an array of 0, wanted an array of one object or more");
  expect(with("/slurm", {{"shape", "round"}}), "slurm.shape is \"round\", wanted one or het or elastic");
}

TEST(HostFile, PlacesRoles) {
  json plan = {{"drafters", {{{"dtype", "int8"}}}}};
  ASSERT_TRUE(place_on_hosts(
      plan, "# ours\nbig role=verifier\nbig role=coordinator\nsmall address=10.0.0.7 slots=2\nbig role=encoder", "h"));
  const Plan read = read_plan(plan, "p.json").value();
  const ProcessPlan processes = plan_processes(read, false).value();
  ASSERT_EQ(processes.processes.size(), 5u);
  EXPECT_EQ(processes.processes[4].name, "encoder.0");
  EXPECT_EQ(processes.processes[3].name, "drafter.1");
  EXPECT_EQ(processes.processes[3].host.address, "10.0.0.7");
  json marked = json::object(), plain = json::object();  // an editor of Windows wrote it
  ASSERT_TRUE(place_on_hosts(marked, "big role=verifier\r\nsmall slots=2", "h"));
  ASSERT_TRUE(place_on_hosts(plain, "big role=verifier\nsmall slots=2\n", "h"));
  EXPECT_EQ(marked, plain);
  for (const char* line : {"a role=king", "a slots=0", "a slots=x", "a b"}) {
    json again = json::object();
    const Result<void> placed = place_on_hosts(again, line, "hosts.txt");
    ASSERT_FALSE(placed) << line;
    EXPECT_TRUE(placed.error().message.starts_with("hosts.txt:1: ")) << placed.error().message;
  }
}

TEST(HostFile, IsMadeOfWhatALauncherSaysInTheEnvironment) {
  const auto text_of = [](const std::string& variable, const char* value) {
    return host_file_of_environment([&](const char* name) { return name == variable ? value : nullptr; });
  };
  const char* const three = "10.0.0.1 role=verifier\n10.0.0.2\n10.0.0.3\n";
  EXPECT_EQ(text_of("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n10.0.0.3").value(), three);
  EXPECT_EQ(text_of("DSTACK_NODES_IPS", "10.0.0.1\n10.0.0.2\n10.0.0.3\n").value(), three);
  EXPECT_EQ(text_of("SLURM_JOB_NODELIST", "r[1-2]n[01-02],gpu").value(),
            "r1n01 role=verifier\nr1n02\nr2n01\nr2n02\ngpu\n");
  for (const char* none : {"", "\n", "n["})
    EXPECT_TRUE(text_of("SKYPILOT_NODE_IPS", none).error().message.starts_with("SKYPILOT_NODE_IPS: host set")) << none;
  EXPECT_NE(text_of("OTHER", "a").error().message.find("wanted one"), std::string::npos);
  json of_mpi = json::object(), ours = json::object();
  ASSERT_TRUE(place_on_hosts(of_mpi, "a role=verifier\n# Open MPI's\nb slots=2 max_slots=4\nc max-slots=1", "h"));
  ASSERT_TRUE(place_on_hosts(ours, "a role=verifier\nb slots=2\nc", "h"));
  EXPECT_EQ(of_mpi, ours);
}

TEST(HostFile, IsForAPlanThatDoesNotSayItselfWhereRolesRun) {
  for (const auto& [key, said] : std::initializer_list<std::pair<const char*, json>>{{"coordinator", "here"},
                                                                                     {"coordinator", {{"hosts", "b"}}},
                                                                                     {"drafters", {{{"count", 2}}}},
                                                                                     {"drafters", 1}}) {
    json plan = {{key, said}};
    const Result<void> placed = place_on_hosts(plan, "a\na role=coordinator", "hosts.txt");
    ASSERT_FALSE(placed) << said;
    EXPECT_TRUE(placed.error().message.starts_with(std::string(key) + " is ")) << placed.error().message;
  }
}

TEST(Command, IsFilledInWhereverAValueStands) {
  using Words = std::vector<std::string>;
  const CommandForm form{.values = {{"{coordinator}", "C"}, {"{model}", "{run_dir}"}, {"{run_dir}", "R"}},
                         .program = "P",
                         .client_key = {"--key", "K"},
                         .write = [](const std::string& text) { return "<" + text + ">"; }};
  EXPECT_EQ(fill_in({"outrider", "run", "--connect={coordinator}", "{model}{run_dir}", "", "outrider"}, form),
            (Words{"P", "<run>", "<--connect=>C", "{run_dir}R", "<>", "<outrider>", "--key", "K"}));
  EXPECT_EQ(fill_in({"outrider", "inspect", "{model}/{other}"}, form),
            (Words{"P", "<inspect>", "{run_dir}</{other}>"}));
  EXPECT_EQ(fill_in({"curl", "{coordinator},x"}, form), (Words{"<curl>", "C<,x>"})) << "no program of ours: no key";
}

TEST(Kubernetes, WhatLooksLikeAVariableOfItsOwnIsText) {
  json plan = example();
  plan["hosts"] = {{{"name", "localhost"}}};
  for (const char* role : {"coordinator", "verifiers", "drafters"}) plan.erase(role);
  plan.erase("encoders");
  plan["verifiers"] = {{{"environment", {{"A", "$(B)"}}}}};
  plan["run"] = {{{"command", {"sh", "-c", "echo $(MODEL) $$ {model} {coordinator}"}}}};
  const Plan read = read_plan(plan, "p.json").value();
  const auto files = render_kubernetes(read, plan_processes(read, false).value(), "1").value();
  EXPECT_NE(files[0].text.find("value: \"$$(B)\""), std::string::npos) << files[0].text;
  EXPECT_NE(files[2].text.find(R"("echo $$(MODEL) $$$$ $(MODEL) tcp://outrider-coordinator:7070")"), std::string::npos)
      << files[2].text;
}

TEST(Slurm, TakesNoLimitForATimeAndNothingThatIsNoTime) {
  const auto error = [](const char* option, const char* time) {
    json plan = example();
    plan["slurm"] = {{"header", {{option, time}}}};
    const Plan read = read_plan(plan, "p.json").value();
    const auto scripts = render_slurm(read, plan_processes(read, false).value(), "outrider", "/runs/1");
    return scripts ? "" : scripts.error().message;
  };
  for (const char* time :
       {"0", "00:00:00", "0-0", "UNLIMITED", "infinite", "-1", "1-0", "8:00:00", "4000000000-23:59:59"})
    EXPECT_EQ(error("--time", time), "") << time;
  for (const char* time : {"", "x", "x-10:00", "-5", "1:2:3:4", "1-2:3:4:5", "1-", "5 minutes", "99999999999"})
    EXPECT_NE(error("--time", time).find("is no time, wanted HH:MM:SS or UNLIMITED"), std::string::npos) << time;
  EXPECT_NE(error("-t", "1").find("-t=1 is 60 s; the signal may come 180 s before"), std::string::npos);
}

TEST(Slurm, AHeaderHasItsValuesAsOneWord) {
  json plan = example();
  plan["slurm"] = {{"header", {{"--comment", "it's \"two\" words # 1\\2"}, {"-p", "main"}, {"--exclusive", ""}}}};
  const Plan read = read_plan(plan, "p.json").value();
  const ProcessPlan processes = plan_processes(read, false).value();
  const std::string text = render_slurm(read, processes, "outrider", "/x/run 100%j").value()[0].text;
  for (const char* line :
       {R"(#SBATCH --output="/x/run 100%%j/logs/slurm-%j.log")", R"(#SBATCH --comment="it's \"two\" words # 1\\2")",
        "#SBATCH -p main", "#SBATCH --exclusive"})
    EXPECT_NE(text.find(std::string(line) + "\n"), std::string::npos) << line << " is not in " << text;
  for (const char* run_dir : {"/x\\y", "/x\ny"}) EXPECT_FALSE(render_slurm(read, processes, "outrider", run_dir));
}

TEST(Slurm, WhatIsPutIntoACommandIsNotLookedThroughAgain) {
  json plan = example();
  plan["model"] = "/srv/{model}";
  plan["run"] = {{{"command", {"outrider", "inspect", "{model}", "{run_dir}"}}}};
  const Plan read = read_plan(plan, "p.json").value();
  const auto scripts = render_slurm(read, plan_processes(read, false).value(), "/opt/outrider", "/runs/1").value();
  EXPECT_NE(scripts[0].text.find("run_command \"$program\" inspect '/srv/{model}' /runs/1;"), std::string::npos)
      << scripts[0].text;
}

TEST(Slurm, ACoordinatorThatLeavesByItsOwnDeadlineIsNotLost) {
  json plan = example();
  plan.erase("run");
  const auto has = [&](const char* line) {
    const Plan read = read_plan(plan, "p.json").value();
    return render_slurm(read, plan_processes(read, false).value(), "outrider", "/runs/1").value()[0].text.find(line) !=
           std::string::npos;
  };
  EXPECT_TRUE(has("  kill -0 \"$coordinator_step\" && continue\n  status=4\n"));
  plan["coordinator"]["deadline"] = "slurm";
  EXPECT_TRUE(has("&& continue\n  if wait \"$coordinator_step\"; then break; fi\n  status=4\n"));
}

TEST(Backend, AProcessAnnouncesItself) {
  EXPECT_FALSE(announced_process("outrider-launch process 12 "));
  const auto process = announced_process("Welcome!\noutrider-launch process 12 345\nmore");
  ASSERT_TRUE(process);
  EXPECT_EQ(process->pid, 12);
  EXPECT_EQ(process->start, 345u);
}

/// Whether a process is gone within some seconds.
bool ends(const ProcessId& process) {
  for (int i = 0; i < 1000 && process.alive(); ++i) usleep(10'000);
  return !process.alive();
}

TEST(Child, ASignalReachesAllThatItHasStarted) {
  const std::string log = fmt::format("{}/child.{}.log", testing::TempDir(), getpid());
  Child child = Child::start({"sh", "-c", "sleep 1000 & echo $!; wait"}, log, /*keep_stdin_open=*/false).value();
  pid_t below = 0;
  while (!(std::ifstream(log) >> below)) usleep(1000);
  std::remove(log.c_str());
  const ProcessId process = identify(below);
  ASSERT_TRUE(process.alive());
  child.signal(SIGTERM);
  EXPECT_TRUE(ends(process));
}

TEST(Child, ACommandThatTakesTooLongIsKilledWithAllThatItHasStarted) {
  const Captured captured = run_all({{"sh", "-c", "sleep 1000 & echo $!; wait"}}, /*seconds=*/3).front();
  EXPECT_EQ(captured.status, 124);
  EXPECT_TRUE(ends(identify(std::stoi(captured.out))));
}

TEST(RunFolder, IsOneLaunchsThoughTwoFoundItNewAtOnce) {
  const TemporaryDir dir;
  const auto path = dir.path() / "run";
  const std::string refused = path.string() + ": is a run already, wanted a new folder";
  const RunFolder first = RunFolder::create(path, example()).value();
  EXPECT_EQ(RunFolder::create(path, json::object()).error().message, refused);
  EXPECT_EQ(first.read_json("plan.json").value(), example()) << "the other's plan is in it";
  const LedgerEntry launcher{"launcher", "local", {}, identify(getpid()), {}};
  EXPECT_TRUE(first.begin(launcher));
  EXPECT_EQ(RunFolder::open(path).value().begin(launcher).error().message, refused) << "as where there are no locks";
  EXPECT_EQ(first.ledger().value().size(), 1u);
}

TEST(RunFolder, OfARunWithKeysHasNoCommaWhichPartsTheirOption) {
  const TemporaryDir dir;
  const RunFolder folder = RunFolder::create(dir / "a, b", example()).value();
  EXPECT_EQ(RunKeys::create(folder).error().message,
            folder.path().string() + ": a run with keys, wanted a folder without a comma");
}

TEST(Diff, NamesWhatDiffers) {
  EXPECT_TRUE(differences(example(), example()).empty());
  json other = example();
  other["hosts"][0]["cpus"] = 16;
  EXPECT_EQ(differences(example(), other), std::vector<std::string>{"/hosts/0/cpus: 8 | 16"});
}

}  // namespace
}  // namespace outrider
