#include "common/decoding/grammar/grammar.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include "common/decoding/grammar/engine.h"
#include "common/decoding/grammar/grammar_text.h"
#include "common/decoding/grammar/pattern.h"
#include "common/model/tokenizer/answer_controls.h"

namespace outrider {
namespace {

/// Limit of cached grammars, including queued and failed ones, and of their memory.
constexpr std::size_t kEntriesMax = 64;
constexpr std::size_t kKeptBytesMax = std::size_t{256} << 20;
constexpr std::int64_t kEngineCacheBytesMax = std::int64_t{64} << 20;
/// Processor time allowed for following a grammar: at the start, and in addition per token. A drafter can do without.
constexpr double kFollowSeconds = 0.2, kFollowSecondsOfToken = 0.002, kDraftersShare = 0.1;
/// A grammar's first turn in the compiler while others wait; each further turn is twice as long.
constexpr double kTurnSeconds = 1;

}  // namespace

GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, std::int64_t vocab_size) {
  GrammarVocabulary vocabulary;
  vocabulary.tokens.resize(static_cast<std::size_t>(vocab_size));
  for (TokenId id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    std::string& text = vocabulary.tokens[static_cast<std::size_t>(id)];
    if (const auto byte = tokenizer.byte_value(id))
      text = std::string(1, static_cast<char>(*byte));
    else if (!tokenizer.is_special(id))
      text = tokenizer.plain_text(id);
  }
  // 0xFF does not occur in UTF-8, so that no text matches these; and XGrammar cannot name tokens without text.
  const AnswerControls controls = answer_controls(tokenizer);
  for (const std::optional<TokenId>& id : controls.all()) {
    if (id && *id < vocab_size)
      vocabulary.tokens[static_cast<std::size_t>(*id)] = '\xFF' + std::string(tokenizer.token_text(*id));
  }
  return vocabulary;
}

struct Grammar {
  xgrammar::CompiledGrammar compiled;
};

// ---- one answer ----

struct GrammarState::Matcher {
  std::optional<xgrammar::GrammarMatcher> matcher = {};  ///< none: `failure` says why
  std::vector<TokenId> stop_ids = {};
  std::int64_t words = 0;  ///< words of a mask
  int beyond = 0;          ///< stop tokens accepted after the one that ended the answer; never emitted
  double share = 1;        ///< of the processor time that a verifier allows
  double seconds_left = share * kFollowSeconds;
  std::optional<Error> failure = {};  ///< then there is no matcher any more
  std::vector<std::uint32_t> bits = {};
  std::optional<std::span<const std::uint32_t>> mask = {};  ///< the current one, once it is computed

  bool terminated() const { return matcher && matcher->IsTerminated(); }
  /// Makes one call of XGrammar within the budget. @return false if it refuses, exceeds the budget, or fails
  template <typename Call>
  bool attempt(Call&& call);
  bool accept(TokenId token);
  void roll_back(int count);
  /// Computes the mask; empty: any token may follow.
  std::span<const std::uint32_t> fill();
};

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar, std::vector<TokenId> stop_ids, User user)
    : grammar_(std::move(grammar)),
      matcher_(std::make_unique<Matcher>(Matcher{.share = user == User::kDrafter ? kDraftersShare : 1})) {
  const xgrammar::CompiledGrammar& compiled = grammar_->compiled;
  const int vocab_size = compiled.GetTokenizerInfo().GetVocabSize();
  std::erase_if(stop_ids, [&](TokenId id) { return id < 0 || id >= vocab_size; });
  matcher_->words = xgrammar::GetBitmaskSize(vocab_size);
  matcher_->attempt([&] { return matcher_->matcher.emplace(compiled, stop_ids), true; });
  matcher_->stop_ids = std::move(stop_ids);
}
GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;

std::optional<Error> GrammarState::failure() const { return matcher_->failure; }

