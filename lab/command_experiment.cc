#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json_fields.h"
#include "common/base/random.h"
#include "common/compute/kernels/isa.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "common/os/logging.h"
#include "lab/experiment/cell.h"
#include "lab/experiment/cell_plan.h"
#include "lab/experiment/journal.h"
#include "lab/experiment/report.h"
#include "lab/read_bandwidth.h"
#include "lab/reporting.h"
#include "launch/cluster/facts.h"
#include "launch/cluster_flags.h"
#include "launch/model_flags.h"
#include "launch/plan_file.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

struct ExperimentFlags {
  fs::path plan, out, report_of;
  std::string connect;  ///< of a running cluster; empty: each cell has clusters of its own
  Security security;    ///< for `connect`
  bool resume = false, dry_run = false;
};

/// Returns everything that the figures depend on besides the plan.
Json program_json(const ExperimentPlan& plan, const PairPaths& pair) {
  Json row = Json(machine_row(plan.cells.front().threads));
  row.update({{"version", OUTRIDER_VERSION},
              {"program", build_id()},
              {"backbone", fs::weakly_canonical(pair.backbone).string()},
              {"assistant", fs::weakly_canonical(pair.assistant).string()}});
  return row;
}

/// Runs a plan, and owns the processes of the current cell.
class Experiment {
 public:
  /// @param runs  folder for the run folders of launched clusters
  Experiment(ExperimentPlan plan, const ExperimentFlags& flags, fs::path runs)
      : plan_(std::move(plan)),
        pair_(or_throw(pair_paths(plan_.model))),
        text_(load_text_side(open_model(pair_.backbone))),
        connect_(flags.connect),
        runs_(std::move(runs)),
        context_(flags.security) {
    check_cells(flags.plan.string());
    if (plan_.prompts.empty()) plan_.prompts.assign(kDemoPrompts.begin(), kDemoPrompts.begin() + kFewPrompts);
    std::vector<Json> cells;
    for (const Axes& cell : plan_.cells) cells.push_back(to_json(cell));
    varied_ = varied_axes(cells);
  }

