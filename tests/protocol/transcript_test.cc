#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "coordinator-node/coordinator_core.h"
#include "drafter-node/drafter_core.h"
#include "encoder-node/encoder_core.h"
#include "tests/support/message_parser.h"
#include "tests/support/message_text.h"
#include "tests/unit/protocol_support.h"
#include "verifier-node/verifier_core.h"

// Plays tests/protocol/*.txt: README.md there says what the lines mean.
namespace outrider {
namespace {

namespace fs = std::filesystem;

/// `1 2 3 4` as `1..4`, `7 7 7` as `7*3`.
std::string token_text(const std::vector<TokenId>& tokens) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size();) {
    const auto run = [&](TokenId step) {
      std::size_t end = i + 1;
      while (end < tokens.size() && tokens[end] == tokens[end - 1] + step) ++end;
      return end - i;
    };
    const std::size_t rising = run(1), same = run(0);
    text += text.empty() ? "" : " ";
    text += rising > 2 ? fmt::format("{}..{}", tokens[i], tokens[i + rising - 1])
            : same > 2 ? fmt::format("{}*{}", tokens[i], same)
                       : fmt::format("{}", tokens[i]);
    i += rising > 2 ? rising : same > 2 ? same : 1;
  }
  return "[" + text + "]";
}

/// K/V rows that every donor has in full, or as far as its window reaches, are written `kv=from..to`, and then their
/// tokens, if there are any.
std::string shorten_rows(std::string text) {
  for (std::size_t at = 0; (at = text.find("kv={", at)) != std::string::npos; ++at) {
    std::size_t end = at + 3;
    for (int depth = 0; end == at + 3 || depth > 0; ++end) depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
    KvRows kv = std::get<KvChunk>(parse_message("kv_chunk " + text.substr(at, end - at)).body).kv;
    const std::vector<TokenId> tokens = std::exchange(kv.tokens, {});
    if (kv != rows(kv.from, kv.to)) continue;
    const std::string with = tokens.empty() ? "" : fmt::format(" tokens={}", token_text(tokens));
    text.replace(at, end - at, fmt::format("kv={}..{}{}", kv.from, kv.to, with));
  }
  return text;
}
std::string lengthen_rows(std::string text) {
  const std::size_t at = text.find("kv="), dots = text.find("..", at);
  if (at == std::string::npos || text[at + 3] == '{' || dots == std::string::npos) return text;
  const std::size_t end = std::min(text.find(' ', at), text.size());
  const KvRows kv = rows(std::stoll(text.substr(at + 3)), std::stoll(text.substr(dots + 2)));
  return text.replace(at, end - at, to_text({.body = KvChunk{kv}}).substr(std::string("kv_chunk ").size()));
}

/// The words `name=number` of a command.
class Arguments {
 public:
  explicit Arguments(std::istringstream& words) {
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos) throw std::invalid_argument("name=number is wanted: " + word);
      numbers_[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
    }
  }
  std::int64_t of(const std::string& name, std::int64_t otherwise) const {
    const auto number = numbers_.find(name);
    return number == numbers_.end() ? otherwise : number->second;
  }

 private:
  std::map<std::string, std::int64_t> numbers_;
};

/// One core, which does what a transcript's lines say, and what it answers as lines.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Does a command of its own. @return false if it is none of them.
  virtual bool command(const std::string& name, std::istringstream& words) = 0;
  virtual void on_message(const PeerId& from, Message message) = 0;
  virtual void tick() = 0;
  /// Says what has come up.
  virtual void collect() = 0;

  void say(const std::string& line) { said_ += "  " + line + "\n"; }
  void say(const CoreOutput& output) {
    for (const auto& [to, message] : output.send) {
      if (!std::holds_alternative<Heartbeat>(message.body))
        say((to.empty() ? "" : to + ": ") + shorten_rows(to_text(message)));
    }
    for (const Notice& notice : output.notices) say((notice.warning ? "warning: " : "note: ") + to_text(notice));
  }
  std::string said() { return std::exchange(said_, ""); }

  TimePoint now{std::chrono::seconds(1)};

 private:
  std::string said_;
};

