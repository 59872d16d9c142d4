#pragma once

#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tokenizer/tokenizer.h"

namespace outrider {

/// The prompt of a chat that starts with one message of the user, up to where the model answers:
/// `<bos><|turn>user\n{text}<turn|>\n<|turn>model\n`, as Gemma 4's chat template renders it without
/// tools and without thinking. The small models' (E2B, E4B) ends there; the larger ones' goes on
/// with an empty thought, which is not rendered here.
///
/// @param user_text  trimmed of white space, as the template does. Never yields a special token.
/// @return kNotFound for a control token that the vocabulary lacks, kMismatch for one that is not
///   special there, so that users could forge it.
Result<std::vector<TokenId>> render_user_turn(const Tokenizer& tokenizer,
                                              std::string_view user_text);

}  // namespace outrider
