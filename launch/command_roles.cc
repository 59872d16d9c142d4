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
  const auto every = [](const OptionInfo&) { return true; };
  {
    CLI::App* command = app.add_subcommand("coordinator", "Run the rounds: workers and clients connect here");
    auto options = std::make_shared<CoordinatorOptions>();
    auto security = std::make_shared<Security>();
    command->add_option("--listen", options->listen, "Address; port * takes a free one")->capture_default_str();
    add_node_options(*command, *options, every);
    add_security_options(*command, *security, /*listens=*/true);
    command->callback([options, security] {
      init_logging("coordinator", "info");
      run_until_signal([&](std::stop_token stop) {
        TransportContext context(*security);
        return run_coordinator(context, *options, stop, [](const std::string& address) {
          std::printf("%s\n", address.c_str());  // for scripts: where to join
          std::fflush(stdout);
        });
      });
    });
  }
  /// A worker's command. @param run  is given its options with the paths that the flags of the model say.
  const auto add_worker = [&]<class Options>(const char* name, const char* about, Options, auto run) {
    CLI::App* command = app.add_subcommand(name, about);
    struct Flags {
      ModelFlags model;
      Options options;
      Security security;
    };
    auto flags = std::make_shared<Flags>();
    flags->model.add_to(*command);
    command
        ->add_option(
            "--join", flags->options.join,
            "The coordinator's address, tcp://HOST:PORT; of several with commas between, the first that answers")
        ->required();
    add_node_options(*command, flags->options, every);
    add_security_options(*command, flags->security, /*listens=*/false);
    command->callback([flags, run, name] {
      init_logging(name, "info");
      run_until_signal([&](std::stop_token stop) {
        TransportContext context(flags->security);
        const PairPaths pair = flags->model.pair();
        flags->options.weight_type = flags->model.weight_type(pair);
        return run(context, flags->options, pair, stop);
      });
    });
  };
  add_worker("verifier", "Verify drafts with the full backbone", VerifierOptions(),
             [](TransportContext& context, VerifierOptions options, const PairPaths& pair, std::stop_token stop) {
               options.backbone = pair.backbone;
               return run_verifier(context, options, stop);
             });
  add_worker("drafter", "Draft with the assistant", DrafterOptions(),
             [](TransportContext& context, DrafterOptions options, const PairPaths& pair, std::stop_token stop) {
               options.backbone = pair.backbone;
               options.assistant = pair.assistant;
               return run_drafter(context, options, stop);
             });
}

}  // namespace outrider