  const ExperimentPlan& plan() const { return plan_; }
  /// Returns the axes in which the plan's cells differ, for a person.
  std::string label(const Axes& axes) const {
    std::vector<std::string> parts;
    const Json all = to_json(axes);
    for (const auto& [name, value] : all.items()) {
      if (name == "rtt_ms" || name == "draft_length" || std::ranges::find(varied_, name) != varied_.end())
        parts.push_back(fmt::format("{} {}", name, plain_text(value)));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  }
  Json lock() {
    Json lock = {{"plan", to_json(plan_)}, {"machine", describe_machine()}, {"program", program_json(plan_, pair_)}};
    if (!connect_.empty()) lock["cluster"] = cluster_json();
    return lock;
  }

  /// Starts and calibrates a cell's processes, if they are not there already.
  void prepare(const Axes& axes) {
    if (!connect_.empty()) {
      if (!rig_) rig_ = Rig::running(context_, connect_);
      return;
    }
    if (rig_ && running_.rig() == axes.rig()) return;
    rig_.reset();  // frees its cores and memory first
    const TimePoint start = now();
    rig_ = launched() ? Rig::launched(plan_, axes, new_run_folder()) : Rig::own(context_, pair_, axes);
    calibration_ = calibrated(ExperimentArm::kColocated, axes);
    if (launched()) calibration_there_ = calibrated(ExperimentArm::kRemote, axes);
    running_ = axes;
    prepare_s_ = to_seconds(now() - start);
  }
  Measured measure(std::size_t cell, int attempt) {
    const Axes& axes = plan_.cells[cell];
    prepare(axes);
    return measure_cell(*rig_, text_, questions(axes), axes, plan_,
                        mix64(plan_.seed + cell * 1000 + static_cast<std::uint64_t>(attempt)), calibration_,
                        fmt::format("cell {}/{}, attempt {}, blocks", cell + 1, plan_.cells.size(), attempt + 1));
  }
  /// None for a cluster elsewhere, with unknown links and drafters.
  std::optional<Prediction> predicted(const Axes& axes) const {
    if (!connect_.empty()) return std::nullopt;
    return predict(calibration_, launched() ? with_seen_link(axes, calibration_, calibration_there_) : axes);
  }
  double prepare_s() const { return prepare_s_; }

  /// Returns the seconds of an attempt at a cell, without preparing, if arms keep up with an open loop. @pre prepare()
  double expected_s(const Axes& axes, double bandwidth_s) const {
    const auto prediction = predicted(axes);
    Axes without = axes;
    without.draft_length = "0";
    without.arrivals = {};
    const double plain = predict(calibration_, without)->plain, best = best_rate(calibration_, axes);
    const double rates[] = {plain, plain, prediction ? prediction->colocated : best,
                            prediction ? prediction->remote : best};
    double sum = 2 * bandwidth_s;
    Axes alone = axes;
    alone.clients = 1;
    for (const int length : calibrated_lengths(axes)) {
      alone.draft_length = std::to_string(length);
      sum += (1 + plan_.repeats) * answer_s(1, predict(calibration_, alone)->colocated);
    }
    for (const double rate : rates) {
      sum += plan_.warm_up * answer_s(1, rate);
      if (axes.open_loop()) {
        const auto count = static_cast<double>(arrival_count(axes, plan_.seconds, plan_.prompts.size()));
        sum += plan_.repeats * (count / axes.arrivals.rate + answer_s(1, rate));
        continue;
      }
      // Clients share the rate; each asks every question.
      const double pass_s = answer_s(axes.clients, rate) * static_cast<double>(plan_.prompts.size());
      sum += plan_.repeats * pass_s * std::max(1.0, std::ceil(plan_.seconds / pass_s));
    }
    return sum;
  }

 private:
  Json cluster_json() {
    Client client = or_throw(Client::connect(context_, connect_));
    const Status status = or_throw(client.status());
    return {{"verifiers", status.verifiers}, {"drafters", status.drafters}};
  }

  /// Returns the time of an answer for a client that shares `rate` with as many.
  double answer_s(int clients, double rate) const {
    return calibration_.prefill_s() + (calibration_.tokens_per_answer() - 1) * clients / rate;
  }

  static constexpr double kCalibrationRepeats = 5;  ///< in plan.seconds: as long as a cell of as many repeats

  bool launched() const { return !plan_.launch.is_null(); }
  /// Throws if a cell cannot be measured as requested.
  void check_cells(const std::string& file) const {
    for (const Axes& cell : plan_.cells) {
      const auto refuse = [&](const std::optional<std::string>& axis, const std::string& why) {
        if (!axis) return;
        throw CommandError("{}: {} is {}, but {}", file, *axis, to_json(cell)[*axis].dump(), why);
      };
      if (!connect_.empty()) {
        refuse(axis_of_rig(cell), "--connect cannot change the cluster");
      } else if (launched()) {
        refuse(axis_of_this_machine(cell), "a launched cluster has real hosts and links");
        or_throw(cell_plan(plan_.launch, cell, ExperimentArm::kRemote));
      } else if (std::ranges::any_of(
                     isas(), [&](Isa isa) { return cell.drafter_isa == to_string(isa) && isa > detect_isa(); })) {
        refuse("drafter_isa", fmt::format("this CPU has only {}", to_string(detect_isa())));
      }
    }
  }
  fs::path new_run_folder() const {
    for (int number = 0;; ++number) {
      if (const fs::path folder = runs_ / std::to_string(number); fs::create_directories(folder)) return folder;
    }
  }
  Calibration calibrated(ExperimentArm arm, const Axes& axes) const {
    return calibrate(Calibrator(*rig_, arm, text_, axes), questions(axes), kCalibrationRepeats * plan_.seconds);
  }
  std::vector<Question> questions(const Axes& axes) const { return cell_questions(text_, plan_.prompts, axes.context); }

  ExperimentPlan plan_;
  std::vector<std::string> varied_;  ///< axes with several values
  PairPaths pair_;
  TextSide text_;
  const std::string connect_;
  const fs::path runs_;
  TransportContext context_;
  Axes running_;
  std::unique_ptr<Rig> rig_;                     // after the context that it uses
  Calibration calibration_, calibration_there_;  ///< of drafters beside the verifier, and of launched remote ones
  double prepare_s_ = 0;
};

std::string duration_text(double seconds) {
  return seconds < 120 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.1f} min", seconds / 60);
}

/// Prints what the plan will run and how long that takes, from a calibration of its first cell's processes.
void dry_run(Experiment& experiment) {
  const ExperimentPlan& plan = experiment.plan();
  experiment.prepare(plan.cells.front());
  const TimePoint start = now();
  measure_read_bandwidth_gb_s();
  const double bandwidth_s = to_seconds(now() - start);
  double seconds = 0;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    const Axes& axes = plan.cells[i];
    if (i == 0 || plan.cells[i - 1].rig() != axes.rig()) seconds += experiment.prepare_s();
    const double cell_s = experiment.expected_s(axes, bandwidth_s);
    seconds += cell_s;
    const auto prediction = experiment.predicted(axes);
    const auto over_plain = [&](double rate) { return prediction ? Json(rate / prediction->plain) : Json(); };
    rows.push_back({{"", i, "cell"},
                    {"", experiment.label(axes), "axes"},
                    {"", over_plain(prediction ? prediction->colocated : 0), "co-located", 2},
                    {"", over_plain(prediction ? prediction->remote : 0), "remote", 2},
                    {"", prediction ? or_null(prediction->break_even_rtt_ms) : Json(), "break-even RTT ms", 1},
                    {"", cell_s, "s", 1}});
  }
  std::fputs(table(rows).c_str(), stdout);
  fmt::print("{} cells take {} if none is void; the speed-ups over plain are predicted from one calibration\n",
             plan.cells.size(), duration_text(seconds));
}

