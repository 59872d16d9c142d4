#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/base/token_bucket.h"
#include "common/base/token_tree.h"
#include "common/client/client_core.h"
#include "common/decoding/sampling/sampler.h"
#include "coordinator-node/coordinator_core.h"
#include "drafter-node/answer_guide.h"
#include "drafter-node/drafter_core.h"
#include "encoder-node/encoder_core.h"
#include "verifier-node/verifier_core.h"

namespace outrider::simulation {

/// What goes wrong. Chances of a worker are per virtual second, of each worker by itself.
struct Faults {
  // The network between the coordinator and its workers, for each message.
  double drop = 0, repeat = 0;
  Duration delay_min = std::chrono::microseconds(50), delay_max = std::chrono::microseconds(200);
  double slow = 0;  ///< share of messages, and of drafts, that take slow_delay_max at most: overtaken by many
  Duration slow_delay_max = std::chrono::milliseconds(800);

  // Workers.
  double drafter_restart = 0, verifier_restart = 0;  ///< half of them close their connection
  Duration down_max = {};                            ///< how long one that crashed is away at most
  double stall = 0;      ///< it stands still, for up to 5 s: what comes waits, as with SIGSTOP
  double partition = 0;  ///< nothing gets through, either way or one way only, for up to 5 s
  double encoder_restart = 0;
  double mute = 0;  ///< of a verifier or an encoder: only its heartbeats can be read, for up to 30 s

  // Each coordinator, and clients. Of half of the connections that are lost, neither end is told.
  double coordinator_restart = 0;  ///< another one comes in its place, which knows of nothing
  double client_cut = 0;           ///< of each client's connection

  double skew = 0;  ///< everybody's clock runs up to this share faster or slower, each by itself

  Duration until = Duration::max();  ///< from then on nothing goes wrong any more
  /// A network with none of these keeps the order of each peer's messages, as a ZeroMQ connection does.
  bool keeps_order() const { return drop == 0 && repeat == 0 && slow == 0; }
};

/// A made-up model whose next token is a hash of everything before it, so that any slip shows. A K/V
/// row is the hash of the prefix that ends there, and so is a hidden row: the drafter can check every
/// row that reaches it.
namespace model {
inline constexpr TokenId kVocab = 997;
inline constexpr std::int32_t kWindow = 6;
inline constexpr std::uint64_t kEmpty = 0x243f6a8885a308d3ULL;
inline std::uint64_t extend(std::uint64_t prefix, TokenId token) {
  return mix64(prefix ^ (static_cast<std::uint64_t>(token) + 1));
}
inline TokenId choose(std::uint64_t prefix) { return static_cast<TokenId>(mix64(prefix + 17) % kVocab); }
/// @param hidden_rows  of verifiers that send these in place of K/V
PairFacts facts(bool hidden_rows = false);
/// Logits after a prefix: choose(prefix) has the highest, about half of the probability.
std::vector<float> logits(std::uint64_t prefix);
/// What soft token `i` of a picture counts as: a token that its pixels say.
TokenId soft_token(const WireTensor& picture, std::int64_t i);
/// A picture of so many soft tokens, a byte each, or three.
WireTensor picture(std::uint64_t seed, std::int64_t soft_tokens);
/// Plain decoding, to `count` tokens or the first of stop_ids.
std::vector<TokenId> generate(const std::vector<TokenId>& prompt, std::int64_t count,
                              const SamplingParams& sampling = {}, const std::vector<TokenId>& stop_ids = {});
}  // namespace model

/// How long the steps of a real pair take, and how its drafts fare.
struct Pair {
  Duration pass{}, further_row{};     ///< the verifier's forward pass of one row, and each further row
  Duration draft{}, further_draft{};  ///< the drafter's of one row, and each further row
  Duration drafter_way{};             ///< between drafter and coordinator; the verifier is beside the coordinator
  Duration drafter_jitter{};          ///< each message between them takes so much longer at most
  double pass_jitter = 0;             ///< a forward pass takes up to this share more or less
  /// For a quarter of each such time forward passes take three times as long, as beside another program's bursts.
  Duration bursts{};
  double shared_cores = 1;   ///< how much longer a draft pass takes that begins beside a forward pass
  bool one_machine = false;  ///< a forward pass takes longer by the draft passes beside it
  /// The chance that the draft at this depth of a chain holds if those before it do; the last one's beyond.
  std::vector<double> acceptance = {};
  std::vector<double> other = {};  ///< of every second session, if it differs
  double second = 0.5;             ///< the chance that the second choice is right where the first is not
  double at(SessionId session, std::size_t depth) const {
    const std::vector<double>& rates = other.empty() || value(session) % 2 == 0 ? acceptance : other;
    return rates[std::min(depth, rates.size() - 1)];
  }
};

/// Who takes part.
struct Layout {
  int verifiers = 1, drafters = 1, encoders = 0;
  bool no_towers = false;  ///< of the verifiers: pictures are for encoders
  /// A verifier's K/V memory; a position takes 100 bytes, and 50 more in the ring.
  std::int64_t kv_bytes_max = std::numeric_limits<std::int64_t>::max();
  FailoverConfig failover = {};
  std::optional<Pair> pair = {};  ///< none: times at random, and drafts that hold at one rate
  ClientConfig client = {};
  double audit = 0;                   ///< AuditConfig::share
  int by_tokens = 0;                  ///< of the drafters the last, which need tokens alone
  bool hidden_rows = false;           ///< the others are block drafters, which verifiers send hidden rows
  /// Memory for the K/V of a drafter that computes some; a position takes as much as a verifier's.
  std::int64_t drafter_kv_bytes_max = std::numeric_limits<std::int64_t>::max();
  int liars = 0, laggards = 0;        ///< of the drafters the first, whose drafts never hold; then those that are late
  const DraftTable* table = nullptr;  ///< CoordinatorConfig's
  int drafters_per_sequence = 1;      ///< likewise
  /// Two: the second is a stand-by. All look for them in the same order, and stay with whom they have found.
  int coordinators = 1;
  std::optional<int> forger = {};  ///< this verifier's own tokens are not the model's, one in ten
};

/// The real session code of all three roles over a seeded in-memory network, in virtual time. One
/// seed is one history.
class Simulator {
 public:
  Simulator(std::uint64_t seed, const Faults& faults, double drafter_accuracy, const Layout& layout = {});

