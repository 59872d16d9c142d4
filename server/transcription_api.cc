#include "server/dialect.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "common/base/ascii.h"
#include "common/base/json_fields.h"
#include "server/answer_grammar.h"
#include "server/request_reader.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// ISO 639-1 codes of languages that OpenAI's clients use.
constexpr std::pair<std::string_view, std::string_view> kLanguages[] = {
    {"af", "Afrikaans"},  {"am", "Amharic"},   {"ar", "Arabic"},   {"az", "Azerbaijani"}, {"be", "Belarusian"},
    {"bg", "Bulgarian"},  {"bn", "Bengali"},   {"bs", "Bosnian"},  {"ca", "Catalan"},     {"cs", "Czech"},
    {"cy", "Welsh"},      {"da", "Danish"},    {"de", "German"},   {"el", "Greek"},       {"en", "English"},
    {"es", "Spanish"},    {"et", "Estonian"},  {"eu", "Basque"},   {"fa", "Persian"},     {"fi", "Finnish"},
    {"fr", "French"},     {"ga", "Irish"},     {"gl", "Galician"}, {"gu", "Gujarati"},    {"ha", "Hausa"},
    {"he", "Hebrew"},     {"hi", "Hindi"},     {"hr", "Croatian"}, {"hu", "Hungarian"},   {"hy", "Armenian"},
    {"id", "Indonesian"}, {"is", "Icelandic"}, {"it", "Italian"},  {"ja", "Japanese"},    {"ka", "Georgian"},
    {"kk", "Kazakh"},     {"km", "Khmer"},     {"kn", "Kannada"},  {"ko", "Korean"},      {"lo", "Lao"},
    {"lt", "Lithuanian"}, {"lv", "Latvian"},   {"mi", "Maori"},    {"mk", "Macedonian"},  {"ml", "Malayalam"},
    {"mn", "Mongolian"},  {"mr", "Marathi"},   {"ms", "Malay"},    {"my", "Burmese"},     {"ne", "Nepali"},
    {"nl", "Dutch"},      {"no", "Norwegian"}, {"pa", "Punjabi"},  {"pl", "Polish"},      {"ps", "Pashto"},
    {"pt", "Portuguese"}, {"ro", "Romanian"},  {"ru", "Russian"},  {"si", "Sinhala"},     {"sk", "Slovak"},
    {"sl", "Slovenian"},  {"so", "Somali"},    {"sq", "Albanian"}, {"sr", "Serbian"},     {"sv", "Swedish"},
    {"sw", "Swahili"},    {"ta", "Tamil"},     {"te", "Telugu"},   {"th", "Thai"},        {"tl", "Tagalog"},
    {"tr", "Turkish"},    {"uk", "Ukrainian"}, {"ur", "Urdu"},     {"uz", "Uzbek"},       {"vi", "Vietnamese"},
    {"yo", "Yoruba"},     {"zh", "Chinese"},   {"zu", "Zulu"}};

/// Prefix of a translation.
constexpr std::string_view kTranslation = "English:";

/// Returns the name of a language from its name or its code, such as en or en-GB. @return empty for an unknown code
std::string language_name(const std::string& language) {
  const std::string code = in_lower_case(language.substr(0, language.find_first_of("-_")));
  if (code.size() > 3) return language;
  for (const auto& [known, name] : kLanguages)
    if (known == code) return std::string(name);
  return "";
}

/// Returns the prompt of Gemma 4's model card ("Audio"); for an unknown language that of Google's guide to Gemma's
/// audio. @param language  its name, or empty
std::string prompt_of_speech(SpeechTask task, const std::string& language, const std::string& hint) {
  std::string prompt;
  if (task == SpeechTask::kTranscribe) {
    prompt = language.empty() ? "Transcribe the following speech segment in its original language."
                              : fmt::format("Transcribe the following speech segment in {0} into {0} text.", language);
    prompt +=
        "\n\nFollow these specific instructions for formatting the answer:\n"
        "* Only output the transcription, with no newlines.\n"
        "* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 instead of "
        "three.";
  } else {
    prompt = fmt::format(
        "Transcribe the following speech segment in {0}, then translate it into English. When formatting the answer, "
        "first output the transcription in {0}, then one newline, then output the string 'English: ', then the "
        "translation in English.",
        language.empty() ? "its original language" : language);
  }
  if (!hint.empty())
    prompt += "\n\nThis text precedes the speech, or has its names and style; do not repeat it: " + hint;
  return prompt;
}

