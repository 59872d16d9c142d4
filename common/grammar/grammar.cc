#include "common/grammar/grammar.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include "common/base/token_tree.h"
#include "common/grammar/engine.h"
#include "common/grammar/grammar_text.h"
#include "common/grammar/pattern.h"
#include "common/tokenizer/answer_controls.h"

namespace outrider {
namespace {

/// Grammars that are kept, those that wait or failed included, and what they may take.
constexpr std::size_t kEntriesMax = 64;
constexpr std::size_t kKeptBytesMax = std::size_t{256} << 20;
constexpr std::int64_t kEngineCacheBytesMax = std::int64_t{64} << 20;
/// Grammars that may wait to be made.
constexpr std::size_t kQueueMax = 32;

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
  // 0xFF is no part of UTF-8, so no text of a grammar matches these; and XGrammar takes tokens without text by no name.
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

/// Masks that were made before they are due.
struct MasksAhead {
  struct Mask {
    bool made = false;
    std::vector<std::uint32_t> bits = {};
    std::span<const std::uint32_t> allowed = {};
  };
  static constexpr std::int64_t kAstray = -2, kBefore = -1;

  std::vector<TokenId> tokens = {};
  std::vector<std::int32_t> depths = {};
  std::vector<Mask> masks = std::vector<Mask>(1);  ///< of each row; those that are not in use keep their memory
  std::int64_t row = kAstray;                      ///< where the answer is: behind this row, or before the first

  void go_on(TokenId token) {
    if (row == kAstray) return;
    const TokenTree tree(std::ssize(tokens) - 1, depths);
    std::vector<std::int64_t> next;
    if (row == kBefore) next = {0};
    if (row >= 0) next = tree.children(row);
    const auto found =
        std::ranges::find(next, token, [&](std::int64_t child) { return tokens[static_cast<std::size_t>(child)]; });
    row = found == next.end() ? kAstray : *found;
  }
};

struct GrammarState::Matcher {
  xgrammar::GrammarMatcher matcher;
  std::vector<TokenId> stop_ids;
  std::int64_t words;  ///< of a mask
  int beyond = 0;      ///< stop tokens accepted after the one that ended the answer: nobody reads them
  MasksAhead ahead = {};

