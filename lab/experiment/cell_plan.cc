#include "lab/experiment/cell_plan.h"

namespace outrider {
namespace {

/// Sets keys that a plan must not have: they follow from an axis alone.
class Setter {
 public:
  Setter(Json& object, std::string path, std::optional<Error>& error)
      : object_(object), path_(std::move(path)), error_(error) {}

  void operator()(const char* key, const char* axis, Json value) {
    if (!error_ && object_.contains(key))
      error_ = Error(Errc::kInvalidArgument, "launch: {}{} is {}, which the axis {} says", path_, key,
                     object_[key].dump(), axis);
    object_[key] = std::move(value);
  }

 private:
  Json& object_;
  const std::string path_;
  std::optional<Error>& error_;
};

/// Returns the only group of a role.
Result<Json*> only_group(Json& plan, const char* role) {
  const auto groups = plan.find(role);
  if (groups != plan.end() && groups->is_array() && groups->size() == 1 && groups->front().is_object())
    return &groups->front();
  return Error(Errc::kInvalidArgument, "launch: {} is {}, wanted one group, which the axis {} counts", role,
               groups == plan.end() ? "missing" : groups->dump(), role);
}

/// Places drafters on the verifiers' hosts.
void place_beside(Json& drafters, const Json& verifiers) {
  const Json there = verifiers.value("hosts", Json()), here = drafters.value("hosts", Json());
  if (there == here) return;
  drafters.erase("cpuset");  // of the host that they leave
  drafters.erase("hosts");
  if (!there.is_null()) drafters["hosts"] = there;
}

}  // namespace

Result<Json> cell_plan(const Json& launch, const Axes& axes, ExperimentArm arm) {
  Json plan = launch;
  if (plan.contains("run"))
    return Error{Errc::kInvalidArgument, "launch: run: wanted no commands; the experiment is the only command"};
  std::optional<Error> error;
  Setter(plan, "", error)("dtype", "dtype", axes.dtype);
  // Inserting a key moves all of an object's values: groups are looked up after the last insertion.
  ASSIGN_OR_RETURN(Json* const verifiers, only_group(plan, "verifiers"));
  ASSIGN_OR_RETURN(Json* const drafters, only_group(plan, "drafters"));
  Setter verifier(*verifiers, "verifiers[0].", error), drafter(*drafters, "drafters[0].", error);
  verifier("dtype", "dtype", axes.dtype);
  verifier("count", "verifiers", axes.verifiers);
  verifier("threads", "threads", axes.threads);
  verifier("shards", "shards", axes.shards);
  verifier("synthetic_acceptance", "acceptance", axes.acceptance);
  drafter("dtype", "drafter_dtype", axes.drafter_dtype.empty() ? axes.dtype : axes.drafter_dtype);
  drafter("count", "drafters", axes.drafters);
  drafter("threads", "drafter_threads", axes.drafter_threads);
  drafter("draft_vocabulary", "draft_vocabulary", axes.draft_vocabulary);
  drafter("wire", "wire", axes.wire);
  drafter("added_draft_us", "drafter_added_ms",
          Json::array({arm == ExperimentArm::kRemote ? axes.drafter_added_ms * 1e3 : 0}));
  if (axes.drafter_isa != kDetectedIsa) {
    Json& environment = (*drafters)["environment"];
    if (environment.is_null()) environment = Json::object();
    Setter(environment, "drafters[0].environment.", error)("OUTRIDER_ISA", "drafter_isa", axes.drafter_isa);
  }
  if (error) return *error;
  if (axes.acceptance.empty()) verifiers->erase("synthetic_acceptance");
  if (arm == ExperimentArm::kColocated) place_beside(*drafters, *verifiers);
  if (arm == ExperimentArm::kPlain || arm == ExperimentArm::kNgram) plan.erase("drafters");
  return plan;
}

}  // namespace outrider
