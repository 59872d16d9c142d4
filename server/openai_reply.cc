#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/base/utf8.h"
#include "common/client/report.h"
#include "server/http_message.h"
#include "server/openai.h"

namespace outrider {
namespace {
using OrderedJson = nlohmann::ordered_json;  // clients take the first of a token's alternatives as the chosen one

/// Keeps the members' order, which the other to_text() would sort.
std::string ordered_text(const OrderedJson& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

OrderedJson or_null(const std::string& text) { return text.empty() ? OrderedJson() : OrderedJson(text); }

OrderedJson call_json(const ReplyHead& head, std::size_t index, std::size_t call, const std::string& name,
                      const std::string& arguments) {
  return {{"id", call_id(head, index, call)},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", arguments}}}};
}

/// Bytes of a token in the notation of OpenAI's completions.
std::string named_bytes(std::string_view bytes) {
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}
/// @return the token's name in log-probabilities; JSON cannot represent a partial character
std::string name_of(const ReplyHead& head, const ScoredText& text) {
  if (head.tokens_as_ids) return fmt::format("token_id:{}", text.id);
  return is_utf8(text.bytes) ? text.bytes : named_bytes(text.bytes);
}

OrderedJson scored_json(const ReplyHead& head, const ScoredText& text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : text.bytes) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", name_of(head, text)}, {"logprob", text.logprob}, {"bytes", std::move(bytes)}};
}

/// Score in a chat's form.
OrderedJson score_json(const ReplyHead& head, const TokenScore& score) {
  OrderedJson entry = scored_json(head, score.token);
  OrderedJson& top = entry["top_logprobs"] = OrderedJson::array();
  for (const ScoredText& other : score.top) top.push_back(scored_json(head, other));
  return entry;
}

/// Returns one token's entry for each of the lists under "logprobs".
std::vector<std::pair<const char*, OrderedJson>> score_entries(const ReplyHead& head, const TokenScore& score) {
  if (head.chat) return {{"content", score_json(head, score)}};
  OrderedJson logprob, top;  // null for the first of an echoed prompt
  if (score.scored) {
    logprob = top[name_of(head, score.token)] = score.token.logprob;  // always there: up to N + 1 entries
    for (const ScoredText& other : score.top) {
      if (other.id == score.token.id) continue;
      // A character and its only byte may both be tokens.
      const std::string name = name_of(head, other);
      top[top.contains(name) ? named_bytes(other.bytes) : name] = other.logprob;
    }
  }
  return {{"tokens", name_of(head, score.token)},
          {"token_logprobs", std::move(logprob)},
          {"top_logprobs", std::move(top)},
          {"text_offset", score.text_offset}};
}

/// Returns vLLM's prompt_logprobs: per token itself and the most probable ones, by their ids; null for the first.
/// Written as text directly, like logprobs_text().
std::string prompt_logprobs_text(const ReplyHead& head, const Choice& choice) {
  if (!head.prompt_logprobs) return "null";
  std::string list;
  for (const TokenScore& score : choice.prompt_scores) {
    OrderedJson entries;
    const auto add = [&](const ScoredText& text, std::int64_t rank) {
      entries[std::to_string(text.id)] = {
          {"logprob", text.logprob},
          {"rank", rank},
          {"decoded_token", is_utf8(text.bytes) ? text.bytes : named_bytes(text.bytes)}};
    };
    for (std::size_t i = 0; score.scored && i < score.top.size(); ++i)
      add(score.top[i], static_cast<std::int64_t>(i) + 1);
    if (score.scored) add(score.token, score.rank);
    add_entries(list, ordered_text(entries));
  }
  return "[" + list + "]";
}

OrderedJson stop_json(const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* token = std::get_if<TokenId>(&reason)) return *token;
  return nullptr;
}

/// Writes text directly, like content_logprobs().
std::string logprobs_text(const ReplyHead& head, const std::vector<TokenScore>& scores) {
  if (!head.logprobs) return "null";
  std::vector<std::pair<const char*, std::string>> lists = {{"content", ""}};
  if (!head.chat) lists = {{"tokens", ""}, {"token_logprobs", ""}, {"top_logprobs", ""}, {"text_offset", ""}};
  for (const TokenScore& score : scores) {
    const auto entries = score_entries(head, score);
    for (std::size_t i = 0; i < lists.size(); ++i)
      add_entries(lists[i].second, ordered_text(entries[i].second));
  }
  std::string text = head.chat ? R"({"refusal":null})" : "{}";
  for (const auto& [key, list] : lists) text = with_member(std::move(text), key, "[" + list + "]");
  return text;
}

OrderedJson usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens", usage.completion_tokens},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

/// Milliseconds are sums over the request.
OrderedJson speculative_json(const RequestMetrics& metrics) {
  OrderedJson counts = counts_json(metrics);
  counts["wire_bytes"] = metrics.wire_bytes_to_drafter + metrics.wire_bytes_to_drafter_prompt +
                         metrics.wire_bytes_to_verifier + metrics.wire_bytes_to_encoder;
  return counts;
}

double ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }
OrderedJson ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// vLLM's metrics.speculative_decoding: rounds with drafts, by the number accepted. Null for plain decoding.
OrderedJson acceptance_json(const Usage& usage) {
  const RequestMetrics& m = usage.metrics;
  if (usage.draft_length_max == 0) return {};
  const auto kept_beyond = [&](std::size_t position) {
    return position < m.accepted_per_position.size() ? m.accepted_per_position[position] : 0;
  };
  OrderedJson histogram = {m.drafting_rounds - kept_beyond(0)};
  for (std::size_t kept = 1; kept <= static_cast<std::size_t>(usage.draft_length_max); ++kept)
    histogram.push_back(kept_beyond(kept - 1) - kept_beyond(kept));
  return {{"mean_acceptance_length", 1.0 + ratio(m.accepted_tokens, m.drafting_rounds).get<double>()},
          {"draft_acceptance_rate", ratio(m.accepted_tokens, m.drafted_tokens)},
          {"acceptance_histogram", std::move(histogram)},
          {"num_spec_steps", m.drafting_rounds},
          {"num_accepted_draft_tokens", m.accepted_tokens},
          {"num_draft_tokens", m.drafted_tokens},
          {"num_spec_tokens", usage.draft_length_max}};
}

/// vLLM's `metrics`, in which tools look for times and acceptance: for one stream of tokens, else null.
OrderedJson stream_metrics_json(const Usage& usage) {
  const RequestMetrics& m = usage.metrics;
  if (usage.choices != 1) return {};
  OrderedJson json = {{"time_to_first_token_ms", nullptr},
                      {"generation_time_ms", nullptr},
                      {"queue_time_ms", nullptr},
                      {"tokens_per_second", nullptr},
                      {"speculative_decoding", acceptance_json(usage)}};
  const std::int64_t scheduled_ns = m.prefill_ns - m.queue_ns + m.decode_ns;
  if (scheduled_ns <= 0) return json;  // without measurements
  json["time_to_first_token_ms"] = ms(m.prefill_ns - m.queue_ns);
  json["generation_time_ms"] = ms(m.decode_ns);
  json["queue_time_ms"] = ms(m.queue_ns);
  if (usage.completion_tokens > 1)
    json["mean_itl_ms"] = ms(m.decode_ns) / static_cast<double>(usage.completion_tokens - 1);
  json["tokens_per_second"] = 1e3 * static_cast<double>(usage.completion_tokens) / ms(scheduled_ns);
  return json;
}

/// Returns llama.cpp's `timings` of one stream of tokens. The first token comes with the prompt, so that rates are
/// those of later ones.
OrderedJson timings_json(const Usage& usage) {
  const RequestMetrics& m = usage.metrics;
  const std::int64_t computed = usage.prompt_tokens - usage.cached_tokens, steps = usage.completion_tokens - 1;
  const double prompt_ms = ms(m.prefill_ns - m.queue_ns), predicted_ms = ms(m.decode_ns);
  const auto per = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
  OrderedJson json = {{"cache_n", usage.cached_tokens},
                      {"prompt_n", computed},
                      {"prompt_ms", prompt_ms},
                      {"prompt_per_token_ms", per(prompt_ms, static_cast<double>(computed))},
                      {"prompt_per_second", per(1e3 * static_cast<double>(computed), prompt_ms)},
                      {"predicted_n", usage.completion_tokens},
                      {"predicted_ms", predicted_ms},
                      {"predicted_per_token_ms", steps > 0 ? per(predicted_ms, static_cast<double>(steps)) : 0.0},
                      {"predicted_per_second", steps > 0 ? per(1e3 * static_cast<double>(steps), predicted_ms) : 0.0}};
  if (m.drafted_tokens > 0) json.update({{"draft_n", m.drafted_tokens}, {"draft_n_accepted", m.accepted_tokens}});
  return json;
}

/// Adds notes on a request and its processing to a reply, or a stream's last piece.
void add_notes(OrderedJson& json, const ReplyHead& head, const Usage& usage) {
  if (!head.warnings.empty()) json["warnings"] = head.warnings;
  json["speculative"] = speculative_json(usage.metrics);
  json["metrics"] = stream_metrics_json(usage);
  if (usage.choices == 1) json["timings"] = timings_json(usage);
}

OrderedJson reply_json(const ReplyHead& head, const char* object) {
  OrderedJson json = {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
  if (!head.fingerprint.empty()) json["system_fingerprint"] = head.fingerprint;
  return json;
}

std::string event_text(const OrderedJson& json) { return data_event(ordered_text(json)); }

OrderedJson chunk_json(const ReplyHead& head, OrderedJson choices) {
  OrderedJson chunk = reply_json(head, head.chat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = std::move(choices);
  return chunk;
}
OrderedJson no_text(const ReplyHead& head) { return head.chat ? OrderedJson::object() : OrderedJson(""); }
/// Makes a chunk of one choice. @param delta  of chat; of a completion, its text
OrderedJson choice_chunk(const ReplyHead& head, std::size_t index, OrderedJson delta, const ChunkNotes& notes,
                         const std::string& finish_reason) {
  OrderedJson logprobs = notes.scores.empty() ? OrderedJson() : OrderedJson::parse(logprobs_text(head, notes.scores));
  OrderedJson choice = {{"index", index},
                        {head.chat ? "delta" : "text", std::move(delta)},
                        {"logprobs", std::move(logprobs)},
                        {"finish_reason", or_null(finish_reason)}};
  if (head.token_ids) choice["token_ids"] = notes.token_ids;
  if (!notes.prompt_ids.empty() && !head.chat) choice["prompt_token_ids"] = notes.prompt_ids;
  OrderedJson chunk = chunk_json(head, OrderedJson::array({std::move(choice)}));
  if (!notes.prompt_ids.empty() && head.chat) chunk["prompt_token_ids"] = notes.prompt_ids;
  if (notes.so_far != nullptr) chunk["usage"] = usage_json(*notes.so_far);
  if (notes.timed != nullptr) chunk["timings"] = timings_json(*notes.timed);
  return chunk;
}

std::string completion_body(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) {
  std::string list;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const ChatMessage& message = choices[i].message;
    OrderedJson choice = {{"index", i}, {"finish_reason", choices[i].finish_reason}};
    if (head.chat) {
      OrderedJson calls = OrderedJson::array();
      for (std::size_t k = 0; k < message.tool_calls.size(); ++k) {
        calls.push_back(call_json(head, i, k, message.tool_calls[k].name, to_text(message.tool_calls[k].arguments)));
      }
      const bool only_calls = message.content.empty() && !calls.empty();
      choice["message"] = {{"role", "assistant"},
                           {"content", only_calls ? OrderedJson() : OrderedJson(message.content)},
                           {"refusal", nullptr}};
      if (!message.reasoning.empty())
        choice["message"].update({{"reasoning", message.reasoning}, {"reasoning_content", message.reasoning}});
      if (!calls.empty()) choice["message"]["tool_calls"] = std::move(calls);
    } else {
      choice["text"] = message.content;
    }
    // As in vLLM, these keys are present, and null, if not requested.
    choice["token_ids"] = head.token_ids ? OrderedJson(choices[i].token_ids) : OrderedJson();
    if (!head.chat) choice["prompt_token_ids"] = head.token_ids ? OrderedJson(choices[i].prompt_ids) : OrderedJson();
    choice["stop_reason"] = stop_json(choices[i].stop_reason);
    std::string text = with_member(ordered_text(choice), "logprobs", logprobs_text(head, choices[i].scores));
    if (!head.chat) text = with_member(std::move(text), "prompt_logprobs", prompt_logprobs_text(head, choices[i]));
    list.append(i == 0 ? "" : ",").append(text);
  }
  // A person who reads the reply finds the text before all figures.
  std::string text = with_member(ordered_text(reply_json(head, head.chat ? "chat.completion" : "text_completion")),
                                 "choices", "[" + list + "]");
  OrderedJson rest = {{"usage", usage_json(usage)}};
  add_notes(rest, head, usage);
  if (head.chat) rest["prompt_token_ids"] = head.token_ids ? OrderedJson(choices.front().prompt_ids) : OrderedJson();
  if (!head.prompt_text.empty()) rest["__verbose"] = {{"prompt", head.prompt_text}};
  text.back() = ',';
  text.append(ordered_text(rest), 1);
  if (!head.chat) return text;
  return with_member(std::move(text), "prompt_logprobs", prompt_logprobs_text(head, choices.front()));
}

std::string choice_text(const ReplyHead& head, const ChoiceEvent& event, const ChoiceBegins&) {
  if (!head.chat && event.notes.prompt_ids.empty()) return "";
  const OrderedJson delta = head.chat ? OrderedJson{{"role", "assistant"}, {"content", ""}} : OrderedJson("");
  return event_text(choice_chunk(head, event.index, delta, event.notes, ""));
}

std::string choice_text(const ReplyHead& head, const ChoiceEvent& event, const TokensAlone&) {
  return event_text(choice_chunk(head, event.index, no_text(head), event.notes, ""));
}

std::string choice_text(const ReplyHead& head, const ChoiceEvent& event, const ChatEvent& more) {
  OrderedJson delta;
  if (more.kind == ChatEvent::Kind::kContent) {
    delta = head.chat ? OrderedJson{{"content", more.text}} : OrderedJson(more.text);
  } else if (more.kind == ChatEvent::Kind::kReasoning) {
    delta = {{"reasoning", more.text}, {"reasoning_content", more.text}};
  } else {
    OrderedJson call = call_json(head, event.index, event.calls, more.name, more.text);
    call["index"] = event.calls;
    delta = {{"tool_calls", OrderedJson::array({std::move(call)})}};
  }
  return event_text(choice_chunk(head, event.index, std::move(delta), event.notes, ""));
}

std::string choice_text(const ReplyHead& head, const ChoiceEvent& event, const ChoiceEnds& end) {
  OrderedJson chunk = choice_chunk(head, event.index, no_text(head), event.notes, end.finish_reason);
  chunk["choices"][0]["stop_reason"] = stop_json(end.stop_reason);
  if (end.usage != nullptr) add_notes(chunk, head, *end.usage);
  return event_text(chunk);
}

/// speculative.report_rounds: precedes the chunks with the round's text.
std::string choice_text(const ReplyHead& head, const ChoiceEvent& event, const ReportedRound& reported) {
  OrderedJson chunk = choice_chunk(head, event.index, no_text(head), {}, "");
  OrderedJson& json = chunk["outrider_round"] = {{"source", nullptr},
                                                 {"tokens", reported.tokens},
                                                 {"drafts", reported.drafts},
                                                 {"accepted", 0},
                                                 {"draft_length", 0}};
  if (reported.round) {
    const RoundOutcome& outcome = reported.round->outcome;
    json["source"] = to_string(outcome.source);
    json["accepted"] = outcome.accepted;
    json["draft_length"] = reported.round->draft_length;
    json["draft_ms"] = 1e3 * outcome.draft_s;
    json["verify_ms"] = 1e3 * outcome.verify_s;
    json["round_ms"] = 1e3 * outcome.round_s;
    if (!reported.round->depths.empty()) json["depths"] = reported.round->depths;
  }
  if (head.token_ids) {
    json["token_ids"] = reported.token_ids;
    json["draft_ids"] = reported.round ? reported.round->drafts : std::vector<TokenId>();
  }
  return event_text(chunk);
}

class OpenAiWriter final : public ReplyWriter {
 public:
  std::string event(const ReplyHead& head, const ChoiceEvent& event) override {
    return std::visit([&](const auto& what) { return choice_text(head, event, what); }, event.what);
  }
  std::string usage(const ReplyHead& head, const Usage& usage) override {
    OrderedJson chunk = chunk_json(head, OrderedJson::array());
    chunk["usage"] = usage_json(usage);
    add_notes(chunk, head, usage);
    return event_text(chunk);
  }
  std::string end(const ApiError* error) override {
    return (error != nullptr ? data_event(error_body(*error)) : "") + data_event("[DONE]");
  }
  std::string whole(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) override {
    return completion_body(head, choices, usage);
  }
};

}  // namespace

std::shared_ptr<ReplyWriter> openai_writer() { return std::make_shared<OpenAiWriter>(); }

nlohmann::json reply_notes(const ReplyHead& head, const Usage& usage) {
  OrderedJson notes;
  add_notes(notes, head, usage);
  return notes;
}

nlohmann::json timings_of(const Usage& usage) { return timings_json(usage); }

std::string content_logprobs(const ReplyHead& head, const std::vector<TokenScore>& scores) {
  std::string list;
  for (const TokenScore& score : scores) add_entries(list, ordered_text(score_json(head, score)));
  return list;
}

std::string with_member(std::string object, const char* key, std::string_view json) {
  object.pop_back();
  return object.append(fmt::format("{}\"{}\":", object.size() > 1 ? "," : "", key)).append(json) += '}';
}

void add_entries(std::string& list, std::string_view more) {
  if (!list.empty() && !more.empty()) list += ',';
  list += more;
}

std::string call_id(const ReplyHead& head, std::size_t index, std::size_t call) {
  return fmt::format("call_{}_{}_{}", head.id, index, call);
}

}  // namespace outrider
