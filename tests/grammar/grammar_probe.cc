// Asks common/decoding/grammar on behalf of the scripts beside it. Each line of standard input is a JSON object, each
// line of the answer another:
//   {"schema": S, "instances": [TEXT, ...]}      -> {"error": WHY} or {"accepted": [BOOL, ...]}
//   {"schema": S, "answers": N, "seed": SEED}    -> {"error": WHY} or {"answers": [TEXT or null, ...]}
//   {"parameters": S, ...}  the same for calls of a tool with these parameters: an answer is its arguments as JSON
// An answer is a random walk over the tokens that the grammar allows; null: it did not come to an end.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "common/decoding/grammar/call_grammar.h"
#include "common/decoding/grammar/grammar.h"
#include "common/decoding/grammar/grammar_text.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat_parser.h"
#include "tests/support/compiled_grammar.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace {
using Json = nlohmann::ordered_json;

constexpr int kLongest = 3000;
constexpr int kUntilClosing = 150;  ///< tokens after which whatever is open is closed as soon as may be

bool is_allowed(std::span<const std::uint32_t> allowed, TokenId token) {
  return allowed.empty() || (allowed[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1U) != 0;
}

class Probe {
 public:
  explicit Probe(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        stop_(tokenizer.find("<eos>").value()),
        controls_(answer_controls(tokenizer)),
        compiler_(
            [&]() -> Result<GrammarVocabulary> { return grammar_vocabulary(tokenizer, tokenizer.vocab_size()); }) {
    for (const char* text : {"\"", "}", "]", ",", ":", "0", "1", "}}", "]}", "\"}"}) {
      if (const auto token = tokenizer.find(text)) marks_.push_back(*token);
      if (marks_.size() == 1 && controls_.quote) marks_.push_back(*controls_.quote);
    }
  }

  Json answer(const Json& request) {
    const bool call = request.contains("parameters");
    const Result<std::string> grammar =
        call ? call_grammar(request["parameters"]) : grammar_of_schema(request["schema"]);
    if (!grammar) return {{"error", grammar.error().message}};
    const auto made = compiled(compiler_, *grammar);
    if (!made) return {{"error", made.error().message}};
    Json reply = Json::object();
    for (const Json& text : request.value("instances", Json::array()))
      reply["accepted"].push_back(accepts(*made, text.get<std::string>()));
    for (int i = 0; i < request.value("answers", 0); ++i) {
      const auto text = walk(*made, request.value("seed", std::uint64_t{0}) + static_cast<std::uint64_t>(i));
      reply["answers"].push_back(!text ? Json() : Json(call ? arguments(*text) : shown(*text)));
    }
    return reply;
  }

 private:
  bool accepts(const std::shared_ptr<const Grammar>& grammar, const std::string& text) const {
    GrammarState state(grammar, {stop_});
    const std::vector<TokenId> tokens = tokenizer_.encode(text, /*parse_special=*/false);
    return std::ranges::all_of(tokens, [&](TokenId token) { return state.accept(token); }) && state.accept(stop_);
  }

  std::vector<TokenId> with_note(const char* note, const std::vector<TokenId>& text) const {
    std::vector<TokenId> result = tokenizer_.encode(note, /*parse_special=*/false);
    result.insert(result.end(), text.begin(), text.end());
    return result;
  }

  Result<std::string> call_grammar(const Json& parameters) const {
    const ToolDeclaration tool{
        .name = "f", .description = "", .parameters = parameters, .response = {}, .strict = true};
    return grammar_of_calls({&tool, 1}, /*many=*/false, controls_);
  }

  std::string shown(const std::vector<TokenId>& answer) const {
    return tokenizer_.decode(answer, /*skip_special=*/true);
  }
  std::string arguments(const std::vector<TokenId>& answer) const {
    ChatParser parser(tokenizer_);
    std::vector<ChatEvent> events;
    for (const TokenId token : answer) std::ranges::move(parser.push(token), std::back_inserter(events));
    parser.finish(false, events);
    const bool whole = !events.empty() && events.back().kind == ChatEvent::Kind::kToolCall;
    return whole ? events.back().text : "no call: " + tokenizer_.decode(answer, /*skip_special=*/false);
  }

  std::optional<std::vector<TokenId>> walk(const std::shared_ptr<const Grammar>& grammar, std::uint64_t seed) const {
    CounterRng rng(seed);
    GrammarState state(grammar, {stop_});
    std::vector<TokenId> text;
    for (int i = 0; i < kLongest; ++i) {
      const auto allowed = state.allowed();
      if (is_allowed(allowed, stop_) && (i > kUntilClosing || rng.uniform() < 0.5)) return text;
      std::vector<TokenId> next;
      // What closes or separates comes more often than among thousands of words, or nothing would ever end.
      const bool closing = i > kUntilClosing;
      if (closing || rng.uniform() < 0.4) {
        for (std::size_t j = 0; j < marks_.size(); ++j) {
          if (closing && j == kClosing && !next.empty()) break;
          if (is_allowed(allowed, marks_[j])) next.push_back(marks_[j]);
        }
      }
      if (next.empty()) {
        for (TokenId token = 0; token < tokenizer_.vocab_size(); ++token) {
          if (token != stop_ && is_allowed(allowed, token)) next.push_back(token);
        }
      }
      if (next.empty() && is_allowed(allowed, stop_)) return text;
      if (next.empty()) return with_note("nothing may follow: ", text);
      const TokenId token = next[static_cast<std::size_t>(rng.uniform() * static_cast<double>(next.size()))];
      if (!state.accept(token)) return with_note("an allowed token is not accepted: ", text);
      text.push_back(token);
    }
    return std::nullopt;
  }

  const Tokenizer& tokenizer_;
  TokenId stop_;
  AnswerControls controls_;
  GrammarCompiler compiler_;
  static constexpr std::size_t kClosing = 4;
  std::vector<TokenId> marks_;  ///< the first kClosing close what is open
};

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  using namespace outrider;
  const Tokenizer tokenizer =
      Tokenizer::load(model_at(argc > 1 ? argv[1] : OUTRIDER_SOURCE_DIR "/models/nano/backbone")).value();
  Probe probe(tokenizer);
  for (std::string line; std::getline(std::cin, line);)
    std::cout << probe.answer(Json::parse(line)).dump(-1, ' ', true) << std::endl;
}
