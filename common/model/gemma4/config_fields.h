#pragma once

#include <string>

#include "common/base/json_fields.h"
#include "common/model/gemma4/config.h"

namespace outrider {

/// Reads a text model's keys, for config.h and for other models with Gemma's layers. Does not read
/// tie_word_embeddings.
/// @param text  text_config, or the top level of a text-only export
/// @param default_type  model_type if there is none
TextConfig read_text_fields(const JsonFields& text, const std::string& default_type, bool assistant,
                            FirstError& first_error);

}  // namespace outrider