void write_reports(const fs::path& dir, const Json& lock, const std::vector<Json>& lines) {
  const std::vector<Json> cells = chosen_cells(lines);
  or_throw(replace_text(dir / "cells.csv", csv(cells)));
  const std::string report = report_html(lock, cells);
  or_throw(replace_text(dir / "report.html", report));
  std::size_t number = 0;
  for (const std::string& figure : figures(report))
    or_throw(replace_text(dir / fmt::format("figure-{}.svg", ++number), figure));
}

/// Makes or checks lock.json: everything measured together must be of one plan, machine and program.
/// @return the lock with the day of the first measurement
Json take_lock(const fs::path& dir, Json lock) {
  const fs::path path = dir / "lock.json";
  if (!fs::exists(path)) {
    lock["date"] = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
    or_throw(replace_text(path, lock.dump(2) + "\n"));
    return lock;
  }
  const Json before = parse_ordered(or_throw(read_text(path)));
  for (const char* part : {"plan", "machine", "program", "cluster"}) {
    const Json seen = before.is_object() ? before.value(part, Json::object()) : Json::object();
    const Json wanted = lock.value(part, Json::object());
    Json keys = wanted;
    keys.update(seen);
    for (const auto& [key, ignored] : keys.items()) {
      if (seen.value(key, Json()) != wanted.value(key, Json()))
        throw CommandError("{}: {}.{} has changed: one folder is for one plan, machine and program", path.string(),
                           part, key);
    }
  }
  if (before.is_object() && before.contains("date")) lock["date"] = before["date"];
  return lock;
}

void check_texts(const Json& line) {
  if (line["texts_equal"] == false)
    throw CommandError("cell {}: the arms' texts differ: a bug in Outrider", line["cell"].dump());
}

/// Counts an attempt by its line, and all possible ones once a cell is measured.
void count_attempt(int& attempts, const ExperimentPlan& plan, const Json& line) {
  check_texts(line);
  attempts = line["void"].is_null() ? plan.void_rule.attempts : attempts + 1;
}

/// Returns the attempts that each cell has had.
std::vector<int> attempts_so_far(const ExperimentPlan& plan, const std::vector<Json>& lines) {
  std::vector<int> attempts(plan.cells.size());
  for (const Json& line : lines) {
    const std::size_t cell = line["cell"];
    if (cell >= attempts.size()) throw CommandError("cells.jsonl: no cell {} in the plan", cell);
    count_attempt(attempts[cell], plan, line);
  }
  return attempts;
}

void print_cell(const Experiment& experiment, const Json& cell) {
  const ExperimentPlan& plan = experiment.plan();
  std::vector<std::string> speeds;
  for (const auto& [ratio, name] :
       {std::pair("ngram/plain", "n-gram"), {"colocated/plain", "co-located"}, {"remote/plain", "remote"}}) {
    if (cell["ratios"].contains(ratio))
      speeds.push_back(fmt::format("{} {:.2f}", name, cell["ratios"][ratio]["median"].get<double>()));
  }
  const Json& predicted = cell["predicted"];
  const std::size_t index = cell["cell"];
  fmt::print(stderr, "cell {}/{} ({}): plain {:.1f} tok/s; over plain: {}{}{}\n", index + 1, plan.cells.size(),
             experiment.label(plan.cells[index]), cell["arms"]["plain"]["tok_per_sec"].get<double>(),
             fmt::join(speeds, ", "),
             predicted.is_null() ? "" : fmt::format(" (predicted {:.2f})", predicted["remote/plain"].get<double>()),
             cell["void"].is_null()
                 ? ""
                 : fmt::format("; void: {} (the plan's 'void' sets the bound)", cell["void"].get<std::string>()));
}

