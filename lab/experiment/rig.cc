#include "lab/experiment/rig.h"

#include <array>

#include "common/base/time.h"
#include "launch/command_support.h"

namespace outrider {

std::unique_ptr<Cluster> Rig::started(TransportContext& context, const ClusterOptions& options) {
  return or_throw(connect_or_start(context, /*connect=*/"", options)).cluster;
}

Rig::Rig(TransportContext& context, const PairPaths& pair, const Axes& axes) {
  ClusterOptions options{.pair = pair, .weight_type = or_throw(parse_weight_type(axes.dtype)), .processes = true};
  if (!axes.drafter_dtype.empty()) options.drafter_weight_type = or_throw(parse_weight_type(axes.drafter_dtype));
  options.verifier.threads = axes.threads;
  options.verifier.synthetic_acceptance = axes.acceptance;
  options.drafter.threads = axes.drafter_threads;
  options.drafter.draft_vocabulary = axes.draft_vocabulary;
  options.drafter.wire = axes.wire;
  options.verifiers = axes.verifiers;
  options.drafters = 0;
  alone_ = started(context, options);
  options.drafters = axes.drafters;
  colocated_ = started(context, options);
  options.drafter.added_draft_us = static_cast<int>(axes.drafter_added_ms * 1e3);
  options.drafter_route = [this](const std::string& coordinator) -> Result<std::string> {
    ASSIGN_OR_RETURN(link_, LinkEmulator::start(coordinator));
    return link_->address();
  };
  remote_ = started(context, options);
}

std::vector<ExperimentArm> Rig::arms() const {
  if (!elsewhere_.empty()) return {ExperimentArm::kPlain, ExperimentArm::kRemote};
  return {kArms.begin(), kArms.end()};
}

const std::string& Rig::address(ExperimentArm arm) const {
  if (!elsewhere_.empty()) return elsewhere_;
  return (arm == ExperimentArm::kColocated ? colocated_ : arm == ExperimentArm::kRemote ? remote_ : alone_)->address();
}

void Rig::check() {
  for (Cluster* cluster : {alone_.get(), colocated_.get(), remote_.get()}) {
    if (cluster == nullptr) continue;  // elsewhere: its answers say so
    or_throw(cluster->check());
    or_throw(cluster->check_drafter());
  }
}

DraftLength draft_length(ExperimentArm arm, const Axes& axes) {
  if (arm == ExperimentArm::kPlain) return {};
  // Without a drafter this policy has the text itself to draft from, or decodes plainly.
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
    // The first token begins a text, and there is one of them.
    question.prompt.erase(question.prompt.begin());
    question.prompt.insert(question.prompt.begin(), other.begin(), other.end());
  }
  return questions;
}

Calibrator::Calibrator(TransportContext& context, const Rig& rig, const TextSide& text, const Axes& axes)
    : client_(or_throw(Client::connect(context, rig.address(ExperimentArm::kColocated)))),
      asker_(client_, text, axes.output, /*endless=*/axes.synthetic()) {}

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
  do {
    for (const Question& question : questions) calibrator.ask(question, kLengths, &calibration);
  } while (to_seconds(now() - start) < seconds);
  return calibration;
}

}  // namespace outrider
