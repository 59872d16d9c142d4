#pragma once

#include <optional>
#include <string>

#include "common/base/option.h"
#include "common/base/result.h"
#include "common/base/time.h"

namespace outrider {

/// What a worker of either role is told about its place among others.
struct WorkerOptions {
  std::string name = {};        ///< in the coordinator's books; empty: node_name()
  int alone_seconds_max = 0;    ///< without a coordinator for longer, it ends; 0: it waits for ever
  int peer_timeout_s = 3;       ///< LinkConfig::peer_timeout
  std::string ready_file = {};  ///< is there while the worker is in a coordinator's books; empty: none
  bool verify_weights = false;  ///< compare every byte of its packs with their checksums before it joins
};

template <class Visitor>
void declare_options(Visitor&& visit, WorkerOptions& options) {
  visit("--name", options.name, {"What the coordinator calls this worker (default: ROLE-HOST-PID)"});
  visit("--exit-when-alone", options.alone_seconds_max,
        {"Seconds without a coordinator after which it ends, with status 75; 0: it waits for ever", {0, 1 << 20}});
  visit("--peer-timeout", options.peer_timeout_s,
        {"Seconds without a byte of the coordinator after which it is looked for anew", {1, 86'400}});
  visit("--ready-file", options.ready_file,
        {"A file that exists while a coordinator has this worker in its books: for a readiness probe"});
  visit("--verify-weights", options.verify_weights,
        {.help = "Read all of a packed model before it is used, and compare its checksums", .of_cluster = true});
}

/// What a worker calls itself. @param otherwise  where the options do not say.
/// @return kInvalidArgument for a name that no coordinator would take.
Result<std::string> chosen_name(const WorkerOptions& options, std::string otherwise);

/// How long a worker has been without a coordinator: one whose job was killed must not stay for ever.
class Solitude {
 public:
  explicit Solitude(const WorkerOptions& options) : seconds_max_(options.alone_seconds_max) {}

  /// @param joined  whether a coordinator has it in its books now.
  /// @return kUnavailable, once that was not so for longer than the options allow.
  Result<void> check(bool joined, TimePoint now);

 private:
  int seconds_max_;
  std::optional<TimePoint> alone_since_;
};

/// The file of WorkerOptions::ready_file, for a probe that can run a command but has nothing to connect to.
class ReadyFile {
 public:
  explicit ReadyFile(const WorkerOptions& options) : path_(options.ready_file) {}
  ~ReadyFile() {
    if (joined_.value_or(false)) (void)show(false);
  }
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

  /// Makes the file or takes it away; one that an earlier process left goes with the first call.
  /// @return kIo where that fails
  Result<void> show(bool joined);

 private:
  std::string path_;
  std::optional<bool> joined_;  ///< what the file says; none: not known yet
};

}  // namespace outrider
