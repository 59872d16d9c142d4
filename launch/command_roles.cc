#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/complain.h"
#include "common/model/block_drafter/block_config.h"
#include "common/model/checkpoint/model_files.h"
#include "common/os/durable_file.h"
#include "common/os/logging.h"
#include "common/wire/transport/reachable.h"
#include "coordinator-node/coordinator_node.h"
#include "drafter-node/drafter_node.h"
#include "encoder-node/encoder_node.h"
#include "launch/cluster/deadline.h"
#include "launch/cluster_flags.h"
#include "launch/lifetime.h"
#include "launch/model_flags.h"
#include "verifier-node/verifier_node.h"

namespace outrider {
namespace {

/// Runs a role under `lifetime`. @return normally once it was asked to end
void run_role(const Lifetime& lifetime, const std::function<Result<void>(std::stop_token)>& role) {
  const Result<void> result = lifetime.run(role);
  if (result || result.error().code != Errc::kUnavailable) return or_throw(result);
  complain_text(result.error().message);
  throw ExitStatus(kExitAgain);
}

/// Says, for scripts, what the --join of others takes: on standard output, and one a line in the file if there is one.
void say_address(const std::string& listening, const std::filesystem::path& file) {
  const std::vector<std::string> addresses = reachable_addresses(listening);
  if (!file.empty()) {
    if (addresses.empty()) throw std::runtime_error("this host has no address but loopback that others could dial");
    or_throw(replace_text(file, fmt::format("{}\n", fmt::join(addresses, "\n"))));
  }
  std::printf("%s\n", addresses.empty() ? listening.c_str() : fmt::format("{}", fmt::join(addresses, ",")).c_str());
  std::fflush(stdout);
}

bool every(const char*, const OptionInfo&) { return true; }

void add_coordinator(Command& app) {
  Command* command = app.add_subcommand("coordinator", "Run the coordinator, which workers and clients connect to");
  struct Flags {
    CoordinatorOptions options;
    Security security;
    Lifetime lifetime;
    std::filesystem::path address_file;
  };
  auto flags = std::make_shared<Flags>();
  command->add_option("--listen", flags->options.listen, "Address to listen on; port *: any free port")
      ->capture_default_str();
  command->add_option("--address-file", flags->address_file,
                      "Write the addresses that others can connect to into this file, one per line");
  flags->lifetime.add_to(*command);
  flags->lifetime.add_deadline_to(*command);
  add_node_options(*command, flags->options, every);
  add_security_options(*command, flags->security, /*listens=*/true);
  command->callback([flags] {
    init_logging("coordinator", "info");
    run_role(flags->lifetime, [&](std::stop_token stop) {
      TransportContext context(flags->security);
      return run_coordinator(context, flags->options, stop, [&](const std::string& address) {
        say_address(address, flags->address_file);
      });
    });
  });
}

/// Puts the paths of the model flags into a worker's options. @return the model that the worker loads as a backbone
template <class Options>
Result<PairPaths> take_models(const ModelFlags& model, Options& options) {
  options.backbone = model.pair({.assistant = false}).backbone;
  return PairPaths{options.backbone, {}};
}
Result<PairPaths> take_models(const ModelFlags& model, DrafterOptions& options) {
  if (!options.draft_model.empty()) {
    options.draft_model = or_throw(model_path(options.draft_model));
    if (is_block_drafter(options.draft_model)) return take_models<DrafterOptions>(model, options);
    return pair_paths(options.draft_model, {.assistant = false});
  }
  const PairPaths pair = model.pair();
  if (pair.assistant.empty()) {
    RETURN_IF_ERROR(ModelFiles::open(pair.backbone));  // which may be missing
    return Error(Errc::kNotFound, "{} has no assistant beside it, wanted --assistant or --draft-model",
                 shown_model(pair.backbone));
  }
  options.backbone = pair.backbone;
  options.assistant = pair.assistant;
  return PairPaths{options.assistant, {}};
}

Result<PairPaths> take_models(const ModelFlags& model, VerifierOptions& options) {
  if (!options.hidden_rows_for.empty())
    options.hidden_rows_for = or_throw(model_path(options.hidden_rows_for, HubNeed::kText));
  return take_models<VerifierOptions>(model, options);
}

/// Adds a worker's command. @param run  receives its options with the paths of the model flags
template <class Options>
void add_worker(Command& app, const char* name, const char* about,
                Result<void> (*run)(TransportContext&, const Options&, std::stop_token)) {
  Command* command = app.add_subcommand(name, about);
  struct Flags {
    ModelFlags model;
    Options options;
    Security security;
    Lifetime lifetime;
    std::filesystem::path address_file;  ///< of a verifier
  };
  auto flags = std::make_shared<Flags>();
  flags->model.add_to(*command);
  flags->lifetime.add_to(*command);
  flags->lifetime.add_deadline_to(*command);
  command
      ->add_option("--join", flags->options.join,
                   "The coordinator's address, tcp://HOST:PORT; of several separated by commas, the first that answers")
      ->required();
  add_node_options(*command, flags->options, every);
  add_security_options(*command, flags->security, /*listens=*/false);
  if constexpr (std::is_same_v<Options, VerifierOptions>) {
    CLI::Option* const listen = command->add_option(
        "--listen-shards", flags->options.remote.listen,
        "Address to listen on for the shards on other hosts ('outrider shard --join'); port *: any free port");
    command
        ->add_option("--address-file", flags->address_file,
                     "Write the addresses that shards can connect to into this file, one per line")
        ->needs(listen);
    add_node_options(*command, flags->security, named({"--authorized"}));
  }
  command->callback([flags, run, name] {
    init_logging(name, "info");
    run_role(flags->lifetime, [&](std::stop_token stop) -> Result<void> {
      TransportContext context(flags->security);
      ASSIGN_OR_RETURN(const PairPaths loaded, take_models(flags->model, flags->options));
      flags->model.whole = !std::is_same_v<Options, EncoderOptions>;
      flags->options.weight_type = flags->model.type_to_load(loaded);
      if constexpr (std::is_same_v<Options, VerifierOptions>) {
        flags->options.remote.security = flags->security;
        flags->options.remote.on_listening = [&](const std::string& at) { say_address(at, flags->address_file); };
      }
      return run(context, flags->options, stop);
    });
  });
}

/// Adds `shard`: with --join for people, and with hidden options for a verifier, which starts its other shards with
/// them.
void add_shard(Command& app) {
  Command* command = app.add_subcommand("shard", "Compute a part of the backbone for a verifier on another host");
  struct Flags {
    ModelFlags model;
    RemoteShardOptions remote;
    ShardOptions local;
    Lifetime lifetime;
  };
  auto flags = std::make_shared<Flags>();
  RemoteShardOptions& remote = flags->remote;
  ShardOptions& local = flags->local;
  command->add_option("-m,--model", flags->model.model, "The verifier's model on this host, as for 'verifier'");
  command->add_option("--backbone", flags->model.backbone, "The target alone, as for 'verifier'");
  flags->lifetime.add_to(*command);
  flags->lifetime.add_deadline_to(*command);
  Option* const join = command->add_option("--join", remote.join,
                                           "The address of the verifier's --listen-shards, tcp://HOST:PORT; of several "
                                           "separated by commas, the first that answers");
  add_number(*command, "-t,--threads", remote.threads, 0, kThreadsMax, "Threads of the forward pass; 0: every core");
  add_security_options(*command, remote.security, /*listens=*/false);
  {
    const HelpGroup hidden(*command, "");
    command->add_option("--memory-fd", local.memory)->excludes(join);
    command->add_option("--dtype", flags->model.dtype);
    command->add_option("--rows", local.rows_max);
    command->add_option("--rank", local.place.rank);
    command->add_option("--count", local.place.count);
  }
  command->callback([flags] {
    init_logging("shard", "info");
    if (flags->local.memory >= 0) {
      flags->local.backbone = flags->model.backbone;
      flags->local.weight_type = or_throw(parse_weight_type(flags->model.dtype));
      flags->local.threads = flags->remote.threads;
      return or_throw(run_shard(flags->local));
    }
    if (flags->remote.join.empty()) throw UsageError("--join is required");
    flags->remote.backbone = flags->model.pair({.assistant = false}).backbone;
    run_role(flags->lifetime, [&](std::stop_token stop) { return run_remote_shard(flags->remote, stop); });
  });
}

}  // namespace

void add_roles_command(Command& app) {
  add_coordinator(app);
  add_worker(app, "verifier", "Verify drafts with the full backbone", run_verifier);
  add_shard(app);
  add_worker(app, "drafter", "Draft with an assistant, or with a whole model", run_drafter);
  add_worker(app, "encoder", "Encode pictures and sounds with the backbone's towers", run_encoder);
}

}  // namespace outrider