/// Converts a form's field to JSON; names and salts are always strings.
Json value_of_field(const FormPart& part) {
  const std::string text(part.content);
  for (const char* name : {"model", "user", "safety_identifier", "cache_salt"})
    if (part.name == name) return text;
  Json value = json_nesting(text) <= kJsonDepthMax ? parse_json(text) : Json(Json::value_t::discarded);
  return value.is_discarded() || value.is_binary() ? Json(text) : value;
}

ApiError refused_field(std::string_view name, std::string why) {
  return {.message = fmt::format("{} {}", name, why), .param = std::string(name)};
}

/// Returns the error of an invalid field that only these endpoints have.
std::optional<ApiError> wrong_field(std::string_view name, std::string_view value) {
  constexpr const char* kNoTimes = "the model says no times";
  if (name == "response_format" && value != "json" && value != "text")
    return refused_field(name, fmt::format("is '{}', wanted json or text: {}", value.substr(0, 100), kNoTimes));
  if (name == "timestamp_granularities") return refused_field(name, fmt::format("is not supported: {}", kNoTimes));
  if (name == "chunking_strategy" && value != "auto")
    return refused_field(name, "is not supported: a sound is one piece");
  if (name == "include" || name.starts_with("known_speaker_")) return refused_field(name, "is not supported");
  if ((name == "n" && value != "1") || name == "tools" || name == "tool_choice")
    return refused_field(name, "is only for chat completions");
  if (name == "language" && !value.empty() && language_name(std::string(value)).empty())
    return refused_field(name,
                         fmt::format("is '{}', wanted a code of ISO 639-1, such as en, or a language's name", value));
  return std::nullopt;
}

/// Fields of these endpoints only; messages are made here.
constexpr std::string_view kOwnFields[] = {"file", "language", "prompt", "response_format", "chunking_strategy",
                                           "n",    "messages"};

std::string field(const std::vector<FormPart>& form, std::string_view name) {
  const auto found = std::ranges::find(form, name, &FormPart::name);
  return found == form.end() ? "" : std::string(found->content);
}

/// Writes a reply as transcript.text.delta and transcript.text.done, or whole.
class SpeechWriter final : public ReplyWriter {
 public:
  SpeechWriter(SpeechTask task, bool as_text) : text_(task), as_text_(as_text) {}

  std::string event(const ReplyHead& head, const ChoiceEvent& event) override {
    if (warnings_.empty()) warnings_ = head.warnings;
    if (const auto* end = std::get_if<ChoiceEnds>(&event.what)) end_with(end->finish_reason);
    const auto* more = std::get_if<ChatEvent>(&event.what);
    return more != nullptr && more->kind == ChatEvent::Kind::kContent ? delta(text_.push(more->text)) : "";
  }
  std::string usage(const ReplyHead& /*head*/, const Usage& usage) override {
    usage_ = usage_json(usage);
    return "";
  }
  std::string end(const ApiError* error) override {
    if (error != nullptr) return data_event(error_body(*error));
    const std::string last = delta(text_.finish());
    return last +
           data_event(to_text(with_warnings({{"type", "transcript.text.done"}, {"text", sent_}, {"usage", usage_}})));
  }
  std::string whole(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) override {
    warnings_ = head.warnings;
    end_with(choices.front().finish_reason);
    std::string text = text_.push(choices.front().message.content);
    text += text_.finish();
    return as_text_ ? text + "\n" : to_text(with_warnings({{"text", text}, {"usage", usage_json(usage)}}));
  }

  bool as_text() const { return as_text_; }
  /// @return the warning that the answer was cut off, else empty. OpenAI's formats have no field for it
  const std::string& cut_off() const { return cut_off_; }

