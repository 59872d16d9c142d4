#pragma once

#include <string>

#include "common/wire/messages/messages.h"

namespace outrider {

/// A message as people read it, in one line: `verify session=7 round=2 base=12 tokens=[5 6 7] kv_from=8`. Fields that
/// have their default are left out. A tensor is its type and shape, and a checksum where it is not all zeros:
/// `F32[2,1,4]#0f3c...`.
std::string to_text(const Message& message);

}  // namespace outrider
