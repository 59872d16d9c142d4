#pragma once

#include <string_view>

#include "common/wire/messages/messages.h"

namespace outrider {

/// The inverse of to_text(), for tests: `verify session=7 round=2 base=12 tokens=[5 6 7] kv_from=8`. Fields that are
/// not named keep their default. In lists `3..6` is 3 4 5 6 and `7*3` is 7 7 7. Tensors are zeros: `F32[2,1,4]`.
/// Throws std::invalid_argument for what it does not understand.
Message parse_message(std::string_view text);

}  // namespace outrider
