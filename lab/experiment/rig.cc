#include "lab/experiment/rig.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/time.h"
#include "common/os/progress.h"
#include "lab/experiment/cell_plan.h"
#include "launch/cluster/launcher.h"
#include "launch/cluster/run_folder.h"
#include "launch/plan_file.h"

namespace outrider {
namespace {

/// A launched cluster. The end of a drafter is an error like that of any other process, because measurements without it
/// belong to another cluster.
class LaunchedCluster final : public Cluster {
 public:
  /// Starts it and waits until it is ready. Throws the reason if it does not become so.
  /// @param backend  local, ssh or srun @param folder  a new run folder
  LaunchedCluster(PlanFile plan, const std::string& backend, const std::filesystem::path& folder)
      : plan_(std::move(plan)), run_(or_throw(RunFolder::create(folder, plan_.object))) {
    plan_.set(options_, backend);
    options_.strict = true;
    launcher_.emplace(plan_.object, plan_.processes, options_, run_, [] { return false; });
    const Result<std::optional<int>> not_ready = launcher_->start();
    if (!not_ready || *not_ready)
      throw CommandError("the cluster was not ready{}; the run folder is {}",
                         not_ready ? "" : ": " + not_ready.error().message, run_.path().string());
    address_ = launcher_->addresses();
    context_.emplace(launcher_->security());
  }

  const std::string& address() const override { return address_; }
  Result<void> check() override { return launcher_->check(); }
  Result<void> check_drafter() override { return check(); }
  /// Has a client's key of this run, for all its clients.
  TransportContext& context() { return *context_; }

