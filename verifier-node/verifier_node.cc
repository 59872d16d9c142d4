#include "verifier-node/verifier_node.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/team.h"
#include "common/compute/kernels/team_sizer.h"
#include "common/model/block_drafter/block_config.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/lent_backbone.h"
#include "common/model/gemma4/numeric_class.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/added_time.h"
#include "common/os/child.h"
#include "common/os/host.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"
#include "common/wire/messages/donor_rows.h"
#include "common/wire/transport/worker_loop.h"
#include "verifier-node/backbone_engine.h"
#include "verifier-node/sequences.h"
#include "verifier-node/shared_memory_shards.h"
#include "verifier-node/tcp_shards.h"

namespace outrider {
namespace {

/// Simulates a longer forward pass of the batch.
void slow_down(std::vector<VerifyResult>& results, std::span<const double> added_verify_us,
               const std::vector<VerifyWork>& batch, const std::function<void()>& between_steps) {
  if (added_verify_us.empty()) return;
  const TimePoint start = now();
  std::int64_t rows = 0;
  for (const VerifyWork& work : batch) rows += std::ssize(work.tokens);
  add_time(added_verify_us, rows, between_steps);
  for (VerifyResult& result : results) result.verdict.verify_ns += (now() - start).count();
}

/// Returns a shard's watch() for its waits. If the other shards are silent, the process still ends after `stop` and
/// `patience`, which leaves the sequences the time of a drain.
std::function<void()> patience_after(std::stop_token stop, Duration patience) {
  return [patience, stop = std::move(stop), stop_since = std::optional<TimePoint>()]() mutable {
    if (!stop.stop_requested()) return;
    if (!stop_since) stop_since = now();
    if (now() - *stop_since > patience)
      throw std::runtime_error(fmt::format("told to stop {} s ago, but a shard says nothing", to_seconds(patience)));
  };
}

/// Returns the fingerprint of a model's weights, whatever their type when loaded.
Result<std::uint64_t> weights_fingerprint(const ModelFiles& files) {
  if (is_pack(files.path())) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Pack> pack, Pack::open(files.path()));
    return pack->info().fingerprint;
  }
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, files.checkpoint());
  return checkpoint.fingerprint();
}

/// Returns the MiB of a pack's matrices; 0 for other models, whose size in memory is unknown before they are read.
Result<std::int64_t> matrix_mib(const ModelFiles& files) {
  std::uint64_t bytes = 0;
  if (is_pack(files.path())) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Pack> pack, Pack::open(files.path()));
    for (const PackEntry& entry : pack->entries()) bytes += entry.layout.empty() ? 0 : entry.size;
  }
  return static_cast<std::int64_t>(bytes >> 20);
}