class VerifierStage : public Stage {
 public:
  explicit VerifierStage(const Arguments& with)
      : core_({.rows_max = with.of("rows_max", 8),
               .prefill_chunk = with.of("prefill_chunk", 4),
               .capacity = {.sessions_max = with.of("sessions_max", 256),
                            .kv_cost = {.bytes_per_position = with.of("bytes_per_position", 0),
                                        .ring_bytes_per_position = with.of("ring_bytes_per_position", 0),
                                        .ring_rows = with.of("ring_rows", 0)},
                            .kv_bytes_max = with.of("kv_bytes_max", std::numeric_limits<std::int64_t>::max())},
               .reuse_min = with.of("reuse_min", 32)},
              named(with.of("context_max", 20))) {}

  bool command(const std::string& name, std::istringstream& words) override {
    std::vector<VerifyResult> results;
    if (name == "done") {  // accepted=N of every verify, the last of row=ROW, next=TOKEN
      const Arguments with(words);
      for (const VerifyWork& work : out_) {
        const auto accepted = static_cast<std::int32_t>(work.prefill ? 0 : with.of("accepted", 0));
        Verdict verdict{.accepted = accepted, .next_token = static_cast<TokenId>(with.of("next", 0))};
        if (!work.depths.empty()) verdict.row = static_cast<std::int32_t>(with.of("row", 0));
        if (work.kv_from)
          verdict.kv = rows(*work.kv_from, work.base + (work.prefill ? std::ssize(work.tokens) : accepted + 1));
        results.push_back({.session = work.session, .round = work.round, .verdict = verdict});
      }
    } else if (name == "broken") {  // why
      std::string why;
      std::getline(words >> std::ws, why);
      for (const VerifyWork& work : out_)
        results.push_back({.session = work.session, .round = work.round, .error = Error{Errc::kMalformed, why}});
    } else if (name == "memory") {
      say(fmt::format("sessions {}, K/V {} bytes, cached {} bytes", core_.session_count(), core_.kv_bytes(),
                      core_.cached_bytes()));
      return true;
    } else {
      return false;
    }
    out_.clear();
    core_.on_batch_done(std::move(results), now);
    return true;
  }
  void on_message(const PeerId&, Message message) override { core_.on_message(std::move(message), now); }
  void tick() override { core_.on_tick(now); }
  void collect() override {
    const VerifierCore::Output output = core_.take_output();
    say(output);
    for (const auto& [id, kept] : output.renamed) say(fmt::format("rename {} to {}", id_text(id), id_text(kept)));
    for (const SessionId id : output.released) say("release " + id_text(id));
    for (const VerifyWork& work : output.batch) {
      std::string line = fmt::format("{} session={} base={} tokens={}", work.prefill ? "prompt" : "verify",
                                     id_text(work.session), work.base, token_text(work.tokens));
      if (work.answered > 0) line += fmt::format(" answered={}", work.answered);
      if (work.kv_from) line += fmt::format(" kv_from={}", *work.kv_from);
      if (work.wire != WireForm::kExact) line += fmt::format(" wire={}", to_string(work.wire));
      if (!work.q.empty()) line += fmt::format(" distributions={}", work.q.size());
      if (work.reuse) {
        line += fmt::format(", {} the rows of {} from {}", work.reuse->take ? "taking" : "copying",
                            token_text(work.reuse->tokens), id_text(work.reuse->from));
        if (work.reuse->answered > 0) line += fmt::format(", {} of the answer", work.reuse->answered);
      }
      if (work.keep_as) line += ", to be kept as " + id_text(*work.keep_as);
      say(line);
      out_.push_back(work);
    }
  }

 private:
  static Hello named(Position context_max) {
    Hello result = hello(Role::kVerifier);
    result.facts.context_max = context_max;
    return result;
  }
  /// Kept starts of texts are numbered from 2^63.
  static std::string id_text(SessionId id) {
    const std::uint64_t number = value(id), kept = std::uint64_t{1} << 63;
    return number < kept ? fmt::format("{}", number) : fmt::format("kept-{}", number - kept);
  }
  VerifierCore core_;
  std::vector<VerifyWork> out_;  ///< the batch that is out
};

class DrafterStage : public Stage {
 public:
  explicit DrafterStage(const Arguments& with)
      : core_({.sessions_max = with.of("sessions_max", 256)}, hello(Role::kDrafter)) {}

