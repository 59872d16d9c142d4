#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/decoding/sampling/params.h"
#include "common/model/audio/audio_config.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/gemma4/generation_config.h"
#include "common/model/tokenizer/chat_format.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/model/vision/vision_config.h"

namespace outrider {

/// What a client must know of the model behind its coordinator: nothing of the weights. Immutable, so any thread.
struct TextSide {
  /// @return kNotFound for a model without a tokenizer; kMalformed, kUnsupported or kIo for a file that is there and
  ///   cannot be used; kInvalidArgument for advice on sampling that no sampler can follow.
  static Result<TextSide> load(const ModelFiles& files);

  /// Ids after which the model has nothing more to say.
  const std::vector<TokenId>& stop_ids() const { return generation.eos_token_ids; }
  /// The most probable token always, but for those that are never chosen.
  SamplingParams greedy() const { return {.suppress_tokens = generation.suppress_tokens}; }
  /// As the checkpoint's makers advise; where they are silent, as vLLM does.
  SamplingParams advised() const;

  Tokenizer tokenizer;
  std::uint64_t tokenizer_fingerprint = 0;
  ChatFormat chat_format;
  GenerationConfig generation;
  std::int64_t context_max = 0, vocab_size = 0;  ///< 0 for a model without a config.json
  /// Of its pictures, or why it sees none. Whether the tower's weights are there, its verifier knows.
  Result<VisionConfig> vision = Error{Errc::kNotFound, "this model has no config.json, and so sees no pictures"};
  /// Likewise of its sounds.
  Result<AudioConfig> audio = Error{Errc::kNotFound, "this model has no config.json, and so hears no sounds"};
};

}  // namespace outrider
