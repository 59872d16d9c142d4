#include "common/transport/worker.h"

#include <utility>

#include "common/protocol/messages.h"

namespace outrider {

Result<std::string> chosen_name(const WorkerOptions& options, std::string otherwise) {
  if (options.name.size() > kNameBytes.max)
    return Error(Errc::kInvalidArgument, "--name: {} bytes, wanted at most {}", options.name.size(), kNameBytes.max);
  return options.name.empty() ? std::move(otherwise) : options.name;
}

Result<void> Solitude::check(bool joined, TimePoint now) {
  if (joined || seconds_max_ == 0) {
    alone_since_.reset();
    return {};
  }
  if (!alone_since_) alone_since_ = now;
  if (now - *alone_since_ <= std::chrono::seconds(seconds_max_)) return {};
  return Error(Errc::kUnavailable, "no coordinator for {} s (--exit-when-alone)", seconds_max_);
}

}  // namespace outrider