template <typename Call>
bool GrammarState::Matcher::attempt(Call&& call) {
  const EngineWarnings warnings;  // XGrammar also refuses by a warning
  const EngineBudget budget([&](double seconds) { return seconds <= seconds_left; });
  bool done = false;
  try {
    done = call();
  } catch (const EngineSpent&) {
    failure = Error(Errc::kUnsupported,
                    "to follow the grammar takes more than {} s of processor time, and {} s more for each token: it "
                    "can go on in too many ways at once",
                    share * kFollowSeconds, share * kFollowSecondsOfToken);
  } catch (const std::exception& error) {
    failure = Error(Errc::kUnsupported, "the grammar can be followed no further: {}", error.what());
  }
  if (failure) matcher.reset();
  seconds_left -= budget.seconds();
  return done;
}

bool GrammarState::Matcher::accept(TokenId token) {
  mask.reset();
  if (terminated()) {
    const bool stops = std::ranges::find(stop_ids, token) != stop_ids.end();
    beyond += int{stops};
    return stops;
  }
  return matcher && attempt([&] { return matcher->AcceptToken(token); });
}

void GrammarState::Matcher::roll_back(int count) {
  mask.reset();
  const int past_end = std::min(count, beyond);
  beyond -= past_end;
  if (count > past_end && matcher) matcher->Rollback(count - past_end);
}