 private:
  PlanFile plan_;
  LaunchOptions options_;
  RunFolder run_;
  std::optional<Launcher> launcher_;  // uses those above
  std::string address_;
  std::optional<TransportContext> context_;
};

}  // namespace

Rig::Side Rig::started(TransportContext& context, const ClusterOptions& options) {
  Side side{.cluster = or_throw(connect_or_start(context, /*connect=*/"", options)).cluster, .context = &context};
  side.address = side.cluster->address();
  return side;
}

std::unique_ptr<Rig> Rig::own(TransportContext& context, const PairPaths& pair, const Axes& axes) {
  auto rig = std::make_unique<Rig>();
  ClusterOptions options{.pair = pair, .weight_type = or_throw(parse_weight_type(axes.dtype)), .processes = true};
  if (!axes.drafter_dtype.empty()) options.drafter_weight_type = or_throw(parse_weight_type(axes.drafter_dtype));
  options.verifier.threads = axes.threads;
  options.verifier.shards = axes.shards;
  options.verifier.synthetic_acceptance = axes.acceptance;
  options.drafter.threads = axes.drafter_threads;
  options.drafter.draft_vocabulary = axes.draft_vocabulary;
  options.drafter.wire = axes.wire;
  if (axes.drafter_isa != kDetectedIsa) options.drafter_environment["OUTRIDER_ISA"] = axes.drafter_isa;
  options.verifiers = axes.verifiers;
  options.drafters = 0;
  rig->alone_ = started(context, options);
  options.drafters = axes.drafters;
  rig->colocated_ = started(context, options);
  options.drafter.added_draft_us = {axes.drafter_added_ms * 1e3};
  options.drafter_route = [&link = rig->link_](const std::string& coordinator) -> Result<std::string> {
    ASSIGN_OR_RETURN(link, LinkEmulator::start(coordinator));
    return link->address();
  };
  rig->remote_ = started(context, options);
  rig->share_.emplace(rig->remote_.cluster->drafters(), axes.drafter_cpu_share);
  return rig;
}

std::unique_ptr<Rig> Rig::launched(const ExperimentPlan& plan, const Axes& axes, const std::filesystem::path& folder) {
  auto rig = std::make_unique<Rig>();
  for (const auto& [arm, side] : {std::pair(ExperimentArm::kPlain, &rig->alone_),
                                  {ExperimentArm::kColocated, &rig->colocated_},
                                  {ExperimentArm::kRemote, &rig->remote_}}) {
    auto cluster = std::make_unique<LaunchedCluster>(
        PlanFile::of(nlohmann::json(or_throw(cell_plan(plan.launch, axes, arm))), "launch", plan.backend), plan.backend,
        folder / to_string(arm));
    side->address = cluster->address();
    side->context = &cluster->context();
    side->cluster = std::move(cluster);
  }
  return rig;
}

std::unique_ptr<Rig> Rig::running(TransportContext& context, std::string address) {
  auto rig = std::make_unique<Rig>();
  rig->alone_.context = rig->remote_.context = &context;
  rig->alone_.address = rig->remote_.address = std::move(address);
  return rig;
}

std::vector<ExperimentArm> Rig::arms() const {
  if (!calibrates()) return {ExperimentArm::kPlain, ExperimentArm::kRemote};
  return {kArms.begin(), kArms.end()};
}

void Rig::check() {
  for (const Side* side : {&alone_, &colocated_, &remote_}) {
    if (side->cluster == nullptr) continue;  // elsewhere: its answers show failures
    or_throw(side->cluster->check());
    or_throw(side->cluster->check_drafter());
  }
}

DraftLength draft_length(ExperimentArm arm, const Axes& axes) {
  if (arm == ExperimentArm::kPlain) return {};
  // Without a drafter this policy drafts from the sequence itself, or decodes plainly.
  return or_throw(parse_draft_length(arm == ExperimentArm::kNgram ? "auto" : axes.draft_length));
}

std::vector<Question> cell_questions(const TextSide& text, const std::vector<std::string>& prompts, int context) {
  std::vector<Question> questions = user_turns(text, prompts);
  if (context == 0) return questions;
  std::vector<TokenId> other;
  while (std::ssize(other) < context) {
    for (const Question& turn : user_turns(text, {kDemoPrompts.begin(), kDemoPrompts.end()}))
      other.insert(other.end(), turn.prompt.begin() + (other.empty() ? 0 : 1), turn.prompt.end());
  }
  other.resize(static_cast<std::size_t>(context));
  for (Question& question : questions) {
    // Only one token begins the sequence, and it comes first.
    question.prompt.erase(question.prompt.begin());
    question.prompt.insert(question.prompt.begin(), other.begin(), other.end());
  }
  return questions;
}

Calibrator::Calibrator(const Rig& rig, ExperimentArm arm, const TextSide& text, const Axes& axes)
    : client_(rig.connect(arm)), asker_(client_, text, axes.output, /*endless=*/axes.synthetic()) {}

void Calibrator::ask(const Question& question, std::span<const int> lengths, Calibration* into) const {
  for (const int length : lengths) {
    Answers answer;
    asker_.ask(question, {.length = length, .ahead = 0}, answer);
    if (into == nullptr) continue;
    for (const RoundOutcome& round : answer.rounds) into->observe(round);
    into->observe_answer(static_cast<double>(answer.tokens) + 1, static_cast<double>(answer.metrics.prefill_ns) / 1e9);
  }
}

Calibration calibrate(const Calibrator& calibrator, const std::vector<Question>& questions, double seconds) {
  constexpr std::array kLengths = {0, 1, 2, 4, 8, 16, 32};
  calibrator.ask(questions.front(), kLengths, nullptr);  // first use compiles kernels and maps pages
  Calibration calibration;
  const TimePoint start = now();
  Progress progress("calibrating, seconds", std::max(1, static_cast<int>(seconds)));
  do {
    for (const Question& question : questions) {
      calibrator.ask(question, kLengths, &calibration);
      progress.advance_to(to_seconds(now() - start));
    }
  } while (to_seconds(now() - start) < seconds);
  return calibration;
}

}  // namespace outrider
