#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/time.h"
#include "common/client/client.h"
#include "common/pair/pair_files.h"
#include "common/wire/messages/messages.h"
#include "launch/local_cluster.h"
#include "tests/support/program.h"
#include "tests/support/temporary_dir.h"

namespace outrider {

/// One prompt of tests/goldens/nano/generate_golden.json.
struct NanoGolden {
  std::string prompt;
  std::vector<TokenId> prompt_ids;
  std::vector<TokenId> greedy;  ///< Hugging Face's, float32: at most 96, a stop id included
  std::string text;
};

/// All 24; under a sanitizer, which makes each token ten times dearer, every fourth.
std::vector<NanoGolden> nano_goldens();

/// The prompt whose greedy answer repeats for ever: for stories as long as a test needs.
NanoGolden endless_story();

std::filesystem::path source_dir();
PairPaths nano_pair();

/// A pair in a temporary folder: links to the files of another, until one is replaced.
class PairCopy {
 public:
  explicit PairCopy(const std::filesystem::path& original);

  const std::filesystem::path& dir() const { return dir_.path(); }
  /// `name` as in "backbone/config.json".
  std::string read(const std::string& name) const;
  void write(const std::string& name, const std::string& bytes);

 private:
  TemporaryDir dir_;
};

/// What gives exactly golden.greedy.
Generate request_for(const NanoGolden& golden, std::int32_t draft_length);

/// `count` tokens, whatever they are.
Generate story_request(std::int64_t count, std::int32_t draft_length);

/// The text of an answer as `outrider run` prints it.
std::string nano_text(std::span<const TokenId> tokens);

/// Runs the request; an error fails the test.
Generation answer(Client& client, const Generate& request);

/// A client whose first request finds the workers there.
Client connect_when_joined(
    TransportContext& context, const std::string& address, int verifiers, int drafters,
    const std::function<Result<void>()>& still_possible = [] { return Result<void>(); });
/// Of a cluster's own workers, one of each role.
Client connect_when_joined(TransportContext& context, Cluster& cluster);

/// The roles as threads of the test.
class NanoCluster : public testing::Test {
 protected:
  explicit NanoCluster(const ClusterOptions& options = {.pair = nano_pair()}) { restart(options); }
  /// Anew: with a verifier that has seen nothing yet.
  void restart(const ClusterOptions& options);
  Client connect() { return connect_when_joined(context_, *cluster_); }

  const std::vector<NanoGolden> goldens_ = nano_goldens();
  TransportContext context_;
  std::unique_ptr<Cluster> cluster_;
};

/// What the coordinator says of itself.
Status status_of(TransportContext& context, const std::string& address);

/// `outrider run` of the endless story, with no stop id to end it.
class EndlessRun {
 public:
  EndlessRun(std::int64_t max_tokens, const std::vector<std::string>& options);

 private:
  PairCopy unstoppable_;

 public:
  Program program;
};

/// The endless story's first `count` tokens in bf16, decoded plainly by a program of its own.
std::vector<TokenId> plain_story(std::int64_t count);

/// Starts `outrider coordinator` and waits until it listens.
class Coordinator {
 public:
  explicit Coordinator(const std::string& listen = "tcp://127.0.0.1:*", const std::vector<std::string>& options = {});
  Program program;
  std::string address;  ///< "" when it ended instead
};

/// Coordinator, verifier and drafter as the processes that a person would start, and encoders where a test starts some.
struct Trio {
  /// Waits until the workers have joined. @param of_coordinator  its options
  /// @param listen  its address, of a free_port() if it is to be started again
  explicit Trio(bool with_drafter = true, const std::vector<std::string>& of_coordinator = {},
                const std::vector<std::string>& of_verifier = {}, const std::string& listen = "tcp://127.0.0.1:*");
  Program& start_verifier(const std::vector<std::string>& options = {});
  Program& start_drafter();
  /// One more, once it has joined.
  Program& start_encoder(const std::vector<std::string>& options = {});
  /// A client, once the workers are there.
  Client client(int verifiers, int drafters);
  Status status() { return status_of(context, coordinator->address); }
  /// Lines of the coordinator's log.
  std::vector<std::string> warnings() const { return lines_with(coordinator->program.err(), {" warning: "}); }

  TransportContext context;
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<Program> verifier, drafter;
  std::vector<std::unique_ptr<Program>> encoders;
};

}  // namespace outrider
