#include <csignal>
#include <cstdio>
#include <memory>
#include <stop_token>
#include <thread>

#include "common/logging/logging.h"
#include "coordinator-node/coordinator_node.h"
#include "drafter-node/drafter_node.h"
#include "launch/command_support.h"
#include "launch/commands.h"
#include "verifier-node/verifier_node.h"

namespace outrider {
namespace {

/// Runs a role until it ends or SIGTERM or SIGINT asks it to.
template <typename Role>
void run_until_signal(Role role) {
  // Blocked before any other thread exists, so that only the waiting thread takes them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::stop_source stop;
  std::thread waiter([&] {
    int signal = 0;
    sigwait(&signals, &signal);
    stop.request_stop();
  });
  const Result<void> result = no_throw([&] { return role(stop.get_token()); });
  pthread_kill(waiter.native_handle(), SIGUSR1);
  waiter.join();
  or_throw(result);
}

}  // namespace

void add_role_commands(CLI::App& app) {
  {
    CLI::App* command = app.add_subcommand("coordinator", "Run the rounds: workers and clients connect here");
    auto listen = std::make_shared<std::string>("tcp://127.0.0.1:7070");
    auto policy_state = std::make_shared<std::string>();
    auto rejection_log = std::make_shared<std::filesystem::path>();
    command->add_option("--listen", *listen, "Address; port * takes a free one")->capture_default_str();
    command->add_option("--policy-state", *policy_state,
                        "File that keeps over restarts what the ucb1 and thompson policies learned");
    add_rejection_log(*command, *rejection_log);
    command->callback([listen, policy_state, rejection_log] {
      init_logging("coordinator", "info");
      run_until_signal([&](std::stop_token stop) {
        TransportContext context;
        return run_coordinator(context,
                               {.listen = *listen,
                                .policy_state = *policy_state,
                                .rejection_log = *rejection_log,
                                .core = {.instance = 0}},
                               stop, [](const std::string& address) {
                                 std::printf("%s\n", address.c_str());  // for scripts: where to join
                                 std::fflush(stdout);
                               });
      });
    });
  }
  struct WorkerFlags {
    ModelFlags model;
    std::string join;
    int threads = 0;
    std::int64_t memory_mib = 0;
    std::vector<double> synthetic_acceptance;
  };
  const auto add_worker = [&](const char* name, const char* about, int threads) {
    CLI::App* command = app.add_subcommand(name, about);
    auto flags = std::make_shared<WorkerFlags>();
    flags->threads = threads;
    flags->model.add_to(*command);
    command->add_option("--join", flags->join, "The coordinator's address, tcp://HOST:PORT")->required();
    add_threads(*command, flags->threads);
    return std::pair(command, flags);
  };
  const auto [verifier, verifier_flags] = add_worker("verifier", "Verify drafts with the full backbone", 0);
  verifier
      ->add_option("--memory", verifier_flags->memory_mib,
                   "MiB for the K/V of all sessions; 0: three quarters of what is free once the model is loaded")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  add_synthetic_acceptance(*verifier, verifier_flags->synthetic_acceptance);
  verifier->callback([flags = verifier_flags] {
    init_logging("verifier", "info");
    run_until_signal([&](std::stop_token stop) {
      TransportContext context;
      const PairPaths pair = flags->model.pair();
      return run_verifier(context,
                          {.backbone = pair.backbone,
                           .weight_type = flags->model.weight_type(pair),
                           .threads = flags->threads,
                           .join = flags->join,
                           .kv_bytes_max = flags->memory_mib << 20,
                           .synthetic_acceptance = flags->synthetic_acceptance,
                           .core = {}},
                          stop);
    });
  });
  const auto [drafter, drafter_flags] = add_worker("drafter", "Draft with the assistant", 1);
  drafter->callback([flags = drafter_flags] {
    init_logging("drafter", "info");
    run_until_signal([&](std::stop_token stop) {
      TransportContext context;
      const PairPaths pair = flags->model.pair();
      return run_drafter(context,
                         {.assistant = pair.assistant,
                          .backbone = pair.backbone,
                          .weight_type = flags->model.weight_type(pair),
                          .threads = flags->threads,
                          .join = flags->join,
                          .core = {}},
                         stop);
    });
  });
}

}  // namespace outrider
