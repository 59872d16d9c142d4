#include "common/base/result.h"

namespace outrider {

const char* to_string(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument: return "invalid_argument";
    case Errc::kNotFound: return "not_found";
    case Errc::kMalformed: return "malformed";
    case Errc::kUnsupported: return "unsupported";
    case Errc::kMismatch: return "mismatch";
    case Errc::kVersionMismatch: return "version_mismatch";
    case Errc::kTimeout: return "timeout";
    case Errc::kPeerGone: return "peer_gone";
    case Errc::kOutOfRange: return "out_of_range";
    case Errc::kUnavailable: return "unavailable";
    case Errc::kCancelled: return "cancelled";
    case Errc::kIo: return "io";
  }
  return "unknown";
}

}  // namespace outrider
