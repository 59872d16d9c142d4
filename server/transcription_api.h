#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/dialect.h"
#include "server/form.h"
#include "server/http_message.h"

// OpenAI's /v1/audio/transcriptions and /v1/audio/translations: chat completions of one sound, with the prompts that
// Gemma's model card has for speech.

namespace outrider {

enum class SpeechTask : std::uint8_t { kTranscribe, kTranslate };

/// What a form says of the sampling and the like is read as a chat's.
/// @param path  of the endpoint
/// @return or the first thing that is wrong
ApiResult<CompletionRequest> parse_speech(const std::vector<FormPart>& form, SpeechTask task,
                                          const ApiDefaults& defaults, std::string_view path);

/// What an answer says, while it comes: of a translation what follows "English: ". All of an answer without that.
class SpeechText {
 public:
  explicit SpeechText(SpeechTask task) : open_(task == SpeechTask::kTranscribe) {}
  /// @return what there is to say now
  std::string push(std::string_view text);
  /// Likewise, at the end of the answer.
  std::string finish();

 private:
  bool open_;
  std::string held_;  ///< before it is open
};

std::vector<HttpRoute> transcription_routes(const ChatBackend& backend);

}  // namespace outrider