  bool command(const std::string& name, std::istringstream& words) override {
    // What comes of a session's turn: SESSION TOKEN..., likewise after a number of tokens of `after`, or SESSION alone
    // where there is more to draft, or nothing more.
    if (name != "drafted" && name != "guessed" && name != "more" && name != "over") return false;
    std::uint64_t session = 0;
    std::size_t after = 0;
    words >> session;
    const auto turn = std::ranges::find(out_, SessionId{session}, &DraftTurn::session);
    if (turn == out_.end()) throw std::invalid_argument("it is not that session's turn");
    if (name == "guessed") words >> after;
    Candidates drafts;
    for (TokenId token; words >> token;) (drafts.after.size() < after ? drafts.after : drafts.tokens).push_back(token);
    DraftProgress progress{.more = name != "over" && (name != "drafted" || ahead_[turn->session])};
    if (!drafts.tokens.empty()) progress.drafts.push_back(std::move(drafts));
    core_.on_turn(*turn, std::move(progress));
    out_.erase(turn);
    return true;
  }
  void on_message(const PeerId&, Message message) override { core_.on_message(std::move(message), now); }
  void tick() override { core_.on_tick(now); }
  void collect() override {
    const DrafterCore::Output output = core_.take_output();
    say(output);
    for (const DraftWork& work : output.work) {
      const std::uint64_t session = value(work.session);
      switch (work.kind) {
        case DraftWork::Kind::kExtend:
          say(fmt::format("append session={} rows {}..{}", session, work.kv.from, work.kv.to));
          break;
        case DraftWork::Kind::kRelease: say(fmt::format("release {}", session)); break;
        case DraftWork::Kind::kAbandon: say(fmt::format("abandon session={}", session)); break;
        case DraftWork::Kind::kDraft:
          say(fmt::format("draft session={} round={} base={} after token {}, {} tokens", session, value(work.round),
                          work.base, work.draft.token, work.draft.draft_length));
          ahead_[work.session] = work.draft.ahead > 0;
      }
    }
    if (output.pass.empty()) return;
    out_ = output.pass;
    std::string turns = "pass";
    for (const DraftTurn& turn : output.pass)
      turns += fmt::format(" session={} round={} base={}", value(turn.session), value(turn.round), turn.base);
    say(turns);
  }

 private:
  DrafterCore core_;
  std::vector<DraftTurn> out_;  ///< the pass that is out
  std::map<SessionId, bool> ahead_;
};

class EncoderStage : public Stage {
 public:
  explicit EncoderStage(const Arguments& with)
      : core_({.sessions_max = with.of("sessions_max", 64),
               .kept_bytes_max = with.of("kept_bytes_max", 1000),
               .soft_tokens = [](const WireMedium& medium) -> Result<SoftTokens> {
                 if (medium.is_sound()) return Error{Errc::kUnsupported, "this model has no audio tower"};
                 return SoftTokens{.count = medium.content.shape[0], .together = true};
               }},
              hello(Role::kEncoder)) {}

  bool command(const std::string& name, std::istringstream& words) override {
    if (name == "encoded") {  // so many soft tokens
      std::int64_t count = 0;
      words >> count;
      core_.on_encoded(zeros({count, 2}), std::chrono::nanoseconds(7));
    } else if (name == "memory") {
      say(fmt::format("sessions {}, kept {} bytes", core_.session_count(), core_.kept_bytes()));
    } else {
      return false;
    }
    return true;
  }
  void on_message(const PeerId&, Message message) override { core_.on_message(std::move(message), now); }
  void tick() override { core_.on_tick(now); }
  void collect() override {
    const EncoderCore::Output output = core_.take_output();
    say(output);
    if (output.work) say(fmt::format("encode U8[{}]", fmt::join(output.work->content.shape, ",")));
  }

 private:
  EncoderCore core_;
};

class CoordinatorStage : public Stage {
 public:
  explicit CoordinatorStage(const Arguments& with)
      : core_({.instance = static_cast<std::uint64_t>(with.of("instance", 50)),
               .failover = {.wait = std::chrono::seconds(with.of("failover_wait", 30)),
                            .limit = static_cast<int>(with.of("failover_limit", 2)),
                            .allow_inexact = with.of("allow_inexact", 0) != 0},
               .drafters_per_sequence = static_cast<int>(with.of("drafters_per_sequence", 1))}) {}