/// The other processes that compute a verifier's backbone. Processes started by this object end with it.
class ShardGroup {
 public:
  /// Starts them on this host, and binds this process to its own share of the cores.
  Result<void> start(const VerifierOptions& options, int count, std::stop_token stop) {
    const int threads = std::max(1, (options.threads > 0 ? options.threads : team_size()) / count);
    ASSIGN_OR_RETURN(const Descriptor memory, SharedMemoryShards::create(count));
    ASSIGN_OR_RETURN(local_, SharedMemoryShards::join(memory, {0, count}));
    for (int rank = 1; rank < count; ++rank) {
      ASSIGN_OR_RETURN(Child child,
                       Child::start({kThisProgram, "shard", "--backbone", options.backbone.string(), "--dtype",
                                     to_string(options.weight_type), "--rows", std::to_string(options.core.rows_max),
                                     "--threads", std::to_string(threads), "--memory-fd", std::to_string(memory),
                                     "--rank", std::to_string(rank), "--count", std::to_string(count)},
                                    STDERR_FILENO, {}));
      children_.push_back(std::move(child));
    }
    watch(*local_, options, std::move(stop));
    use_share_of_cores(0, count);
    set_team_size(threads);
    log_info("event=shards count={} threads_each={}", count, threads);
    return {};
  }
  /// Waits until the shards of other hosts have joined. @return false if `stop` came first
  Result<bool> wait_for(const VerifierOptions& options, const ModelFiles& files, std::stop_token stop) {
    const RemoteShards& remote = options.remote;
    ASSIGN_OR_RETURN(const std::uint64_t weights, weights_fingerprint(files));
    ASSIGN_OR_RETURN(const std::int64_t needed_mib, matrix_mib(files));
    ASSIGN_OR_RETURN(const std::unique_ptr<ShardListener> listener,
                     ShardListener::listen(remote.listen, remote.security));
    log_info("event=shards_wanted count={} address={}", options.shards - 1, listener->address());
    if (remote.on_listening) remote.on_listening(listener->address());
    const ShardTask task{.place = {0, options.shards},
                         .weight_type = options.weight_type,
                         .rows_max = options.core.rows_max,
                         .peer_timeout_s = options.worker.peer_timeout_s,
                         .drain_wait_s = options.drain_wait_s,
                         .verify_weights = options.worker.verify_weights};
    const FewerShards fewer{options.min_shards, needed_mib, 10 * std::chrono::seconds(task.peer_timeout_s)};
    ASSIGN_OR_RETURN(remote_, listener->gather_group(task, weights, stop, fewer));
    if (remote_ == nullptr) return false;
    watch(*remote_, options, std::move(stop));
    log_info("event=shards count={} wanted={} threads_here={}", remote_->place().count, options.shards, team_size());
    return true;
  }
  /// Null: this process computes alone.
  Shards* shards() { return remote_ != nullptr ? static_cast<Shards*>(remote_.get()) : local_.get(); }
  /// Throws when a shard has ended: the rest of the model is useless alone.
  void check() {
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (const auto status = children_[i].poll())
        throw std::runtime_error(
            fmt::format("shard {} of {} has ended with status {}", i + 1, children_.size() + 1, *status));
    }
    if (remote_ == nullptr) return;
    if (const auto there = remote_->check(); !there) throw std::runtime_error(there.error().message);
  }

 private:
  /// Watches the others during waits.
  void watch(Shards& shards, const VerifierOptions& options, std::stop_token stop) {
    const std::chrono::seconds patience(options.drain_wait_s + options.worker.peer_timeout_s);
    shards.set_watch([this, ends = patience_after(std::move(stop), patience)] {
      check();
      ends();
    });
  }

  std::unique_ptr<SharedMemoryShards> local_;  ///< if the others are on this host
  std::unique_ptr<TcpShards> remote_;          ///< if they are on other hosts
  std::vector<Child> children_;
};

/// Returns the numeric class of a backbone computed by shards. The shards exchange their classes, which must be equal.
/// @param free  receives free_mib() at each, by rank
/// @return kMismatch if this shard's class differs from the first shard's, or, at the first shard, if any other does
Result<std::string> common_numeric_class(Backbone& backbone, std::vector<float>& free) {
  Shards* const shards = backbone.shards();
  if (shards == nullptr) return numeric_class(backbone);
  const auto [rank, count] = shards->place();
  // Other shards may load for minutes. Until they read, more data would fill their sockets, and the kernel would count
  // a host that reads nothing as gone.
  free.resize(static_cast<std::size_t>(count));
  free[static_cast<std::size_t>(rank)] = static_cast<float>(free_mib());
  shards->gather({free.data(), {1, count}}, {rank, 1});
  std::string own = numeric_class(backbone);
  constexpr std::int64_t kFloats = 128;  // of text; all compute the probe at its end together
  std::vector<float> classes(static_cast<std::size_t>(count * kFloats));
  const auto text_of = [&](int shard) { return reinterpret_cast<char*>(classes.data() + shard * kFloats); };
  constexpr std::size_t kBytes = kFloats * sizeof(float);
  own.resize(std::min(own.size(), kBytes - 1));
  std::copy_n(own.c_str(), own.size() + 1, text_of(rank));
  shards->gather({classes.data(), {1, count * kFloats}}, {rank * kFloats, kFloats});
  for (int shard = 0; shard < count; ++shard) {
    if (rank != 0 && shard != rank) continue;
    const std::string_view first(text_of(0), strnlen(text_of(0), kBytes)),
        its(text_of(shard), strnlen(text_of(shard), kBytes));
    if (its != first)
      return Error(Errc::kMismatch, "shard {} of {} computes other bits: it is '{}', wanted '{}'", shard, count, its,
                   first);
  }
  return own;
}

