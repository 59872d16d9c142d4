#pragma once

#include <optional>
#include <string>

#include "common/base/option.h"
#include "common/base/result.h"

namespace outrider {

/// Options of all workers.
struct WorkerOptions {
  std::string name = {};        ///< its name at the coordinator; empty: node_name()
  int alone_seconds_max = 0;    ///< ends after this time without a coordinator; 0: never
  int peer_timeout_s = 3;       ///< LinkConfig::peer_timeout
  std::string ready_file = {};  ///< exists while the worker is joined; empty: none
  bool verify_weights = false;  ///< check every byte of its packs against their checksums before it joins
};

template <class Visitor>
void declare_options(Visitor&& visit, WorkerOptions& options) {
  visit("--name", options.name, {"Name of this worker at the coordinator (default: ROLE-HOST-PID)"});
  visit("--exit-when-alone", options.alone_seconds_max,
        {"Seconds without a coordinator after which this worker ends with status 75; 0: never", {0, 1 << 20}});
  visit("--peer-timeout", options.peer_timeout_s,
        {"Seconds without a byte from the coordinator after which the worker connects again", {1, 86'400}});
  visit("--ready-file", options.ready_file,
        {"File that exists while this worker has joined a coordinator, for a readiness probe"});
  visit("--verify-weights", options.verify_weights,
        {.help = "Verify all checksums of a packed model before its use", .of_cluster = true});
}

/// Returns the worker's name.
/// @param otherwise  the default name
/// @return kInvalidArgument for a name that every coordinator would refuse
Result<std::string> chosen_name(const WorkerOptions& options, std::string otherwise);

/// The file of WorkerOptions::ready_file, for a probe that can run a command but cannot connect to anything.
class ReadyFile {
 public:
  explicit ReadyFile(const WorkerOptions& options) : path_(options.ready_file) {}
  ~ReadyFile() {
    if (joined_.value_or(false)) (void)show(false);
  }
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

  /// Makes or removes the file; the first call also removes an earlier process's. @return kIo if that fails
  Result<void> show(bool joined);

 private:
  std::string path_;
  std::optional<bool> joined_;  ///< state of the file; none: unknown
};

}  // namespace outrider