  bool command(const std::string& name, std::istringstream& words) override {
    std::string peer, role;
    words >> peer >> role;
    if (name == "gone") {  // PEER
      core_.on_peer_gone(peer, now);
    } else if (name == "joins") {  // PEER verifier [CLASS], PEER drafter [FORM], or PEER encoder [CLASS]
      const bool verifies = role == "verifier";
      Hello body = hello(verifies ? Role::kVerifier : role == "encoder" ? Role::kEncoder : Role::kDrafter);
      body.name = peer;
      for (std::string word; words >> word;) {
        if (word == "towerless")
          body.no_towers = true, body.encoding_class.clear();
        else if (word.starts_with("soft"))
          body.encoding_class = word;
        else if (verifies)
          body.numeric_class = word;
        else
          body.wire = std::get<Hello>(parse_message("hello wire=" + word).body).wire;
      }
      core_.on_message(peer, {.body = body}, now);
    } else if (name == "heard") {  // PEER SECONDS: it sends heartbeats while they pass
      for (double left = std::stod(role); left > 0; left -= 0.5) {
        now += std::chrono::milliseconds(500);
        core_.on_message(peer, {.body = Heartbeat{}}, now);
        core_.on_tick(now);
      }
    } else if (name == "garbled") {  // PEER [SESSION]
      core_.on_malformed(peer, role.empty() ? SessionId{} : SessionId{std::stoull(role)}, now);
    } else if (name == "failovers") {
      say(to_text({.body = Status{.failovers = core_.status().failovers}}));
    } else if (name == "stops") {
      core_.stop(now);
    } else {
      return false;
    }
    return true;
  }
  void on_message(const PeerId& from, Message message) override { core_.on_message(from, std::move(message), now); }
  void tick() override { core_.on_tick(now); }
  void collect() override { say(core_.take_output()); }

 private:
  CoordinatorCore core_;
};

/// Does one line. @return the core's answer, or why the line was not understood.
std::string play(std::unique_ptr<Stage>& stage, const std::string& line) {
  std::istringstream words(line);
  std::string name;
  words >> name;
  if (name == "verifier" || name == "drafter" || name == "encoder" || name == "coordinator") {
    const Arguments with(words);
    if (name == "verifier") stage = std::make_unique<VerifierStage>(with);
    if (name == "drafter") stage = std::make_unique<DrafterStage>(with);
    if (name == "encoder") stage = std::make_unique<EncoderStage>(with);
    if (name == "coordinator") stage = std::make_unique<CoordinatorStage>(with);
    if (name != "coordinator") stage->on_message("", {.body = Welcome{1}});
    return "";
  }
  if (!stage) throw std::invalid_argument("first say which core it is");
  if (name == "wait") {
    double seconds = 0;
    words >> seconds;
    stage->now += std::chrono::milliseconds(std::llround(seconds * 1000));
  }
  if (name == "tick" || name == "wait") {
    stage->tick();
  } else if (!stage->command(name, words)) {
    PeerId from;
    std::string text = line;
    if (name.ends_with(':')) {
      from = name.substr(0, name.size() - 1);
      text = line.substr(name.size() + 1);
    }
    stage->on_message(from, parse_message(lengthen_rows(text)));
  }
  stage->collect();
  return stage->said();
}

std::vector<std::string> transcripts() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(OUTRIDER_SOURCE_DIR "/tests/protocol"))
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt")
      names.push_back(entry.path().stem().string());
  return names;
}

class Transcript : public testing::TestWithParam<std::string> {};

TEST_P(Transcript, IsWhatTheCoreSays) {
  const fs::path path = OUTRIDER_SOURCE_DIR "/tests/protocol/" + GetParam() + ".txt";
  std::ifstream file(path);
  const std::string wanted(std::istreambuf_iterator<char>(file), {});
  std::istringstream lines(wanted);
  std::string played;
  std::unique_ptr<Stage> stage;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) continue;  // an answer of the last time
    played += line + "\n";
    if (line.empty() || line.starts_with('#')) continue;
    try {
      played += play(stage, line);
    } catch (const std::exception& error) {
      FAIL() << path << ": '" << line << "': " << error.what();
    }
  }
  if (std::getenv("OUTRIDER_REWRITE_TRANSCRIPTS") != nullptr)
    std::ofstream(path) << played;
  else
    EXPECT_EQ(played, wanted) << "OUTRIDER_REWRITE_TRANSCRIPTS=1 writes what the core says now";
}
INSTANTIATE_TEST_SUITE_P(Each, Transcript, testing::ValuesIn(transcripts()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace outrider