 private:
  static Json usage_json(const Usage& usage) {
    return {{"type", "tokens"},
            {"input_tokens", usage.prompt_tokens},
            {"output_tokens", usage.completion_tokens},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  }
  void end_with(const std::string& finish_reason) {
    if (finish_reason == "length") warnings_.push_back(cut_off_ = "the text ends at max_tokens");
  }
  std::string delta(const std::string& text) {
    if (text.empty()) return "";
    sent_ += text;
    return data_event(to_text({{"type", "transcript.text.delta"}, {"delta", text}}));
  }
  Json with_warnings(Json body) const {
    if (!warnings_.empty()) body["warnings"] = warnings_;
    return body;
  }

  SpeechText text_;
  bool as_text_;
  std::string sent_, cut_off_;
  Json usage_;
  std::vector<std::string> warnings_;
};

}  // namespace

ApiResult<CompletionRequest> parse_speech(const std::vector<FormPart>& form, SpeechTask task,
                                          const ApiDefaults& defaults, std::string_view path) {
  Json fields = {{"temperature", 0}};
  bool has_file = false;
  for (const FormPart& part : form) {
    const std::string_view name = std::string_view(part.name).substr(0, part.name.find('['));  // include[]
    if (auto wrong = wrong_field(name, part.content)) return *wrong;
    has_file = has_file || part.name == "file";
    if (std::ranges::find(kOwnFields, name) == std::end(kOwnFields)) fields[part.name] = value_of_field(part);
  }
  if (!has_file) return ApiError{.message = "the form has no file", .param = "file"};
  const std::string text = to_text(fields);
  return read_body<CompletionRequest>(fields, defaults, [&](const JsonFields& read, CompletionRequest& request) {
    request.chat = true;
    read_request(read, defaults, {.path = path}, request);
    MediumFile sound{.name = "file", .bytes = field(form, "file"), .kind = MediumFile::Kind::kSound};
    request.source = {.turns = "file", .bytes = std::ssize(text) + sound.size() / 3 * 4};
    const std::string prompt = prompt_of_speech(task, language_name(field(form, "language")), field(form, "prompt"));
    ChatMessage& message = request.conversation.messages.emplace_back();
    message.parts = {{.kind = ContentPart::Kind::kAudio}, {.text = prompt}};
    request.media.push_back(std::move(sound));
    finish_turns(read, "file", request.conversation, request.media);
    read_ending(read, /*goes_on=*/false, request.conversation);
    request.sampling.grammar = read_answer_grammar(read, text);
    request.include_usage = request.stream;
  });
}

std::string SpeechText::push(std::string_view text) {
  if (open_) return std::string(text);
  held_ += text;
  const std::size_t line = held_.starts_with(kTranslation) ? 0 : held_.find(fmt::format("\n{}", kTranslation));
  if (line == held_.npos) return "";
  const std::size_t begin = held_.find_first_not_of(" \n", held_.find(':', line) + 1);
  if (begin == held_.npos) return "";  // a space that may still come
  open_ = true;
  return held_.substr(begin);
}

std::string SpeechText::finish() { return std::exchange(open_, true) ? "" : held_; }

std::vector<HttpRoute> transcription_routes(const ChatBackend& backend) {
  const auto route = [&backend](const char* path, SpeechTask task) {
    const auto handler = [backend, task](const HttpRequest& http) {
      const auto form = parse_form(http.body);
      if (!form) return error_reply({.message = "the request is not a form (multipart/form-data)"});
      const auto writer = std::make_shared<SpeechWriter>(task, field(*form, "response_format") == "text");
      HttpReply reply = backend.chat(http, parse_speech(*form, task, backend.defaults, http.path), writer);
      if (reply.status != 200) return reply;
      if (reply.next) return reply;
      if (writer->as_text()) reply.content_type = "text/plain; charset=utf-8";
      if (!writer->cut_off().empty()) reply.headers.emplace_back("X-Outrider-Warning", writer->cut_off());
      return reply;
    };
    return HttpRoute{.method = "POST", .path = path, .handler = handler, .takes = std::string(kFormType)};
  };
  return {route("/v1/audio/transcriptions", SpeechTask::kTranscribe),
          route("/v1/audio/translations", SpeechTask::kTranslate)};
}

}  // namespace outrider