Result<std::unique_ptr<Backbone>> load_backbone(const ModelFiles& files, const VerifierOptions& options,
                                                Shards* shards) {
  ASSIGN_OR_RETURN(std::unique_ptr<Backbone> backbone,
                   Backbone::load(files, options.weight_type, options.core.rows_max, shards));
  for (const std::string& note : backbone->config().notes) log_warn("event=metadata_overruled note=\"{}\"", note);
  log_info("event=loaded model={} dtype={} isa={} gemm=\"{}\" threads={}", options.backbone.string(),
           to_string(options.weight_type), to_string(active_isa()), backbone->gemm_implementation(), team_size());
  return backbone;
}

/// Returns the facts that drafters must match; the backbone keeps the rows that drafters need.
Result<PairFacts> facts_for_drafters(const ModelFiles& files, const VerifierOptions& options, Backbone& backbone) {
  PairFacts facts = pair_facts(backbone.config(), backbone.weights());
  if (!options.hidden_rows_for.empty()) {
    ASSIGN_OR_RETURN(const ModelFiles drafter, ModelFiles::open(options.hidden_rows_for));
    ASSIGN_OR_RETURN(const BlockConfig config, load_block_config(drafter, backbone.config()));
    facts.donors = {hidden_rows_donor(config.hidden_layers, config.hidden_size)};
    backbone.keep_hidden(config.hidden_layers);
  }
  if (const auto tokenizer = Tokenizer::load(files)) facts.tokenizer_fingerprint = tokenizer->fingerprint();
  return facts;
}

/// Lends the verifier's backbone, unless `lent` is null; the destructor takes it back for good.
class Lending {
 public:
  Lending(LentBackbone* lent, const std::shared_ptr<Backbone>& backbone) : lent_(lent) {
    if (lent_ != nullptr) lent_->lend(backbone);
  }
  ~Lending() { take(); }
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;
  void take(const std::function<void()>& meanwhile = [] {}) {
    if (lent_ != nullptr) lent_->take(meanwhile);
  }
  void give() {
    if (lent_ != nullptr) lent_->give();
  }

 private:
  LentBackbone* const lent_;
};

/// Loads a shard's part and follows the first shard. @return the reason of its end; kPeerGone: the verifier is gone
Result<void> follow(const ModelFiles& files, const ShardTask& task, Shards& shards) {
  if (task.verify_weights) RETURN_IF_ERROR(verify_packs({files.path()}));
  ASSIGN_OR_RETURN(std::unique_ptr<Backbone> backbone,
                   Backbone::load(files, task.weight_type, task.rows_max, &shards));
  try {
    std::vector<float> free;
    RETURN_IF_ERROR(common_numeric_class(*backbone, free));
    Sequences(std::move(backbone)).follow();
  } catch (const std::runtime_error& gone) {  // also for invalid calls
    return Error{Errc::kPeerGone, gone.what()};
  }
}