  /// Opens a request, of a client of its own.
  void request(std::uint64_t number, std::vector<TokenId> prompt, std::int64_t max_tokens, std::int32_t draft_length,
               const SamplingParams& sampling = {}, const std::vector<TokenId>& stop_ids = {},
               DraftPolicy policy = DraftPolicy::kFixed, std::optional<std::int32_t> draft_ahead = {},
               bool governed = false, AddedSources added = {}, std::vector<WireMedium> media = {});
  /// The client wants this one no longer.
  void cancel(std::uint64_t number);
  /// Lets virtual time pass until every request has ended. @return false if `limit` came first.
  bool run_until_done(Duration limit);
  void run_for(Duration duration);
  TimePoint now() const { return now_; }
  /// Stops all workers for so long: what is sent to them waits, as with SIGSTOP.
  void freeze_workers(Duration duration);
  /// The verifier that has request `number` dies, and comes back after `away`. @return whether one had it.
  bool kill_verifier_of(std::uint64_t number, Duration away);
  /// A coordinator dies, and another comes in its place after `away`.
  void kill_coordinator(Duration away, std::size_t place = 0);

  struct Answer {
    std::vector<TokenId> tokens;
    bool done = false;
    RequestMetrics metrics;
    std::string failure;
    bool ended() const { return done || !failure.empty(); }
  };
  const std::map<std::uint64_t, Answer>& answers() const { return answers_; }
  /// Sentences about broken promises; empty in a correct run.
  const std::vector<std::string>& violations() const { return violations_; }
  /// How long it is since everything works.
  Duration healed_for() const { return now_.time_since_epoch() - faults_.until; }
  /// What was to be logged.
  const std::vector<std::string>& notices() const { return notices_; }
  /// Drafts that each drafter was asked for.
  std::int64_t drafts_of(std::size_t drafter) const { return drafters_.at(drafter).asked; }
  std::int64_t drafter_restarts() const { return drafter_restarts_; }
  std::int64_t verifier_restarts() const { return verifier_restarts_; }
  std::int64_t encoder_restarts() const { return encoder_restarts_; }
  std::int64_t coordinator_restarts() const { return static_cast<std::int64_t>(incarnations_); }
  /// Times that a worker or a client went to another coordinator's place.
  std::int64_t moves() const { return moves_; }
  std::int64_t messages() const { return messages_; }
  /// Rows that reached drafters, by type.
  const std::map<DType, std::int64_t>& rows() const { return rows_; }
  /// The same of tokens.
  std::int64_t token_rows() const { return token_rows_; }
  std::size_t verifier_sessions() const;
  std::size_t drafter_sessions() const;
  std::size_t encoder_sessions() const;
  int coordinator_sessions() const;
  std::int64_t verifier_kv_bytes() const;
  std::int64_t drafter_kv_bytes() const;
  Status status(std::size_t place = 0) const {
    return coordinators_.at(place).core ? coordinators_[place].core->status() : Status();
  }

