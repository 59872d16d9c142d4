#include "lab/questions.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/tokenizer/chat.h"
#include "launch/command_support.h"

namespace outrider {

std::vector<Question> user_turns(const TextSide& text, const std::vector<std::string>& messages) {
  std::vector<Question> turns;
  for (const std::string& message : messages)
    turns.push_back({or_throw(render_user_turn(text.tokenizer, message, text.chat_format))});
  return turns;
}

std::vector<Question> read_golden_questions(const std::filesystem::path& path) {
  using nlohmann::json;
  const json list = json::parse(or_throw(read_text(path)), nullptr, /*allow_exceptions=*/false);
  const auto malformed = [&] {
    return std::runtime_error(
        fmt::format("{}: wanted a list of objects with 'prompt_ids' and 'greedy', lists of token ids", path.string()));
  };
  if (!list.is_array() || list.empty()) throw malformed();
  const auto numbers = [&](const json& object, const char* key) {
    if (!object.is_object() || !object.contains(key) || !object[key].is_array()) throw malformed();
    std::vector<std::int32_t> result;
    for (const json& number : object[key]) {
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
        throw malformed();
      result.push_back(number.get<std::int32_t>());
    }
    return result;
  };
  std::vector<Question> questions;
  for (const json& object : list) {
    questions.push_back({numbers(object, "prompt_ids"), numbers(object, "greedy"),
                         object.contains("matches") ? numbers(object, "matches") : std::vector<std::int32_t>()});
  }
  return questions;
}

std::vector<TokenId> golden_prompt(const Checkpoint& golden) {
  const TensorEntry* input = golden.find("input_ids");
  if (input == nullptr) throw std::runtime_error(fmt::format("{}: no tensor 'input_ids'", golden.path().string()));
  std::vector<std::int64_t> ids(static_cast<std::size_t>(input->element_count()));
  or_throw(read_i64(*input, ids));
  return {ids.begin(), ids.end()};
}

double Answers::tok_per_sec() const {
  return metrics.decode_ns == 0 ? 0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(metrics.decode_ns);
}
double Answers::per_round_ms(std::int64_t ns) const {
  return metrics.rounds == 0 ? 0 : static_cast<double>(ns) / 1e6 / static_cast<double>(metrics.rounds);
}
double Answers::acceptance() const {
  return static_cast<double>(metrics.accepted_tokens) /
         static_cast<double>(std::max<std::int64_t>(metrics.drafted_tokens, 1));
}

Asker::Asker(Client& client, const TextSide& text, std::int64_t max_tokens, bool endless)
    : client_(client),
      request_{.prompt = {},
               .max_tokens = max_tokens,
               .stop_ids = endless ? std::vector<TokenId>() : text.stop_ids(),
               .wait_ms = kVerifierWaitMs,
               .sampling = text.greedy(),
               .report_rounds = true} {}

std::vector<TokenId> Asker::ask(const Question& question, const DraftLength& length, Answers& sums) const {
  Generate request = request_;
  request.prompt = question.prompt;
  request.draft_length = length.length;
  request.policy = length.policy;
  request.draft_ahead = length.ahead;
  Generation generation = or_throw(client_.generate(
      request, [](std::span<const TokenId>) {}, [] { return false; },
      [&](const RoundReport& round) { sums.rounds.push_back(round.outcome); }));
  sums.tokens += std::ssize(generation.tokens) - 1;
  add(sums.metrics, generation.metrics);
  return std::move(generation.tokens);
}

}  // namespace outrider
