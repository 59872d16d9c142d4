#pragma once

#include "server/http_message.h"

namespace outrider {

/// The page at /: page/index.html, which is within the program. It needs no key itself; what it asks for does.
HttpRoute live_page();

}  // namespace outrider