 private:
  struct Event {
    TimePoint at;
    std::uint64_t order;
    enum class Kind {
      kToCoordinator,
      kToWorker,
      kBatchDone,
      kDrafted,
      kEncoded,
      kDue,
      kTick
    } kind;                            // kDue: a loop was to go around by now
    PeerId peer;                       ///< of a message the name of the connection, else of the process
    std::unique_ptr<Message> message;  ///< on the heap: what is queued is moved about
    std::size_t place = 0;             ///< of a message: the coordinator's
    std::uint64_t incarnation = 0;     ///< likewise: it does not reach another
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.at != b.at ? a.at > b.at : a.order > b.order; }
  };
  struct Cache {
    std::vector<std::uint64_t> prefix;  ///< prefix[p]: hash of tokens 0..p
    Position written = 0;               ///< the ring has lost what is further back than its length
  };
  /// Rows by position; they come in any order.
  struct Rows {
    std::vector<std::optional<std::uint64_t>> rows;
    Position whole = 0;  ///< those before it are all there

    std::optional<std::uint64_t> at(Position p) const {
      return p < std::ssize(rows) ? rows[static_cast<std::size_t>(p)] : std::nullopt;
    }
    /// @return false if another one is there.
    bool put(Position p, std::uint64_t row);
  };
  struct Replica {
    Rows full, sliding;
    AnswerGuide guide;
    std::int64_t behind = 0;  ///< rows whose K/V one that has its own has yet to compute
  };
  /// What a clock shows that runs faster or slower than others.
  struct Clock {
    double speed = 1;
    TimePoint at(TimePoint time) const {
      return TimePoint(
          Duration(static_cast<std::int64_t>(static_cast<double>(time.time_since_epoch().count()) * speed)));
    }
    /// How long it takes until it shows `then`.
    Duration until(TimePoint then, TimePoint time) const {
      return Duration(static_cast<std::int64_t>(static_cast<double>((then - at(time)).count()) / speed));
    }
  };
  /// What looks for a coordinator where one may be, in their order.
  struct Seeker {
    std::size_t place = 0;  ///< where it is, or looks next
    bool dials = false;     ///< it has no connection
  };
  /// A process that takes part. It is away while it has no core.
  struct Node : Seeker {
    PeerId peer;              ///< another one after each start
    std::uint64_t moves = 0;  ///< to other places
    Clock clock;
    TimePoint back{}, frozen_until{}, deaf_until{}, dumb_until{}, mute_until{};
    /// As its coordinator knows it: another one with each connection.
    PeerId connection() const { return moves == 0 ? peer : fmt::format("{}/{}", peer, moves); }
  };
  struct Verifier : Node {
    std::unique_ptr<VerifierCore> core;
    std::map<SessionId, Cache> caches;      ///< its K/V
    std::map<SessionId, Sampler> samplers;  ///< of the sessions that sample
    std::map<std::string, TimePoint> grammars = {};  ///< when each is compiled
    std::vector<VerifyResult> results;
    TimePoint busy_until{};  ///< it computes
    Duration taken{};        ///< of that pass: the cores were the drafters'
  };
  struct Drafter : Node {
    std::unique_ptr<DrafterCore> core;
    std::map<SessionId, Replica> replicas;
    std::vector<std::pair<DraftTurn, DraftProgress>> busy;  ///< the pass that is out
    TimePoint busy_until{};
    std::int64_t asked = 0;  ///< since the beginning
    /// The last kDraft of a session, and the drafts that are being verified.
    struct Lead {
      DraftWork work;
      std::vector<TokenId> drafts;
      std::optional<Candidates> asked = {};  ///< what was asked for, until it is due
      int guesses = 0;
      std::size_t steps = 0;                    ///< since the last answer
      std::vector<std::size_t> tree_rows = {};  ///< of the forward passes of a pair's tree
      Candidates spent = {};                    ///< on the next one
      std::optional<bool> next_is_right = {};   ///< the drafter's first choice after all drafts
    };
    std::map<SessionId, Lead> leads;
  };

