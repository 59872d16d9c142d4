#include "common/base/complain.h"

#include <cstdio>

#include "common/base/utf8.h"

namespace outrider {

void complain_text(std::string_view text) { std::fprintf(stderr, "outrider: %s\n", printable(text).c_str()); }

}  // namespace outrider