  bool accept(TokenId token);
  void roll_back(int count);
  /// @return what may follow, in `bits`; empty: anything
  std::span<const std::uint32_t> fill(std::vector<std::uint32_t>& bits);
};

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar, std::vector<TokenId> stop_ids)
    : grammar_(std::move(grammar)) {
  const xgrammar::CompiledGrammar& compiled = grammar_->compiled;
  const int vocab_size = compiled.GetTokenizerInfo().GetVocabSize();
  std::erase_if(stop_ids, [&](TokenId id) { return id < 0 || id >= vocab_size; });
  matcher_ = std::make_unique<Matcher>(
      Matcher{xgrammar::GrammarMatcher(compiled, stop_ids), std::move(stop_ids), xgrammar::GetBitmaskSize(vocab_size)});
}
GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;

bool GrammarState::Matcher::accept(TokenId token) {
  if (matcher.IsTerminated()) {
    const bool stops = std::ranges::find(stop_ids, token) != stop_ids.end();
    beyond += int{stops};
    return stops;
  }
  // XGrammar refuses by a warning too.
  const EngineWarnings warnings;
  try {
    return matcher.AcceptToken(token);
  } catch (const std::exception&) {
    return false;
  }
}

void GrammarState::Matcher::roll_back(int count) {
  const int past_end = std::min(count, beyond);
  beyond -= past_end;
  if (count > past_end) matcher.Rollback(count - past_end);
}

std::span<const std::uint32_t> GrammarState::Matcher::fill(std::vector<std::uint32_t>& bits) {
  bits.resize(static_cast<std::size_t>(words));
  DLTensor tensor{.data = bits.data(),
                  .device = {.device_type = kDLCPU, .device_id = 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &words,
                  .strides = nullptr,
                  .byte_offset = 0};
  try {
    if (!matcher.IsTerminated() && !matcher.FillNextTokenBitmask(&tensor)) return {};
    if (!matcher.IsTerminated()) return bits;
  } catch (const std::exception&) {  // nothing may follow
  }
  std::ranges::fill(bits, 0U);
  if (matcher.IsTerminated()) {
    for (const TokenId id : stop_ids) bits[static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
  }
  return bits;
}

bool GrammarState::accept(TokenId token) {
  if (!matcher_->accept(token)) return false;
  matcher_->ahead.go_on(token);
  return true;
}

void GrammarState::roll_back(int count) {
  if (count > 0) matcher_->ahead.row = MasksAhead::kAstray;
  matcher_->roll_back(count);
}

std::span<const std::uint32_t> GrammarState::allowed() {
  MasksAhead& ahead = matcher_->ahead;
  if (ahead.row >= 0 && ahead.masks[static_cast<std::size_t>(ahead.row)].made)
    return ahead.masks[static_cast<std::size_t>(ahead.row)].allowed;
  ahead.row = MasksAhead::kAstray;
  return matcher_->fill(ahead.masks[0].bits);
}

void GrammarState::look_ahead(std::span<const TokenId> tokens, std::span<const std::int32_t> depths) {
  MasksAhead& ahead = matcher_->ahead;
  ahead.tokens.assign(tokens.begin(), tokens.end());
  ahead.depths.assign(depths.begin(), depths.end());
  if (ahead.masks.size() < tokens.size()) ahead.masks.resize(tokens.size());
  for (MasksAhead::Mask& mask : ahead.masks) mask.made = false;
  const auto make = [&](std::int64_t row) {
    MasksAhead::Mask& mask = ahead.masks[static_cast<std::size_t>(row)];
    mask.allowed = matcher_->fill(mask.bits);
    mask.made = true;
  };
  ahead.row = tokens.empty() ? 0 : MasksAhead::kBefore;
  if (tokens.empty()) return make(0);
  const TokenTree tree(std::ssize(tokens) - 1, depths);
  int accepted = 0;  // of the path to the last row that may follow
  for (std::int64_t row = 0; row < tree.rows(); ++row) {
    if (tree.depth(row) > accepted) continue;  // behind one that may not
    matcher_->roll_back(accepted - tree.depth(row));
    accepted = tree.depth(row);
    if (!matcher_->accept(tokens[static_cast<std::size_t>(row)])) continue;
    ++accepted;
    make(row);
  }
  matcher_->roll_back(accepted);
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

/// The first of this many bytes of a rule name it in an error.
constexpr std::size_t kShownBytes = 100;
/// Tokens whose masks are made first, to see how long those of all will take.
constexpr std::size_t kSampleTokens = 8192;

/// The rule that is longest with its repeats written out, and so probably the one that takes long.
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

  Result<std::shared_ptr<const Grammar>> make(const std::string& text) {
    RETURN_IF_ERROR(check_grammar(text));
    if (part_) {
      ASSIGN_OR_RETURN(const double rules_s, seconds(*one_, text));
      ASSIGN_OR_RETURN(const double part_s, seconds(*part_, text));
      const double all_s = rules_s + (part_s - rules_s) * static_cast<double>(step_);
      if (all_s > seconds_max_)
        return Error(Errc::kUnsupported,
                     "the grammar would take {:.0f} s to be made ready for {} tokens, wanted at most {}; "
                     "its longest rule is {}",
                     all_s, tokens_, seconds_max_, longest_rule(text).substr(0, kShownBytes));
    }
    ASSIGN_OR_RETURN(xgrammar::CompiledGrammar compiled,
                     engine_call("grammar", [&] { return all_.CompileGrammar(text); }));
    return Result<std::shared_ptr<const Grammar>>(std::make_shared<const Grammar>(Grammar{std::move(compiled)}));
  }

 private:
  /// For each `step`-th token.
  static xgrammar::GrammarCompiler compiler(const GrammarVocabulary& vocabulary, std::size_t step) {
    std::vector<std::string> tokens;
    for (std::size_t i = 0; i < vocabulary.tokens.size(); i += step) tokens.push_back(vocabulary.tokens[i]);
    // No stop tokens: each answer has its own. RAW: the vocabulary is decoded already.
    return {xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, std::nullopt, std::vector<std::int32_t>{}),
            // Its cache of rules is what makes a schema of many like properties cheap.
            /*max_threads=*/1, /*cache_enabled=*/true, kEngineCacheBytesMax};
  }
  /// Of processor time, to make it ready.
  static Result<double> seconds(xgrammar::GrammarCompiler& compiler, const std::string& text) {
    const double start = thread_seconds();
    RETURN_IF_ERROR(engine_call("grammar", [&] { return compiler.CompileGrammar(text); }));
    return thread_seconds() - start;
  }
  static double thread_seconds() {
    timespec spent{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
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

Result<std::shared_ptr<const Grammar>> GrammarCompiler::find(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto known = entries_.find(text);
  if (known != entries_.end()) {
    known->second.used = ++uses_;
    if (known->second.made) return *known->second.made;
    return std::shared_ptr<const Grammar>();
  }
  if (queue_.size() >= kQueueMax) return Error(Errc::kUnavailable, "{} grammars wait to be made ready", queue_.size());
  entries_[text].used = ++uses_;
  queue_.push_back(text);
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  changed_.notify_all();
  return std::shared_ptr<const Grammar>();
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::wait_for(const std::string& text) {
  for (;;) {
    ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> grammar, find(text));
    if (grammar != nullptr) return grammar;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      const auto entry = entries_.find(text);
      return entry == entries_.end() || entry->second.made.has_value();
    });
  }
}

void GrammarCompiler::run(const std::stop_token& stop) {
  // It may take seconds, beside forward passes that people wait for.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
  std::unique_ptr<Engine> engine;  // once there is a vocabulary
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !queue_.empty(); })) {
    if (stop.stop_requested()) return;
    const std::string text = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Result<std::shared_ptr<const Grammar>> made = no_throw([&]() -> Result<std::shared_ptr<const Grammar>> {
      if (engine == nullptr) {
        const Result<GrammarVocabulary> vocabulary = vocabulary_();
        if (!vocabulary) return Error{Errc::kUnsupported, "no grammar can be followed: " + vocabulary.error().message};
        engine = std::make_unique<Engine>(*vocabulary, seconds_max_);
      }
      return engine->make(text);
    });
    lock.lock();
    entries_[text].made = std::move(made);
    trim();
    changed_.notify_all();
  }
}

void GrammarCompiler::trim() {
  for (;;) {
    std::size_t bytes = 0;
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      const auto& made = it->second.made;
      if (!made) continue;
      bytes += it->first.size() + (*made ? (**made)->compiled.MemorySizeBytes() : 0);
      if (oldest == entries_.end() || it->second.used < oldest->second.used) oldest = it;
    }
    // The newest stays, however large: somebody is about to ask for it.
    const bool fits = entries_.size() <= kEntriesMax && bytes <= kKeptBytesMax;
    if (fits || oldest == entries_.end() || oldest->second.used == uses_) return;
    entries_.erase(oldest);
  }
}

}  // namespace outrider