  struct Encoder : Node {
    std::unique_ptr<EncoderCore> core;
    std::optional<WireMedium> busy;
  };

  /// One that asked for a text.
  struct Client : Seeker {
    std::vector<Generate> requests;
    AnswerEvents events;
    std::unique_ptr<ClientCore> core;
    Clock clock;
    PeerId peer;  ///< another one for each connection; "": there is none, or none any more
  };
  /// A place where a coordinator may be.
  struct Coordinator {
    std::unique_ptr<CoordinatorCore> core;  ///< none while it is away
    Clock clock;
    TimePoint back{};
    std::uint64_t incarnation = 0;
    std::map<PeerId, TokenBucket> in_vain = {};
  };

  bool has_standby() const { return coordinators_.size() > 1; }
  void start_coordinator(Coordinator& coordinator);
  void tick_coordinators();
  /// Whether somebody who looks for a coordinator has found one.
  bool find_coordinator(Seeker& seeker);
  /// Looks for one at the next place.
  void redial(Seeker& seeker);
  /// A worker's connection is lost, and it looks for another.
  void leave_coordinator(Node& node, bool goes_on);
  /// What a worker's loop does with its connection.
  void tend_connection(Node& node, bool redial);
  void cut(Client& client);
  /// Connects those that look for a coordinator, and lets time pass for all.
  void tick_clients();
  /// Deals with what a client was told.
  void reap(std::uint64_t number, const Result<void>& result);
  void step();
  void on_event(Event event);
  void schedule(Duration after, Event::Kind kind, PeerId peer, std::unique_ptr<Message> message = {},
                std::size_t place = 0);
  /// Sends over the faulty network.
  void transmit(Event::Kind kind, Node& node, const Message& message);
  /// Each does what is due, and sends.
  void flush(Coordinator& coordinator);
  void flush(Verifier& verifier);
  void flush(Drafter& drafter);
  void flush(Encoder& encoder);
  void flush_all();
  void note(const std::vector<Notice>& notices);
  /// @return whether there is such a client.
  bool to_client(const PeerId& peer, const Message& message);
  /// Whether a session goes on where it was, and not after its end.
  void check_text(const PeerId& peer, const Message& message);
  void start(Verifier& verifier);
  void start(Drafter& drafter);
  void start(Encoder& encoder);
  template <typename Worker>
  void crash(Worker& worker, Duration away);
  template <typename Worker>
  void strike(Worker& worker, double restart);
  Node* find(const PeerId& peer);
  Verifier* find_verifier(const PeerId& peer);
  Drafter* find_drafter(const PeerId& peer);
  Encoder* find_encoder(const PeerId& peer);
  /// Seconds of a forward pass, and of a pass of the drafter.
  Duration pass_time(std::int64_t rows);
  Duration draft_time(const Drafter& drafter, std::int64_t rows);
  /// Whether the fleet's books are what the sessions say.
  void check_books(const CoordinatorCore& coordinator);
  /// Whether no peer says much that is of no use. One message was.
  void check_in_vain(Coordinator& coordinator, const PeerId& peer);
  /// Whether nothing piles up.
  void check_memory();
  Clock some_clock() { return {faults_.skew > 0 ? 1 + faults_.skew * (2 * rng_.uniform() - 1) : 1}; }
  bool lies(const Drafter& drafter) const { return &drafter - drafters_.data() < layout_.liars; }
  bool by_tokens(const Drafter& drafter) const {
    return &drafter - drafters_.data() >= layout_.drafters - layout_.by_tokens;
  }
  /// Whether it drafts a block a pass.
  bool by_blocks(const Drafter& drafter) const { return layout_.hidden_rows && !by_tokens(drafter); }
  bool lags(const Drafter& drafter) const {
    return !lies(drafter) && &drafter - drafters_.data() < layout_.liars + layout_.laggards;
  }
  bool happens(double per_second) { return rng_.uniform() < per_second * to_seconds(tick()); }
  static Duration tick() { return std::chrono::milliseconds(10); }
  Duration up_to(Duration most) {
    return Duration(static_cast<std::int64_t>(rng_.uniform() * static_cast<double>(most.count())));
  }
  std::vector<VerifyResult> forward(Verifier& verifier, const std::vector<VerifyWork>& batch);
  /// Begins a cache with the rows that a prompt takes over.
  void reuse(Verifier& verifier, const VerifyWork& work);
  /// The row of the last draft that holds. @param rows  prefixes  @param next_token  of a session that samples
  VerifyOutcome choose_tokens(Verifier& verifier, const VerifyWork& work, const TokenTree& tree,
                              const std::vector<std::uint64_t>& rows, TokenId& next_token);
  Duration slow_or(Duration low, Duration high);
  /// Appends rows, or forgets them.
  void change_replica(Drafter& drafter, const DraftWork& work);
  /// The replica must hold what the verifier holds. @return the prefix that its last row and the hidden row stand for.
  std::uint64_t check_replica(Drafter& drafter, const DraftWork& work);
  void begin_drafts(Drafter& drafter, DraftWork work);
  /// @param cost  of the pass
  DraftProgress take_turn(Drafter& drafter, const DraftTurn& turn, const Candidates& cost);
  /// Computes some K/V of rows that need it before a Draft.
  DraftProgress catch_up(Drafter& drafter, SessionId session);
  /// Whether a turn is one of those.
  static bool catches_up(const Drafter& drafter, const DraftTurn& turn);
  /// Rows that a text has in its drafter's next pass.
  std::int64_t rows_of(const Drafter& drafter, const DraftTurn& turn);
  /// Steps to the end of the drafts that are being verified, before the first outcome is drafted for.
  static std::size_t walk(const Drafter::Lead& lead);
  /// Outcomes that are drafted for next, together.
  std::int64_t outcomes_left(const Drafter::Lead& lead);
  /// Drafts for one of them.
  Candidates guess(Drafter& drafter, Drafter::Lead& lead);
  /// Adds drafts after a prefix, the first of them `depth` places after the token that the chain began with.
  void add_drafts(const Drafter& drafter, const DraftWork& work, std::uint64_t prefix, std::size_t depth,
                  Candidates& drafts);
  /// Adds a tree of them, mostly with the right token among a node's children.
  void add_tree(const Drafter& drafter, const DraftWork& work, std::uint64_t prefix, Candidates& drafts);
  /// The tree of a pair's drafter, which knows how likely its choices are (DraftTree).
  void grow_tree(const Drafter& drafter, std::uint64_t prefix, Drafter::Lead& lead);
  /// How many of a round's drafts hold in the next outcome to draft for.
  std::size_t next_outcome(const Drafter::Lead& lead);
  bool drafts_right(const Drafter& drafter, SessionId session, std::size_t depth) {
    return rng_.uniform() < (layout_.pair ? layout_.pair->at(session, depth) : accuracy_) && !lies(drafter);
  }
  /// A distribution that a draft is drawn from, under the rule `rejection`: the target's own.
  Distribution distribution_after(const Draft& draft, std::uint64_t prefix);
  void violated(std::string what) { violations_.push_back(std::move(what)); }

