#include "lab/experiment/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json_fields.h"
#include "common/base/names.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/linear.h"
#include "common/decoding/drafting/policies.h"
#include "common/wire/messages/donor_rows.h"
#include "launch/cluster/backend.h"

namespace outrider {
namespace {
using nlohmann::json;

constexpr int kDraftLengthAxisMax = 16;
constexpr std::size_t kCellsMax = 100000;

struct NamesOf {
  std::vector<std::string> names;
  void operator()(const char* name, auto&&...) { names.emplace_back(name); }
};

struct Writer {
  Json& object;
  void operator()(const char* name, const auto& value, auto&&...) { object[name] = value; }
  void operator()(const char* name, const std::vector<double>& rates) {
    object[name] = rates.empty() ? Json("real") : Json(rates);
  }
};

struct AxesReader {
  const JsonFields& fields;

  void operator()(const char* name, int& value, const Range<int>& range) {
    value = static_cast<int>(fields.integer(name, value, range.min, range.max));
  }
  void operator()(const char* name, double& value, const Range<double>& range) {
    value = fields.number(name, value, range.min, range.max);
  }
  void operator()(const char* name, std::string& value) {
    const json* const found = fields.find(name);
    const bool number = found != nullptr && found->is_number_integer();  // a draft length
    value = number ? found->dump() : fields.text(name, value);
  }
  void operator()(const char* name, std::vector<double>& rates) {
    const json* const found = fields.find(name);
    if (found == nullptr || *found == "real") return;
    const auto good = [](const json& list) {
      double least = 1;
      return list.is_array() && !list.empty() && list.size() <= kDraftLengthMax &&
             std::all_of(list.begin(), list.end(), [&](const json& rate) {
               return rate.is_number() && rate >= 0 && rate <= std::exchange(least, rate.get<double>());
             });
    };
    if (good(*found)) {
      rates = found->get<std::vector<double>>();
    } else {
      fields.wrong(name, "real, or 1 to 32 non-increasing rates between 0 and 1");
    }
  }
};

void check_axes(const JsonFields& fields, const Axes& axes) {
  const auto length = parse_draft_length(axes.draft_length);
  const bool numbered = length && (length->policy == DraftPolicy::kFixed || length->policy == DraftPolicy::kTree);
  const bool known =
      length && (length->policy == DraftPolicy::kAuto || (numbered && length->length <= kDraftLengthAxisMax));
  if (!known)
    fields.wrong("draft_length",
                 fmt::format("0 to {}, tree:1 to tree:{}, or auto", kDraftLengthAxisMax, kDraftLengthAxisMax));
  const auto check_type = [&](const char* key, const std::string& name) {
    if (const auto type = parse_weight_type(name); !type) fields.refuse(key, "is no type: " + type.error().message);
  };
  check_type("dtype", axes.dtype);
  const bool isa_known = std::ranges::any_of(isas(), [&](Isa isa) { return axes.drafter_isa == to_string(isa); });
  if (axes.drafter_isa != kDetectedIsa && !isa_known)
    fields.wrong("drafter_isa", fmt::format("{}, {}", kDetectedIsa, names_of(isas())));
  if (!parse_wire_form(axes.wire)) fields.wrong("wire", "exact, int8, int4 or auto");
  if (axes.open_loop() && axes.clients != 1)
    fields.refuse("clients", "is for a closed loop: with a request_rate each request has a client of its own");
  if (!axes.open_loop() && axes.arrivals.burstiness != 1)
    fields.refuse("burstiness", "is only for a request_rate above 0");
  if (!axes.drafter_dtype.empty()) check_type("drafter_dtype", axes.drafter_dtype);
}

/// Returns every combination of the values that a sweep lists for its axes, the last named axis fastest.
std::vector<json> combinations(const nlohmann::ordered_json& sweep, const JsonFields& fields) {
  std::vector<json> objects = {json::object()};
  for (const auto& [key, values] : sweep.items()) {
    if (!values.is_array() || values.empty()) {
      fields.wrong(key.c_str(), "a list of values");
      return {};
    }
    if (objects.size() * values.size() > kCellsMax) {
      fields.refuse(key.c_str(), fmt::format("makes more than {} cells", kCellsMax));
      return {};
    }
    std::vector<json> more;
    for (const json& object : objects) {
      for (const auto& value : values) {
        more.push_back(object);
        more.back()[key] = value;
      }
    }
    objects = std::move(more);
  }
  return objects;
}

/// Returns each cell once, with those adjacent that the same processes can run.
std::vector<Axes> in_order(const std::vector<Axes>& cells) {
  std::set<std::string> seen;
  std::map<std::string, std::size_t> places;  // in `rigs`
  std::vector<std::vector<Axes>> rigs;
  for (const Axes& cell : cells) {
    if (!seen.insert(to_json(cell).dump()).second) continue;
    const auto [place, is_new] = places.try_emplace(to_json(cell.rig()).dump(), rigs.size());
    if (is_new) rigs.emplace_back();
    rigs[place->second].push_back(cell);
  }
  std::vector<Axes> ordered;
  for (const std::vector<Axes>& rig : rigs) ordered.insert(ordered.end(), rig.begin(), rig.end());
  return ordered;
}

/// Returns the name of the first axis in which they differ.
std::optional<std::string> first_difference(const Axes& a, const Axes& b) {
  const Json left = to_json(a), right = to_json(b);
  for (const auto& [name, value] : left.items()) {
    if (value != right[name]) return name;
  }
  return std::nullopt;
}

/// Joins the axes of requests, from `from`, with those of the cluster, from `rig`.
Axes asked_as(const Axes& from, Axes rig) {
  rig.draft_length = from.draft_length;
  rig.clients = from.clients;
  rig.arrivals = from.arrivals;
  rig.context = from.context;
  rig.output = from.output;
  return rig;
}

void void_fields(auto& v, auto& rule) {
  constexpr Range<double> kShare{0, 1000};
  v("spread", rule.spread, kShare);
  v("steal", rule.steal, kShare);
  v("others", rule.others, kShare);
  v("bandwidth", rule.bandwidth, kShare);
  v("attempts", rule.attempts, Range<int>{1, 100});
}

}  // namespace

std::optional<int> Axes::fixed_length() const {
  const auto length = parse_draft_length(draft_length);
  return length && length->policy == DraftPolicy::kFixed ? std::optional(length->length) : std::nullopt;
}

bool Axes::drafts_ahead() const {
  const auto drafts = parse_draft_length(draft_length);
  const bool chain = drafts && drafts->policy != DraftPolicy::kTree && fixed_length() != 0;
  return chain && link.rtt_ms >= 1 && drafts->ahead.value_or(1) > 0;
}

Axes Axes::rig() const {
  Axes rig = asked_as({}, *this);
  rig.link = {};
  return rig;
}

std::optional<std::string> axis_of_rig(const Axes& axes) { return first_difference(axes, asked_as(axes, {})); }

std::optional<std::string> axis_of_this_machine(const Axes& axes) {
  Axes elsewhere = axes;
  elsewhere.link = {};
  elsewhere.drafter_cpu_share = 1;
  return first_difference(axes, elsewhere);
}

Json to_json(const Axes& axes) {
  Json object = Json::object();
  Writer writer{object};
  Axes::fields(writer, axes);
  return object;
}

std::vector<std::string> varied_axes(const std::vector<Json>& axes) {
  std::vector<std::string> names;
  for (const auto& [name, first] : axes.front().items()) {
    if (std::ranges::any_of(axes, [&](const Json& other) { return other[name] != first; })) names.push_back(name);
  }
  return names;
}

std::string plain_text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

Result<ExperimentPlan> parse_plan(std::string_view text, std::string_view file) {
  ASSIGN_OR_RETURN(const json object, parse_json_object(text, file, /*bytes_max=*/64 << 20));
  // Parsed again for the order of the axes: the last one runs fastest.
  const Json in_text_order = parse_ordered(text);
  const bool lock = object.contains("plan");
  FirstError first_error{.file = std::string(file)};
  const JsonFields whole(object, "", first_error);
  const JsonFields fields = lock ? whole.object("plan") : whole;
  const Json& ordered = lock ? in_text_order["plan"] : in_text_order;
  fields.refuse_others(
      {"model", "prompts", "seed", "repeats", "seconds", "warm_up", "void", "launch", "backend", "sweeps"});

  ExperimentPlan plan;
  plan.model = fields.text("model", "");
  if (fields.contains("prompts")) {
    for (const json& prompt : fields.array("prompts")) {
      if (prompt.is_string()) plan.prompts.push_back(prompt.get<std::string>());
    }
    if (plan.prompts.size() != fields.array("prompts").size()) fields.wrong("prompts", "a list of strings");
  }
  plan.seed = static_cast<std::uint64_t>(fields.integer("seed", 1, 0, std::int64_t{1} << 52));
  plan.repeats = static_cast<int>(fields.integer("repeats", plan.repeats, 3, 1000));
  plan.seconds = fields.number("seconds", plan.seconds, 0, 86400);
  plan.warm_up = static_cast<int>(fields.integer("warm_up", plan.warm_up, 1, 10000));
  if (const json* const launch = fields.find("launch"); launch != nullptr) {
    plan.launch = lock ? in_text_order["plan"]["launch"] : in_text_order["launch"];
    if (!launch->is_string() && !launch->is_object())
      fields.wrong("launch", "a plan of launch, or the name of its file");
    plan.backend = fields.choice("backend", plan.backend, kBackendNames);
  } else if (fields.contains("backend")) {
    fields.refuse("backend", "is for a plan with launch");
  }
  NamesOf void_names, axis_names;
  void_fields(void_names, plan.void_rule);
  const Axes any_axes;
  Axes::fields(axis_names, any_axes);
  const JsonFields rule = fields.object("void");
  rule.refuse_others(void_names.names);
  AxesReader read_rule{rule};
  void_fields(read_rule, plan.void_rule);

  std::vector<Axes> cells;
  std::size_t sweep = 0;
  fields.each("sweeps", "a list of objects", [&](const JsonFields& axes) {
    axes.refuse_others(axis_names.names);
    const std::string prefix = fmt::format("sweeps[{}].", sweep);
    const std::vector<json> objects = combinations(ordered["sweeps"][sweep], axes);
    if (cells.size() + objects.size() > kCellsMax)
      return fields.refuse("sweeps", fmt::format("make more than {} cells", kCellsMax));
    for (const json& combination : objects) {
      const JsonFields one(combination, prefix, first_error);
      AxesReader read{one};
      Axes::fields(read, cells.emplace_back());
      check_axes(one, cells.back());
    }
    ++sweep;
  });
  if (cells.empty()) fields.wrong("sweeps", "a list of at least one sweep");
  if (first_error.error) return *first_error.error;
  plan.cells = in_order(cells);
  return plan;
}

Json to_json(const ExperimentPlan& plan) {
  Json rule = Json::object(), sweeps = Json::array();
  Writer writer{rule};
  void_fields(writer, plan.void_rule);
  for (const Axes& axes : plan.cells) {
    Json lists = to_json(axes);
    for (auto& value : lists) value = Json::array({value});
    sweeps.push_back(std::move(lists));
  }
  Json object = {{"model", plan.model},     {"prompts", plan.prompts}, {"seed", plan.seed}, {"repeats", plan.repeats},
                 {"seconds", plan.seconds}, {"warm_up", plan.warm_up}, {"void", rule}};
  if (!plan.launch.is_null()) object.update({{"launch", plan.launch}, {"backend", plan.backend}});
  object["sweeps"] = std::move(sweeps);
  return object;
}

std::size_t arrival_count(const Axes& axes, double seconds, std::size_t questions) {
  return std::max(questions, static_cast<std::size_t>(std::ceil(axes.arrivals.rate * seconds)));
}

std::vector<double> arrival_times(const Axes& axes, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(axes.arrivals.burstiness, 1 / (axes.arrivals.rate * axes.arrivals.burstiness));
  std::vector<double> times;
  double time = 0;
  while (times.size() < count) times.push_back(time += gap(random));
  return times;
}

}  // namespace outrider
