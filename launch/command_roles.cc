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
#include "launch/command_support.h"
#include "launch/lifetime.h"
#include "verifier-node/verifier_node.h"

namespace outrider {
namespace {

/// Runs a role as `lifetime` says. @return normally once it was told to end.
void run_role(const Lifetime& lifetime, const std::function<Result<void>(std::stop_token)>& role) {
  const Result<void> result = lifetime.run(role);
  if (result || result.error().code != Errc::kUnavailable) return or_throw(result);
  complain_text(result.error().message);
  throw ExitStatus(kExitAgain);
}

/// One address a line. Whoever looks sees nothing or all of it.
void write_addresses(const std::filesystem::path& file, const std::vector<std::string>& addresses) {
  if (addresses.empty()) throw std::runtime_error("this host has no address but loopback that others could dial");
  or_throw(replace_text(file, fmt::format("{}\n", fmt::join(addresses, "\n"))));
}

bool every(const char*, const OptionInfo&) { return true; }

void add_coordinator(Command& app) {
  Command* command = app.add_subcommand("coordinator", "Run the rounds: workers and clients connect here");
  struct Flags {
    CoordinatorOptions options;
    Security security;
    Lifetime lifetime;
    std::filesystem::path address_file;
  };
  auto flags = std::make_shared<Flags>();
  command->add_option("--listen", flags->options.listen, "Address; port * takes a free one")->capture_default_str();
  command->add_option("--address-file", flags->address_file,
                      "File that gets the addresses at which it can be dialled, one a line");
  flags->lifetime.add_to(*command);
  flags->lifetime.add_deadline_to(*command);
  add_node_options(*command, flags->options, every);
  add_security_options(*command, flags->security, /*listens=*/true);
  command->callback([flags] {
    init_logging("coordinator", "info");
    run_role(flags->lifetime, [&](std::stop_token stop) {
      TransportContext context(flags->security);
      return run_coordinator(context, flags->options, stop, [&](const std::string& address) {
        const std::vector<std::string> addresses = reachable_addresses(address);
        if (!flags->address_file.empty()) write_addresses(flags->address_file, addresses);
        // For scripts: what --join takes.
        std::printf("%s\n", addresses.empty() ? address.c_str() : fmt::format("{}", fmt::join(addresses, ",")).c_str());
        std::fflush(stdout);
      });
    });
  });
}

/// Puts the paths that the flags of the model say into a worker's options. @return what the worker loads, as a backbone
template <class Options>
Result<PairPaths> take_models(const ModelFlags& model, Options& options) {
  options.backbone = model.pair({.assistant = false}).backbone;
  return PairPaths{options.backbone, {}};
}
Result<PairPaths> take_models(const ModelFlags& model, DrafterOptions& options) {
  if (!options.draft_model.empty()) {
    options.draft_model = or_throw(model_path(options.draft_model));
    if (is_block_drafter(options.draft_model)) return take_models<DrafterOptions>(model, options);
    return PairPaths{options.draft_model, {}};
  }
  const PairPaths pair = model.pair();
  if (pair.assistant.empty()) {
    RETURN_IF_ERROR(ModelFiles::open(pair.backbone));  // which may be what is missing
    return Error(Errc::kNotFound, "{} has no assistant beside it, wanted --assistant or --draft-model",
                 shown_model(pair.backbone));
  }
  options.backbone = pair.backbone;
  options.assistant = pair.assistant;
  return PairPaths{options.assistant, {}};
}

/// A worker's command. @param run  is given its options with the paths that the flags of the model say.
template <class Options>
void add_worker(Command& app, const char* name, const char* about,
                Result<void> (*run)(TransportContext&, const Options&, std::stop_token)) {
  Command* command = app.add_subcommand(name, about);
  struct Flags {
    ModelFlags model;
    Options options;
    Security security;
    Lifetime lifetime;
  };
  auto flags = std::make_shared<Flags>();
  flags->model.add_to(*command);
  flags->lifetime.add_to(*command);
  flags->lifetime.add_deadline_to(*command);
  command
      ->add_option("--join", flags->options.join,
                   "The coordinator's address, tcp://HOST:PORT; of several with commas between, the first that answers")
      ->required();
  add_node_options(*command, flags->options, every);
  add_security_options(*command, flags->security, /*listens=*/false);
  command->callback([flags, run, name] {
    init_logging(name, "info");
    run_role(flags->lifetime, [&](std::stop_token stop) -> Result<void> {
      TransportContext context(flags->security);
      ASSIGN_OR_RETURN(const PairPaths loaded, take_models(flags->model, flags->options));
      flags->model.whole = !std::is_same_v<Options, EncoderOptions>;
      flags->options.weight_type = flags->model.type_to_load(loaded);
      return run(context, flags->options, stop);
    });
  });
}

/// A verifier starts it for each of its shards; it is not for people.
void add_shard(Command& app) {
  Command* command = app.add_subcommand("shard", "A part of a verifier's backbone");
  command->group("");
  struct Flags {
    ShardOptions options;
    std::string dtype;
  };
  auto flags = std::make_shared<Flags>();
  ShardOptions& options = flags->options;
  command->add_option("--backbone", options.backbone)->required();
  command->add_option("--dtype", flags->dtype)->required();
  command->add_option("--rows", options.rows_max)->required();
  command->add_option("--threads", options.threads)->required();
  command->add_option("--memory-fd", options.memory)->required();
  command->add_option("--rank", options.place.rank)->required();
  command->add_option("--count", options.place.count)->required();
  command->callback([flags] {
    init_logging("shard", "info");
    flags->options.weight_type = or_throw(parse_weight_type(flags->dtype));
    or_throw(run_shard(flags->options));
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
