#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// How a checkpoint's chat template differs from its siblings'. We do not run the template, which is
/// a Jinja program: we recognise which of the published ones it is.
struct ChatFormat {
  enum class Revision {
    kFirst,        ///< until April 2026: as the next, but no thought is replayed and each call opens a turn of its own
    kInterleaved,  ///< llama.cpp's: other tool declarations, no turn left open for an unanswered call
    kStandard,     ///< as published with the models since
    kRefreshed,    ///< July 2026: turns balance, a thought opens after a tool response, null is "null"
  };
  Revision revision = Revision::kStandard;
  /// What kFirst and kInterleaved have in common: responses stand in the message that calls.
  bool is_early() const { return revision == Revision::kFirst || revision == Revision::kInterleaved; }
  /// With thinking off, the model's turn starts with an empty thought. The large models' templates
  /// (12B, 26B, 31B) do so; the small ones (E2B, E4B) would leak their thoughts untagged.
  bool primes_empty_thought = false;
  /// Two line breaks stand before and after a picture and a video. Templates of each revision were published that do so
  /// and that do not; a sound stands by itself in all.
  bool sets_media_apart = false;
  /// One line for the user, when the format had to be guessed; else empty.
  std::string warning;
};

/// @param jinja  a template's text, as in chat_template.jinja or a GGUF's tokenizer.chat_template.
/// @return nullopt for a template that is none of those above.
std::optional<ChatFormat> recognise_chat_template(std::string_view jinja);

/// The format of a model: that of its chat template. Without one, models with per-layer embeddings
/// (config.json) count as small ones, and so does what has no config.json either.
///
/// A template that is not recognised sets `warning`; then the format is guessed in the same way.
/// @return kMalformed or kIo for a file that is there and can not be used.
Result<ChatFormat> load_chat_format(const ModelFiles& files);

}  // namespace outrider