  CounterRng rng_;
  Faults faults_;
  double accuracy_;
  Layout layout_;
  TimePoint now_{};
  std::uint64_t order_ = 0, starts_ = 0;
  std::vector<Event> events_;                                     ///< a heap, the next in front
  std::map<std::pair<Event::Kind, PeerId>, TimePoint> arrivals_;  ///< of what was sent last each way

  std::vector<Coordinator> coordinators_;  ///< in the order in which they are looked for
  const std::uint64_t first_instance_;
  std::uint64_t instances_ = 0, incarnations_ = 0;  ///< coordinators that were started; that died
  std::int64_t moves_ = 0;
  std::map<std::uint64_t, Client> clients_;                        ///< by number of their request
  std::map<std::pair<PeerId, SessionId>, std::int64_t> sessions_;  ///< open ones: what they are to send next
  std::vector<Verifier> verifiers_;
  std::vector<Drafter> drafters_;
  std::vector<Encoder> encoders_;
  SamplingScratch scratch_;
  bool sampled_ = false;  ///< some session samples: its tokens are not choose()'s
  std::map<std::uint64_t, Answer> answers_;
  std::size_t open_ = 0;  ///< of these, not ended
  std::vector<std::string> violations_, notices_;
  std::int64_t drafter_restarts_ = 0, verifier_restarts_ = 0, encoder_restarts_ = 0, messages_ = 0;
  std::map<DType, std::int64_t> rows_;
  std::int64_t token_rows_ = 0;
};

}  // namespace outrider::simulation