std::span<const std::uint32_t> GrammarState::Matcher::fill() {
  bits.resize(static_cast<std::size_t>(words));
  DLTensor tensor{.data = bits.data(),
                  .device = {.device_type = kDLCPU, .device_id = 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &words,
                  .strides = nullptr,
                  .byte_offset = 0};
  bool restricts = true;
  const bool filled = matcher && !terminated() && attempt([&] {
                        restricts = matcher->FillNextTokenBitmask(&tensor);
                        return true;
                      });
  if (!restricts) return {};
  if (filled) return bits;
  std::ranges::fill(bits, 0U);  // no token may follow
  if (terminated()) {
    for (const TokenId id : stop_ids) bits[static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
  }
  return bits;
}

bool GrammarState::accept(TokenId token) {
  if (!matcher_->accept(token)) return false;
  matcher_->seconds_left =
      std::min(matcher_->share * kFollowSeconds, matcher_->seconds_left + matcher_->share * kFollowSecondsOfToken);
  return true;
}

bool GrammarState::accept_draft(TokenId token) { return matcher_->accept(token); }
void GrammarState::roll_back(int count) { matcher_->roll_back(count); }

std::span<const std::uint32_t> GrammarState::allowed() {
  if (!matcher_->mask) matcher_->mask = matcher_->fill();
  return *matcher_->mask;
}

void mask_scores(std::span<const std::uint32_t> allowed, std::span<float> scores) {
  if (allowed.empty()) return;
  for (std::size_t word = 0; word * 32 < scores.size(); ++word) {
    const std::uint32_t bits = word < allowed.size() ? allowed[word] : 0;
    if (bits == ~0U) continue;
    const std::size_t end = std::min(scores.size(), word * 32 + 32);
    for (std::size_t i = word * 32; i < end; ++i) {
      if ((bits >> (i % 32) & 1U) == 0) scores[i] = -std::numeric_limits<float>::infinity();
    }
  }
}

// ---- the cache ----

/// Bytes of a rule that an error shows.
constexpr std::size_t kShownBytes = 100;
/// Tokens of the sample whose masks predict the time for the whole vocabulary.
constexpr std::size_t kSampleTokens = 8192;

/// Returns the longest rule with its repeats expanded: probably the slow one.
std::string_view longest_rule(std::string_view text) {
  std::string_view longest;
  std::size_t most = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::string_view rule = text.substr(begin, text.find('\n', begin) - begin);
    std::size_t length = rule.size();
    for (std::size_t at = 0; (at = rule.find('{', at)) != rule.npos; ++at) {
      if (const std::optional<Repeat> repeat = repeat_at(rule.substr(at)))
        length += static_cast<std::size_t>(std::max(repeat->most, 0));
    }
    if (length > most) longest = rule;
    most = std::max(most, length);
    begin += rule.size() + 1;
  }
  return longest;
}

class GrammarCompiler::Engine {
 public:
  Engine(const GrammarVocabulary& vocabulary, double seconds_max)
      : seconds_max_(seconds_max), tokens_(vocabulary.tokens.size()), all_(compiler(vocabulary, 1)) {
    if (step_ == 1) return;
    part_.emplace(compiler(vocabulary, step_));
    one_.emplace(compiler(vocabulary, tokens_));
  }

  /// @param turns  unsuccessful turns so far
  Result<std::shared_ptr<const Grammar>> make(const std::string& given, int turns) {
    ASSIGN_OR_RETURN(const std::string text, grammar_of_ebnf(given));
    // XGrammar's rule cache identifies a token by its index in the grammar, and so confuses tokens of two grammars.
    if (text.find("Token") != text.npos) {
      all_.ClearCache();
      if (part_) part_->ClearCache(), one_->ClearCache();
    }
    // XGrammar's cache of a text records the interruption; another text continues with the masks so far.
    const std::string anew = text + std::string(static_cast<std::size_t>(turns), '\n');
    if (part_) {
      ASSIGN_OR_RETURN(const double rules_s, seconds(*one_, anew));
      ASSIGN_OR_RETURN(const double part_s, seconds(*part_, anew));
      const double all_s = rules_s + (part_s - rules_s) * static_cast<double>(step_);
      if (all_s > seconds_max_) return too_long(text, all_s);
    }
    ASSIGN_OR_RETURN(xgrammar::CompiledGrammar compiled,
                     engine_call("grammar", [&] { return all_.CompileGrammar(anew); }));
    auto grammar = std::make_shared<const Grammar>(Grammar{std::move(compiled)});
    // Grammars that are too slow to follow usually are so from the first token on.
    if (tokens_ > 0) {
      GrammarState state(grammar, {0});
      state.allowed();
      if (const std::optional<Error> failure = state.failure()) return *failure;
    }
    return Result<std::shared_ptr<const Grammar>>(std::move(grammar));
  }
  Error too_long(const std::string& text, double seconds) const {
    return Error(Errc::kUnsupported,
                 "the grammar would take {:.0f} s to be made ready for {} tokens, wanted at most {}; "
                 "its longest rule is {}",
                 seconds, tokens_, seconds_max_, longest_rule(text).substr(0, kShownBytes));
  }

 private:
  /// Uses every `step`-th token.
  static xgrammar::GrammarCompiler compiler(const GrammarVocabulary& vocabulary, std::size_t step) {
    std::vector<std::string> tokens;
    for (std::size_t i = 0; i < vocabulary.tokens.size(); i += step) tokens.push_back(vocabulary.tokens[i]);
    // No stop tokens: each answer has its own. RAW: the vocabulary is already decoded.
    return {xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, std::nullopt, std::vector<std::int32_t>{}),
            // The rule cache makes a schema with many similar properties cheap.
            /*max_threads=*/1, /*cache_enabled=*/true, kEngineCacheBytesMax};
  }
  /// Returns the processor time of the compilation.
  static Result<double> seconds(xgrammar::GrammarCompiler& compiler, const std::string& text) {
    const double start = thread_seconds();
    RETURN_IF_ERROR(engine_call("grammar", [&] { return compiler.CompileGrammar(text); }));
    return thread_seconds() - start;
  }

  const double seconds_max_;
  const std::size_t tokens_, step_ = std::max<std::size_t>(tokens_ / kSampleTokens, 1);
  xgrammar::GrammarCompiler all_;
  std::optional<xgrammar::GrammarCompiler> part_ = {}, one_ = {};
};

GrammarCompiler::GrammarCompiler(std::function<Result<GrammarVocabulary>()> vocabulary, double seconds_max)
    : vocabulary_(std::move(vocabulary)), seconds_max_(seconds_max) {}

GrammarCompiler::~GrammarCompiler() {
  thread_.request_stop();
  changed_.notify_all();
}

