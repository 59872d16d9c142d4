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

/// A client's part of the model behind its coordinator, without weights. Immutable, so any thread.
struct TextSide {
  /// @return kNotFound for a model without a tokenizer; kMalformed, kUnsupported or kIo for a file that exists and
  /// cannot be used; kInvalidArgument for recommended sampling parameters that no sampler accepts
  static Result<TextSide> load(const ModelFiles& files);

  /// Tokens that end an answer.
  const std::vector<TokenId>& stop_ids() const { return generation.eos_token_ids; }
  /// Greedy sampling, except for tokens that are never chosen.
  SamplingParams greedy() const { return {.suppress_tokens = generation.suppress_tokens}; }
  /// The checkpoint's recommended sampling parameters, or else vLLM's defaults.
  SamplingParams advised() const;

  Tokenizer tokenizer;
  std::uint64_t tokenizer_fingerprint = 0;
  ChatFormat chat_format;
  GenerationConfig generation;
  std::int64_t context_max = 0, vocab_size = 0;  ///< 0 for a model without a config.json
  /// The model's vision config, or the reason for its absence. The verifier knows if the tower's weights are there.
  Result<VisionConfig> vision = Error{Errc::kNotFound, "this model has no config.json, and so sees no pictures"};
  /// The model's audio config, or the reason for its absence.
  Result<AudioConfig> audio = Error{Errc::kNotFound, "this model has no config.json, and so hears no sounds"};
};

}  // namespace outrider