/// Returns the core's configuration, with the available K/V memory. @param grammars, towers  outlive the core
/// @param free  free memory of each shard's host in MiB, by rank; empty: all shards are on this host
VerifierConfig core_config(const VerifierOptions& options, const BackboneEngine& engine, GrammarCompiler& grammars,
                           const std::unique_ptr<Towers>& towers, std::vector<float> free) {
  VerifierConfig config = options.core;
  config.link.peer_timeout = std::chrono::seconds(options.worker.peer_timeout_s);
  config.want_grammar = [&grammars](const std::string& text, const std::string& client) {
    return grammars.want(text, client);
  };
  if (towers != nullptr)
    config.soft_tokens = [&towers](const WireMedium& medium) { return towers->soft_tokens(medium); };
  config.capacity.kv_cost = engine.kv_cost();
  if (!free.empty()) free[0] = static_cast<float>(free_mib());
  const std::int64_t room = !free.empty()
                                ? engine.kv_bytes_until_full(free)
                                : available_memory_bytes().value_or(std::numeric_limits<std::int64_t>::max());
  // The rest is for scratch, messages in transit and, on a dedicated machine, the drafter.
  config.capacity.kv_bytes_max = options.memory_mib > 0 ? options.memory_mib << 20 : room / 4 * 3;
  log_info("event=kv_memory limit_mib={} session_mib_at_full_context={}", config.capacity.kv_bytes_max >> 20,
           config.capacity.kv_cost.bytes(engine.backbone().config().max_position_embeddings) >> 20);
  return config;
}

/// Logs a changed number of threads, once a minute at most: between two equally fast ones it fluctuates.
class ThreadsLog {
 public:
  explicit ThreadsLog(const TeamSizer& sizer) : sizer_(sizer) {}
  void look() {
    const int steps = sizer_.chosen(1), prompts = sizer_.chosen(VerifierConfig().prefill_chunk);
    if (steps == steps_ && prompts == prompts_) return;
    steps_ = steps, prompts_ = prompts;
    if (const auto more = limit_.pass(now())) log_info("event=threads steps={} prompts={}{}", steps, prompts, *more);
  }

 private:
  const TeamSizer& sizer_;
  int steps_ = sizer_.chosen(1), prompts_ = steps_;
  RateLimit limit_{{std::chrono::minutes(1), 1}};
};

}  // namespace

Result<void> run_shard(const ShardOptions& options) {
  // A service manager stops all processes; the verifier drains, and needs its shards until its end.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGTERM, SIG_IGN);
  use_share_of_cores(options.place.rank, options.place.count);
  set_team_size(options.threads);
  ASSIGN_OR_RETURN(const std::unique_ptr<SharedMemoryShards> shards,
                   SharedMemoryShards::join(options.memory, options.place));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  return follow(files, {.place = options.place, .weight_type = options.weight_type, .rows_max = options.rows_max},
                *shards);
}