GrammarWait GrammarCompiler::want(const std::string& text, const std::string& client) {
  const std::lock_guard lock(mutex_);
  EntryPtr& known = entries_[text];
  if (known == nullptr) {
    known = std::make_shared<Entry>(Entry{.text = text, .client = client});
    queue_.push_back(known);
    turns_.try_emplace(client, ++turn_);
    if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    changed_.notify_all();
  }
  known->used = ++uses_;
  return [entry = known]() -> Made {
    const bool is_made = entry->made.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    return is_made ? entry->made.get() : std::shared_ptr<const Grammar>();
  };
}

GrammarCompiler::EntryPtr GrammarCompiler::next() {
  std::erase_if(queue_,
                [&](const EntryPtr& entry) { return !is_wanted(entry) && entries_.erase(entry->text) > 0; });
  std::erase_if(turns_, [&](const auto& client) {
    return std::ranges::none_of(queue_, [&](const EntryPtr& entry) { return entry->client == client.first; });
  });
  const auto first = std::ranges::min_element(
      queue_, {}, [&](const EntryPtr& entry) { return std::pair(turns_.at(entry->client), entry->turns); });
  if (first == queue_.end()) return nullptr;
  EntryPtr entry = std::move(*first);
  queue_.erase(first);
  turns_[entry->client] = ++turn_;
  return entry;
}

bool GrammarCompiler::others_are_wanted() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(queue_, is_wanted);
}

std::optional<GrammarCompiler::Made> GrammarCompiler::make(Engine& engine, const EntryPtr& entry,
                                                           const std::stop_token& stop) {
  double taken = 0;
  const EngineBudget budget([&](double seconds) {
    taken = seconds;
    const bool over = seconds > std::ldexp(kTurnSeconds, entry->turns) && others_are_wanted();
    return !stop.stop_requested() && is_wanted(entry) && seconds <= seconds_max_ && !over;
  });
  bool interrupted = false;
  Made made = no_throw([&]() -> Made {
    try {
      return engine.make(entry->text, entry->turns);
    } catch (const EngineSpent&) {
      interrupted = taken <= seconds_max_;
      return engine.too_long(entry->text, taken);
    }
  });
  return interrupted ? std::nullopt : std::optional(std::move(made));
}

void GrammarCompiler::run(const std::stop_token& stop) {
  // It may take seconds beside forward passes that clients wait for. With a lower priority than this, its own client
  // would starve on a crowded machine (docs/lab/cluster.md, "A soak"). A verifier's only thread locks the same mutex,
  // which this slower thread therefore holds for microseconds only.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 5);
  std::unique_ptr<Engine> engine;  // made with the vocabulary
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !queue_.empty(); })) {
    if (stop.stop_requested()) return;
    const EntryPtr entry = next();
    if (entry == nullptr) continue;
    lock.unlock();
    const Result<void> ready = no_throw([&]() -> Result<void> {
      if (engine != nullptr) return {};
      ASSIGN_OR_RETURN(const GrammarVocabulary vocabulary, vocabulary_());
      engine = std::make_unique<Engine>(vocabulary, seconds_max_);
      return {};
    });
    std::optional<Made> made =
        ready ? make(*engine, entry, stop)
              : Made(Error{Errc::kUnsupported, "no grammar can be followed: " + ready.error().message});
    const std::size_t bytes = made && *made ? (**made)->compiled.MemorySizeBytes() : 0;
    lock.lock();
    if (!made) {
      ++entry->turns;
      queue_.push_back(entry);
      turns_.try_emplace(entry->client, turn_);
    } else {
      entry->bytes = entry->text.size() + bytes;
      if (!ready) entries_.erase(entry->text);  // the vocabulary may be readable next time
      entry->promise.set_value(std::move(*made));
    }
    trim();
  }
}

void GrammarCompiler::trim() {
  for (;;) {
    std::size_t bytes = 0;
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (!it->second->bytes) continue;
      bytes += *it->second->bytes;
      if (oldest == entries_.end() || it->second->used < oldest->second->used) oldest = it;
    }
    // The newest stays, however large: its client is about to use it.
    const bool fits = entries_.size() <= kEntriesMax && bytes <= kKeptBytesMax;
    if (fits || oldest == entries_.end() || oldest->second->used == uses_) return;
    entries_.erase(oldest);
  }
}

}  // namespace outrider
