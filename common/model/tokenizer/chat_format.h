#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// Differences between a checkpoint's chat template and the other published ones. The template, a Jinja program, is not
/// run: it is recognised as one of the published ones.
struct ChatFormat {
  enum class Revision {
    kFirst,        ///< until April 2026: as the next, but without replayed thoughts, and each call opens a turn
    kInterleaved,  ///< llama.cpp's: other tool declarations, no turn left open for an unanswered call
    kStandard,     ///< published with the models since then
    kRefreshed,    ///< July 2026: turns balance, a thought opens after a tool response, null is "null"
  };
  Revision revision = Revision::kStandard;
  /// Returns true if responses are in the message with the calls.
  bool is_early() const { return revision == Revision::kFirst || revision == Revision::kInterleaved; }
  /// With thinking off, the model's turn starts with an empty thought. The large models' templates (12B, 26B, 31B) do
  /// so; the small ones (E2B, E4B) would emit their thoughts untagged.
  bool primes_empty_thought = false;
  /// Two line breaks precede, and two follow, a picture and a video. Each revision was published with and without them;
  /// sounds never have them.
  bool sets_media_apart = false;
  /// A warning for the user if the format had to be guessed; else empty.
  std::string warning;
};

/// @param jinja  a template's text, from chat_template.jinja or a GGUF's tokenizer.chat_template
/// @return nullopt for a template other than those above
std::optional<ChatFormat> recognise_chat_template(std::string_view jinja);

/// Returns the format of a model's chat template. Without one, models with per-layer embeddings (config.json), or
/// without a config.json, count as small ones.
///
/// A template that is not recognised sets `warning`, and the format is guessed in the same way.
/// @return kMalformed or kIo for a file that exists and cannot be used
Result<ChatFormat> load_chat_format(const ModelFiles& files);

}  // namespace outrider