Result<void> run_remote_shard(const RemoteShardOptions& options, std::stop_token stop) {
  if (options.threads > 0) set_team_size(options.threads);
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  ASSIGN_OR_RETURN(const std::uint64_t weights, weights_fingerprint(files));
  Reminder reminder;
  while (!stop.stop_requested()) {
    Result<std::optional<JoinedShard>> joined = join_shards(options.join, options.security, weights, stop);
    Result<void> ended;
    if (!joined) {
      ended = joined.error();
    } else if (*joined) {
      const ShardTask& task = (*joined)->task;
      log_info("event=joined verifier={} rank={} count={} dtype={} threads={}", options.join, task.place.rank,
               task.place.count, to_string(task.weight_type), team_size());
      TcpShards& shards = *(*joined)->shards;
      // A service that is stopped stops on every host at once, and the verifier drains.
      shards.set_watch(patience_after(stop, std::chrono::seconds(task.drain_wait_s + task.peer_timeout_s)));
      ended = follow(files, task, shards);
    }
    if (ended || stop.stop_requested()) return {};
    if (ended.error().code != Errc::kPeerGone) return ended;
    if (reminder.is_due(ended.error().message, now()))
      log_warn("event=no_verifier reason=\"{}\"", ended.error().message);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return {};
}

Result<void> run_verifier(TransportContext& context, const VerifierOptions& options, std::stop_token stop) {
  const bool is_remote = !options.remote.listen.empty();
  if (options.threads > 0) set_team_size(options.threads);
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.backbone}));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  ShardGroup group;
  if (is_remote) {
    if (options.shards < 2 || options.min_shards > options.shards)
      return Error(Errc::kInvalidArgument,
                   "--listen-shards: --shards is {}, wanted 2 or more, and no less than --min-shards, which is {}",
                   options.shards == 0 ? "auto" : std::to_string(options.shards), options.min_shards);
    ASSIGN_OR_RETURN(const bool complete, group.wait_for(options, files, stop));
    if (!complete) return {};
  } else if (options.min_shards > 0) {
    return Error(Errc::kInvalidArgument, "--min-shards is {}, wanted --listen-shards with it", options.min_shards);
  } else if (const int count = options.shards > 0 ? options.shards : memory_node_count(); count > 1) {
    RETURN_IF_ERROR(group.start(options, count, stop));
  }
  const int shard_count = place_of(group.shards()).count;
  ASSIGN_OR_RETURN(std::shared_ptr<Backbone> backbone, load_backbone(files, options, group.shards()));
  ASSIGN_OR_RETURN(PairFacts facts, facts_for_drafters(files, options, *backbone));
  std::vector<float> free;
  ASSIGN_OR_RETURN(const std::string bits, common_numeric_class(*backbone, free));
  if (!is_remote) free.clear();
  log_info("event=numeric_class class=\"{}\"", bits);
  GrammarCompiler grammars([&files, size = backbone->config().vocab_size]() -> Result<GrammarVocabulary> {
    const Result<Tokenizer> tokenizer = Tokenizer::load(files);
    if (tokenizer) return grammar_vocabulary(*tokenizer, size);
    log_warn("event=no_grammars reason=\"{}\"", tokenizer.error().message);  // names files, so not for clients
    return Error{tokenizer.error().code, "the verifier cannot read its tokenizer"};
  });
  // At once: loading a tower for a waiting sequence would delay heartbeats. A model without towers, or with their
  // config alone, still serves text.
  std::unique_ptr<Towers> towers;
  if (!options.no_towers) towers = std::make_unique<Towers>(Towers::load(files, options.weight_type));
  std::string encoding_class =
      towers ? towers->encoding_class(options.weight_type, backbone->weights().fingerprint()) : "";
  TeamSizer sizer(team_size(), backbone->config().layers.size());
  if (options.threads == 0 && shard_count == 1) backbone->set_team_sizer(&sizer);
  Lending lending(options.lent, backbone);  // ends before `sizer`, to which the backbone refers
  BackboneEngine engine(std::move(backbone), options.synthetic_acceptance, towers.get());
  ASSIGN_OR_RETURN(std::string name, chosen_name(options.worker, node_name("verifier")));
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, options.join));
  VerifierCore core(core_config(options, engine, grammars, towers, std::move(free)),
                    {.role = Role::kVerifier,
                     .name = std::move(name),
                     .facts = std::move(facts),
                     .numeric_class = bits,
                     .encoding_class = std::move(encoding_class),
                     .no_towers = options.no_towers,
                     .shards = shard_count,
                     .shards_over_tcp = is_remote});
  ThreadsLog threads_log(sizer);
  std::vector<VerifyWork> batch;
  WorkerLoop loop(core, *endpoint, options.worker);
  return loop.run(
      stop, std::chrono::seconds(options.drain_wait_s),
      [&](VerifierCore::Output& output) {
        for (const auto& [session, kept] : output.renamed) engine.rename(session, kept);
        for (const SessionId session : output.released) engine.release(session);
        batch = std::move(output.batch);
      },
      [&] {
        if (batch.empty()) {
          group.check();
          if (core.session_count() == 0) lending.give();
          return false;
        }
        const auto between_steps = [&] { loop.between_steps(); };
        lending.take(between_steps);
        std::vector<VerifyResult> results = engine.run(batch, between_steps);
        slow_down(results, options.added_verify_us, batch, between_steps);
        core.on_batch_done(std::move(results), loop.now());
        threads_log.look();
        return true;
      });
}

}  // namespace outrider
