#include "common/client/text_side.h"

#include <limits>
#include <utility>

#include "common/model/gemma4/config.h"

namespace outrider {

Result<TextSide> TextSide::load(const ModelFiles& files) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(files));
  ASSIGN_OR_RETURN(ChatFormat chat_format, load_chat_format(files));
  ASSIGN_OR_RETURN(GenerationConfig generation, load_generation_config(files));
  const std::uint64_t fingerprint = tokenizer.fingerprint();
  TextSide text{.tokenizer = std::move(tokenizer),
                .tokenizer_fingerprint = fingerprint,
                .chat_format = std::move(chat_format),
                .generation = std::move(generation)};
  std::int64_t ids = std::numeric_limits<std::int32_t>::max();
  ASSIGN_OR_RETURN(const auto has_config, files.config_json());
  if (has_config) {
    ASSIGN_OR_RETURN(const TextConfig config, load_text_config(files));
    text.context_max = config.max_position_embeddings;
    text.vocab_size = ids = config.vocab_size;
    text.vision = load_vision_config(files);
    text.audio = load_audio_config(files);
  }
  RETURN_IF_ERROR(check_sampling(text.advised(), static_cast<std::int32_t>(ids)));
  return text;
}

SamplingParams TextSide::advised() const {
  SamplingParams params = greedy();
  params.temperature = generation.temperature.value_or(1);
  params.top_k = generation.top_k.value_or(0);
  params.top_p = generation.top_p.value_or(1);
  return params;
}

}  // namespace outrider