void run_plan(Experiment& experiment, const ExperimentFlags& flags) {
  const ExperimentPlan& plan = experiment.plan();
  fs::create_directories(flags.out);
  CellJournal cells = or_throw(CellJournal::open(flags.out / "cells.jsonl"));
  CellJournal requests = or_throw(CellJournal::open(flags.out / "requests.jsonl"));
  std::vector<Json> lines = cells.lines();
  if (!lines.empty() && !flags.resume)
    throw CommandError("{} already has {} cells: continue with --resume, or choose another --out", flags.out.string(),
                       chosen_cells(lines).size());
  const Json lock = take_lock(flags.out, experiment.lock());
  // Requests of a cell whose line was never written: that cell is measured again.
  or_throw(requests.truncate(lines.empty() ? 0 : lines.back()["requests_bytes"].get<std::uint64_t>()));
  std::vector<int> attempts = attempts_so_far(plan, lines);
  for (std::size_t cell = 0; cell < plan.cells.size(); ++cell) {
    while (attempts[cell] < plan.void_rule.attempts) {
      const Axes& axes = plan.cells[cell];
      const Measured measured = experiment.measure(cell, attempts[cell]);
      Json line = cell_json(cell, attempts[cell], axes, plan, measured, experiment.predicted(axes));
      or_throw(requests.append(request_lines(cell, attempts[cell], measured)));
      line["requests_bytes"] = requests.bytes();
      or_throw(cells.append({line}));
      print_cell(experiment, line);
      count_attempt(attempts[cell], plan, line);
      lines.push_back(std::move(line));
    }
    write_reports(flags.out, lock, lines);
  }
  const std::vector<Json> chosen = chosen_cells(lines);
  const PredictionErrors errors = prediction_errors(chosen);
  fmt::print("{}\n{} cells, {} void; {}\n{}\n", verdict(chosen), chosen.size(), errors.void_cells, to_text(errors),
             (flags.out / "report.html").string());
}

/// Replaces the launch plan's file name by its contents, and adds its model if the experiment has none.
void read_launch(ExperimentPlan& plan, const ExperimentFlags& flags) {
  if (plan.launch.is_null()) return;
  if (!flags.connect.empty())
    throw std::runtime_error(flags.plan.string() + ": launch: not allowed with --connect");
  if (plan.launch.is_string()) {
    const fs::path file = flags.plan.parent_path() / plan.launch.get<std::string>();
    const std::string text = or_throw(read_text(file));
    or_throw(parse_json_object(text, file.string()));
    plan.launch = parse_ordered(text);
    plan.launch.erase("lock");
  }
  if (const auto model = plan.launch.find("model");
      plan.model.empty() && model != plan.launch.end() && model->is_string())
    plan.model = model->get<std::string>();
}

void experiment(const ExperimentFlags& flags) {
  if (flags.plan.empty()) throw UsageError("experiment: wanted a PLAN.json, or report DIR");
  if (flags.out.empty() && !flags.dry_run) throw UsageError("experiment: wanted --out DIR for the results");
  init_logging("outrider", "warn");
  ExperimentPlan plan = or_throw(parse_plan(or_throw(read_text(flags.plan)), flags.plan.string()));
  read_launch(plan, flags);
  Experiment experiment(std::move(plan), flags,
                        flags.out.empty() ? default_run_dir(flags.plan) : flags.out / "launched");
  if (flags.dry_run) return dry_run(experiment);
  run_plan(experiment, flags);
}

void report(const fs::path& dir) {
  const Json lock = parse_ordered(or_throw(read_text(dir / "lock.json")));
  if (!lock.is_object()) throw std::runtime_error((dir / "lock.json").string() + ": not a JSON object");
  write_reports(dir, lock, or_throw(read_journal(dir / "cells.jsonl")));
  fmt::print("{}\n", (dir / "report.html").string());
}

}  // namespace

void add_experiment_command(Command& app) {
  Command* command = app.add_subcommand(
      "experiment", "Measure when a remote drafter pays: a sweep with predictions, baselines and a report");
  auto flags = std::make_shared<ExperimentFlags>();
  command->add_option("PLAN", flags->plan, "The plan, a JSON file (docs/experiments.md), or a lock.json");
  command->add_option("--out", flags->out, "Folder for cells.jsonl, requests.jsonl, cells.csv, lock.json, report.html");
  command->add_flag("--resume", flags->resume, "Continue the experiment in the folder");
  command->add_flag("--dry-run", flags->dry_run,
                    "Calibrate, then print the cells, the predictions and the expected duration");
  auto* connect = command->add_option("--connect", flags->connect,
                                      "Measure the running cluster of the coordinator at tcp://HOST:PORT against plain "
                                      "decoding; of several separated by commas, the first that answers");
  connect->excludes(command->get_option("--dry-run"));
  add_security_options(*command, flags->security, /*listens=*/false);
  for (const char* option : {"--key", "--coordinator-key", "--insecure"}) command->get_option(option)->needs(connect);
  Command* of = command->add_subcommand("report", "Write cells.csv and report.html again from the measurements");
  of->add_option("DIR", flags->report_of, "The --out of an experiment")->required();
  command->callback(
      [flags, command] { command->get_subcommands().empty() ? experiment(*flags) : report(flags->report_of); });
}

}  // namespace outrider
