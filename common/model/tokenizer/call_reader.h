#pragma once

#include <optional>
#include <string_view>

#include "common/model/tokenizer/chat.h"

namespace outrider {

/// Stands for the token <|"|> in the text of a call: a byte that UTF-8 never has.
inline constexpr char kQuoteMark = '\xFF';

/// Parses the whole text between the control tokens of a call: `call:NAME{key:value,...}`, in the format's own form or,
/// if that fails, in the forms to which models drift (docs: gemma4.md 6.3). O(1) amortised per byte.
/// @return none: it is not a call. The call's id is empty.
std::optional<ToolCall> read_call(std::string_view text);

}  // namespace outrider
