#include "common/wire/transport/worker.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "common/wire/messages/messages.h"

namespace outrider {

Result<std::string> chosen_name(const WorkerOptions& options, std::string otherwise) {
  if (options.name.size() > kWorkerNameBytes.max)
    return Error(Errc::kInvalidArgument, "--name: {} bytes, wanted at most {}", options.name.size(),
                 kWorkerNameBytes.max);
  return options.name.empty() ? std::move(otherwise) : options.name;
}

Result<void> ReadyFile::show(bool joined) {
  if (path_.empty() || joined_ == joined) return {};
  std::error_code failed;
  if (joined) {
    if (!std::ofstream(path_)) return Error(Errc::kIo, "--ready-file {}: cannot be written", path_);
  } else if (std::filesystem::remove(path_, failed); failed) {
    return Error(Errc::kIo, "--ready-file {}: cannot be removed: {}", path_, failed.message());
  }
  joined_ = joined;
  return {};
}

}  // namespace outrider
