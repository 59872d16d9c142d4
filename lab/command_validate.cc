#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/checkpoint/checkpoint.h"
#include "common/logging/logging.h"
#include "common/model/assistant.h"
#include "common/model/backbone.h"
#include "common/model/generation_config.h"
#include "common/sampling/verify.h"
#include "common/tokenizer/chat.h"
#include "common/tokenizer/tokenizer.h"
#include "lab/commands.h"
#include "launch/command_support.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kRowsMax = 256;
constexpr int kDraftLength = 4;

/// Share of drafts that must be accepted where no golden says what this pair reaches. The nano pair has
/// 0.48; published pairs have 0.3 to 0.9 (gemma4.md 4.8); a drafter that guesses has less than 0.01.
constexpr double kAcceptanceMin = 0.1;

struct ValidateFlags {
  fs::path target, assistant, report, golden;
  std::string dtype = "f32";
  std::int64_t max_tokens = 48;
  std::optional<double> acceptance_min;
};

/// What went wrong, and with which part of the pair.
struct Failure {
  std::string diagnosis, message;
};
using Outcome = std::optional<Failure>;

struct Case {
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;  ///< recorded; empty where nothing is
};

/// What is known before a pair runs.
struct Reference {
  std::vector<Case> cases;
  std::optional<TokenId> first_draft;         ///< of the first case
  std::optional<double> recorded_acceptance;  ///< of kDraftLength drafts a round
  std::string source;
};

json read_json(const fs::path& path) {
  json value = json::parse(or_throw(read_text(path)), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) throw std::runtime_error(fmt::format("{}: not JSON", path.string()));
  return value;
}

/// A folder as tests/goldens has them: generate_golden.json, or golden.json with golden.safetensors.
Reference read_golden(const fs::path& dir) {
  Reference reference{.cases = {}, .first_draft = {}, .recorded_acceptance = {}, .source = dir.string()};
  std::int64_t drafted = 0, accepted = 0;
  const auto count = [&](const json& matches) {  // the first entry is the round without drafts
    for (std::size_t i = 1; i < matches.size(); ++i) {
      drafted += kDraftLength;
      accepted += matches[i].get<std::int64_t>();
    }
  };
  try {
    if (fs::exists(dir / "generate_golden.json")) {
      for (const json& entry : read_json(dir / "generate_golden.json")) {
        reference.cases.push_back({entry.at("prompt_ids"), entry.at("greedy")});
        count(entry.at("matches"));
      }
    } else {
      const json notes = read_json(dir / "golden.json");
      const Checkpoint tensors = or_throw(Checkpoint::open(dir / "golden.safetensors"));
      const TensorEntry* input = tensors.find("input_ids");
      if (input == nullptr)
        throw std::runtime_error(fmt::format("{}: no tensor 'input_ids'", (dir / "golden.safetensors").string()));
      std::vector<std::int64_t> ids(static_cast<std::size_t>(input->element_count()));
      or_throw(read_i64(*input, ids));
      reference.cases.push_back({{ids.begin(), ids.end()}, notes.at("greedy")});
      reference.first_draft = notes.at("draft_tokens").at(0).get<TokenId>();
      count(notes.at("matches"));
    }
  } catch (const json::exception& error) {
    throw std::runtime_error(fmt::format("{}: {}", dir.string(), error.what()));
  }
  if (drafted > 0) reference.recorded_acceptance = static_cast<double>(accepted) / static_cast<double>(drafted);
  return reference;
}

/// Without a golden: chat turns where there is a tokenizer, else texts of pseudo-random ids. What the
/// backbone makes of them in step 1 is then the recorded reference.
Reference own_reference(const ModelFiles& target, const TextConfig& config) {
  Reference reference{
      .cases = {}, .first_draft = {}, .recorded_acceptance = {}, .source = "the target's own plain greedy run"};
  if (or_throw(target.tokenizer_json())) {
    const TextSide text = load_text_side(target);
    for (const char* prompt :
         {"Tell me a story about a lighthouse.", "Count from 3 to 20.", "What is 17 plus 25?",
          "Turn this list into JSON: Finn is 20 and lives near the river; Noah is 48 and lives near the park.",
          "Write a short story about a dog called Max."}) {
      reference.cases.push_back({or_throw(render_user_turn(text.tokenizer, prompt, text.chat_format)), {}});
    }
    return reference;
  }
  for (std::int64_t seed = 1; seed <= 4; ++seed) {
    std::vector<TokenId> ids;
    for (std::int64_t i = 0; i < 24; ++i)
      ids.push_back(static_cast<TokenId>((i * i * 31 + seed * 97 + i * 7) % config.vocab_size));
    reference.cases.push_back({std::move(ids), {}});
  }
  return reference;
}

bool finite(std::span<const float> row) {
  return std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
}

/// One position of a plain greedy run, with all that an assistant could draw on there.
struct Visit {
  Position position;                   ///< of `token`
  TokenId token, next;                 ///< `next` is the target's choice after `token`
  const std::vector<float>& state;     ///< hidden row that produced `token`: what the assistant wants
  const std::vector<float>& pre_norm;  ///< the same before the final norm
  const std::vector<float>& same;      ///< hidden row at `position`
  const DonorReplica& replica;         ///< rows [0, position)
};

class Validation {
 public:
  explicit Validation(const ValidateFlags& flags) : flags_(flags), type_(or_throw(parse_weight_type(flags.dtype))) {}

  /// @return whether every step passed.
  bool run() {
    report_ = {{"target", flags_.target.string()},
               {"assistant", flags_.assistant.string()},
               {"dtype", flags_.dtype},
               {"steps", json::array()}};
    const std::pair<const char*, Outcome (Validation::*)(json&)> steps[] = {
        {"backbone-only decode", &Validation::decode_alone},    {"assistant load", &Validation::load_assistant},
        {"hidden export shape", &Validation::check_export},     {"assistant consumes it", &Validation::consume},
        {"one-token draft and verify", &Validation::one_token}, {"multi-token loop", &Validation::loop}};
    bool passed = true;
    for (const auto& [name, step] : steps) {
      json entry = {{"step", report_["steps"].size() + 1}, {"name", name}, {"status", "not run"}};
      if (passed) {
        json facts = json::object();
        const Outcome failure = (this->*step)(facts);
        passed = !failure;
        entry["status"] = passed ? "passed" : "failed";
        entry.update(facts);
        if (failure) {
          entry["diagnosis"] = failure->diagnosis;
          entry["message"] = failure->message;
        }
      }
      print(entry);
      report_["steps"].push_back(std::move(entry));
    }
    report_["passed"] = passed;
    return passed;
  }
  const json& report() const { return report_; }

 private:
  static void print(const json& entry) {
    std::printf("%d %-28s %s\n", entry["step"].get<int>(), entry["name"].get<std::string>().c_str(),
                entry["status"].get<std::string>().c_str());
    for (const auto& [key, value] : entry.items()) {
      if (key == "step" || key == "name" || key == "status") continue;
      std::printf("    %-26s %s\n", key.c_str(), (value.is_string() ? value.get<std::string>() : value.dump()).c_str());
    }
  }

  /// Plain greedy decoding, one row at a time. @param on_visit may be empty.
  std::vector<TokenId> decode(const Case& text, const std::function<void(const Visit&)>& on_visit) {
    KvCache cache = backbone_->make_cache();
    std::optional<DonorReplica> replica;
    if (on_visit) replica.emplace(assistant_->make_replica());
    const std::string last_layer = fmt::format("layers.{}.output", backbone_->config().num_hidden_layers - 1);
    std::vector<float> pre_norm, state, next_pre_norm, next_state;
    const TraceSink trace = [&](const std::string& name, Matrix<const float> value) {
      const auto row = value.size(0) > 0 ? value[value.size(0) - 1].span() : std::span<const float>();
      if (name == last_layer) next_pre_norm.assign(row.begin(), row.end());
      if (name == "final_normed") next_state.assign(row.begin(), row.end());
    };
    const auto forward = [&](std::span<const TokenId> tokens) {
      const Segment segment{&cache, tokens, 1};
      const Backbone::Output output = backbone_->forward({&segment, 1}, on_visit ? &trace : nullptr);
      sound_ = sound_ && finite(output.hidden[0].span()) && finite(output.logits[0].span());
      hidden_width_ = output.hidden.size(1);
      if (replica) replica->extend(*backbone_, cache, cache.length());
      return static_cast<TokenId>(argmax(output.logits[0].span()));
    };
    TokenId token = prefill(cache, text.prompt, [&](std::span<const TokenId> tokens) { return forward(tokens); });
    std::vector<TokenId> answer = {token};
    while (static_cast<std::int64_t>(answer.size()) < limit(text) && !is_stop(token)) {
      const Position position = cache.length();
      state = next_state;
      pre_norm = next_pre_norm;
      std::optional<DonorReplica> before;
      const Segment segment{&cache, {&token, 1}, 1};
      const Backbone::Output output = backbone_->forward({&segment, 1}, on_visit ? &trace : nullptr);
      sound_ = sound_ && finite(output.logits[0].span());
      const auto next = static_cast<TokenId>(argmax(output.logits[0].span()));
      if (on_visit) {
        on_visit({position, token, next, state, pre_norm, next_state, *replica});
        replica->extend(*backbone_, cache, cache.length());
      }
      answer.push_back(token = next);
    }
    return answer;
  }

  /// Runs a prompt in chunks. @return what `forward` gave for the last.
  template <typename Forward>
  TokenId prefill(KvCache& cache, std::span<const TokenId> prompt, Forward forward) {
    TokenId token = 0;
    for (std::size_t i = 0; i < prompt.size(); i += kRowsMax)
      token = forward(prompt.subspan(i, std::min<std::size_t>(kRowsMax, prompt.size() - i)));
    CHECK(cache.length() == static_cast<Position>(prompt.size()));
    return token;
  }

  std::int64_t limit(const Case& text) const {
    return text.greedy.empty() ? flags_.max_tokens : std::min<std::int64_t>(flags_.max_tokens, std::ssize(text.greedy));
  }
  bool is_stop(TokenId token) const { return std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end(); }

  // ---- 1 ----

  Outcome decode_alone(json& facts) {
    const Result<ModelFiles> files = ModelFiles::open(flags_.target);
    if (!files) return Failure{"target", files.error().message};
    Result<std::unique_ptr<Backbone>> backbone = Backbone::load(*files, type_, kRowsMax);
    if (!backbone) return Failure{"target", backbone.error().message};
    backbone_ = std::move(*backbone);
    const TextConfig& config = backbone_->config();
    reference_ = flags_.golden.empty() ? own_reference(*files, config) : read_golden(flags_.golden);
    stop_ids_ = or_throw(load_generation_config(*files)).eos_token_ids;
    facts["reference"] = reference_.source;
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < reference_.cases.size(); ++i) {
      Case& text = reference_.cases[i];
      const bool fits = !text.prompt.empty() && std::all_of(text.prompt.begin(), text.prompt.end(), [&](TokenId token) {
        return 0 <= token && token < config.vocab_size;
      });
      if (!fits)
        return Failure{"target", fmt::format("prompt {} of {} has ids outside the vocabulary of {}", i,
                                             reference_.source, config.vocab_size)};
      const std::vector<TokenId> answer = decode(text, {});
      if (!sound_) return Failure{"target", "hidden rows or logits are not finite numbers"};
      tokens += std::ssize(answer);
      // Another type than the reference's may choose otherwise and be right.
      if (type_ == WeightType::kF32 && !text.greedy.empty() &&
          !std::equal(answer.begin(), answer.end(), text.greedy.begin())) {
        const auto at = std::mismatch(answer.begin(), answer.end(), text.greedy.begin()).first - answer.begin();
        return Failure{
            "target", fmt::format("prompt {}: token {} is {}, recorded is {}: other weights than the reference's", i,
                                  at, answer[static_cast<std::size_t>(at)], text.greedy[static_cast<std::size_t>(at)])};
      }
      text.greedy = answer;
    }
    facts["prompts"] = reference_.cases.size();
    facts["tokens"] = tokens;
    if (flags_.golden.empty()) facts["first_answer_ids"] = reference_.cases[0].greedy;
    return {};
  }

  // ---- 2 ----

  Outcome load_assistant(json& facts) {
    const Result<ModelFiles> files = ModelFiles::open(flags_.assistant);
    if (!files) return Failure{"assistant", files.error().message};
    Result<AssistantConfig> config = load_assistant_config(*files);
    if (!config) return Failure{"assistant", config.error().message};
    if (config->text.vocab_size != backbone_->config().vocab_size) {
      return Failure{"tokenizer", fmt::format("the assistant's vocabulary has {} tokens, the target's {}",
                                              config->text.vocab_size, backbone_->config().vocab_size)};
    }
    const ModelFiles target_files = open_model(flags_.target);
    if (or_throw(target_files.tokenizer_json()) && or_throw(files->tokenizer_json())) {
      const Result<Tokenizer> target = Tokenizer::load(target_files), assistant = Tokenizer::load(*files);
      if (!target) return Failure{"tokenizer", target.error().message};
      if (!assistant) return Failure{"tokenizer", assistant.error().message};
      for (TokenId id = 0; id < std::max(target->vocab_size(), assistant->vocab_size()); ++id) {
        if (target->token_text(id) == assistant->token_text(id)) continue;
        return Failure{
            "tokenizer",
            fmt::format("token {} is '{}' in {} and '{}' in {}: the assistant was made for another vocabulary", id,
                        target->token_text(id), target->name(), assistant->token_text(id), assistant->name())};
      }
      facts["tokenizers"] = "same tokens";
    } else {
      facts["tokenizers"] = "not compared: one side has no tokenizer.json";
    }
    Result<std::unique_ptr<Assistant>> assistant =
        Assistant::load(*files, backbone_->config(), backbone_->weights(), type_);
    if (!assistant)
      return Failure{assistant.error().code == Errc::kMismatch ? "bridge" : "assistant", assistant.error().message};
    assistant_ = std::move(*assistant);
    return {};
  }

  // ---- 3 ----

  Outcome check_export(json& facts) {
    const std::int64_t wanted = assistant_->config().backbone_hidden_size;
    facts["hidden_row"] = {hidden_width_};
    if (hidden_width_ != wanted)
      return Failure{"bridge",
                     fmt::format("the target exports rows of {}, the assistant reads {}", hidden_width_, wanted)};
    const KvCache cache = backbone_->make_cache();
    const DonorReplica replica = assistant_->make_replica();
    for (const auto& [kind, layer, name] : {std::tuple(AttentionKind::kSliding, &replica.sliding, "sliding"),
                                            std::tuple(AttentionKind::kFull, &replica.full, "full")}) {
      const LayerKv& donor = cache.layer(backbone_->donor_cache(kind));
      facts[fmt::format("donor_{}", name)] = {donor.num_key_value_heads(), donor.head_dim()};
      if (donor.row_bytes() != layer->row_bytes()) {
        return Failure{"bridge", fmt::format("the {} donor has rows of {} bytes, the assistant reads {}", name,
                                             donor.row_bytes(), layer->row_bytes())};
      }
    }
    return {};
  }

  // ---- 4 ----

  Outcome consume(json& facts) {
    bool fine = true;
    std::size_t state = 0;
    Case text = reference_.cases[0];
    text.greedy.resize(std::min<std::size_t>(text.greedy.size(), 2));
    decode(text, [&](const Visit& visit) {
      const Assistant::Step step =
          assistant_->trace_step(visit.token, visit.state, visit.replica, visit.position, nullptr);
      state = step.state.size();
      fine = fine && finite(step.logits) && finite(step.state);
      // All scores alike: nothing of the input came through.
      fine = fine && *std::max_element(step.logits.begin(), step.logits.end()) >
                         *std::min_element(step.logits.begin(), step.logits.end());
      if (!first_draft_) first_draft_ = step.token;
    });
    facts["next_state"] = {state};
    if (!fine) return Failure{"assistant", "its scores or its next state are not finite numbers, or all alike"};
    return {};
  }

  // ---- 5 and 6 ----

  struct Counts {
    std::int64_t rounds = 0, drafted = 0, accepted = 0;
  };

  /// Speculative decoding of a case. @return the first index that differs from the reference, if one does.
  std::optional<std::size_t> speculate(const Case& text, std::int64_t draft_length, std::int64_t rounds_max,
                                       Counts& counts) {
    KvCache cache = backbone_->make_cache();
    DonorReplica replica = assistant_->make_replica();
    std::vector<float> state;
    TokenId token = prefill(cache, text.prompt, [&](std::span<const TokenId> tokens) {
      const Segment segment{&cache, tokens, 1};
      const Backbone::Output output = backbone_->forward({&segment, 1});
      state.assign(output.hidden[0].span().begin(), output.hidden[0].span().end());
      replica.extend(*backbone_, cache, cache.length());
      return static_cast<TokenId>(argmax(output.logits[0].span()));
    });
    std::vector<TokenId> answer = {token};
    for (std::int64_t round = 0; round < rounds_max && answer.size() < text.greedy.size(); ++round) {
      const Position position = cache.length();
      std::vector<TokenId> rows = assistant_->draft(token, state, replica, position, draft_length, stop_ids_);
      const auto drafted = static_cast<std::int64_t>(rows.size());
      rows.insert(rows.begin(), token);
      const Segment segment{&cache, rows, drafted + 1};
      const Backbone::Output output = backbone_->forward({&segment, 1});
      const VerifyOutcome outcome = verify_greedy(output.logits, std::span(rows).subspan(1));
      cache.truncate(position + outcome.accepted + 1);
      replica.extend(*backbone_, cache, cache.length());
      const auto row = output.hidden[outcome.accepted].span();
      state.assign(row.begin(), row.end());
      answer.insert(answer.end(), rows.begin() + 1, rows.begin() + 1 + outcome.accepted);
      answer.push_back(token = outcome.next_token);
      counts.rounds += 1;
      counts.drafted += drafted;
      counts.accepted += outcome.accepted;
    }
    const std::size_t compared = std::min(answer.size(), text.greedy.size());
    for (std::size_t i = 0; i < compared; ++i) {
      if (answer[i] != text.greedy[i]) return i;
    }
    return std::nullopt;
  }

  Outcome one_token(json& facts) {
    if (first_draft_) facts["first_draft"] = *first_draft_;
    if (type_ == WeightType::kF32 && reference_.first_draft && first_draft_ != reference_.first_draft) {
      return Failure{
          "hand-off",
          fmt::format("the first draft is {}, recorded is {}: the assistant reads other inputs than the reference's",
                      first_draft_.value_or(-1), *reference_.first_draft)};
    }
    Counts counts;
    if (const auto at = speculate(reference_.cases[0], 1, 1, counts)) {
      return Failure{"verification",
                     fmt::format("token {} differs from plain decoding: a bug of Outrider's, please report it", *at)};
    }
    facts["accepted"] = counts.accepted;
    return {};
  }

  /// What an assistant that was trained another way would want in place of ours.
  struct Alternative {
    const char* diagnosis;
    const char* what;
    std::function<TokenId(const Visit&)> draft;
    std::int64_t hits = 0, gained = 0, lost = 0;  ///< gained: right where ours is wrong
  };

  Outcome loop(json& facts) {
    Counts counts;
    for (std::size_t i = 0; i < reference_.cases.size(); ++i) {
      if (const auto at =
              speculate(reference_.cases[i], kDraftLength, reference_.cases[i].prompt.size() + 4096, counts)) {
        return Failure{
            "verification",
            fmt::format("prompt {}: token {} differs from plain decoding: a bug of Outrider's, please report it", i,
                        *at)};
      }
    }
    const double rate =
        counts.drafted == 0 ? 0 : static_cast<double>(counts.accepted) / static_cast<double>(counts.drafted);
    const double floor = flags_.acceptance_min.value_or(
        reference_.recorded_acceptance ? *reference_.recorded_acceptance / 2 : kAcceptanceMin);
    facts["rounds"] = counts.rounds;
    facts["drafted_tokens"] = counts.drafted;
    facts["accepted_tokens"] = counts.accepted;
    facts["rejected_tokens"] = counts.drafted - counts.accepted;
    facts["acceptance_rate"] = rate;
    facts["acceptance_floor"] = floor;

    const auto step = [&](const Visit& v, std::span<const float> state, const StepVariant& variant) {
      return assistant_->trace_step(v.token, state, v.replica, v.position, nullptr, variant).token;
    };
    std::vector<Alternative> others;
    others.push_back(
        {"position", "at position p - 1", [&](const Visit& v) { return step(v, v.state, {.rope_shift = -1}); }});
    others.push_back(
        {"position", "at position p + 1", [&](const Visit& v) { return step(v, v.state, {.rope_shift = 1}); }});
    others.push_back({"hand-off", "with the hidden row of the token itself instead of the one that produced it",
                      [&](const Visit& v) { return step(v, v.same, {}); }});
    others.push_back({"hand-off", "with the hidden row before the final norm",
                      [&](const Visit& v) { return step(v, v.pre_norm, {}); }});
    others.push_back({"hand-off", "with state and embedding exchanged in pre_projection's input",
                      [&](const Visit& v) { return step(v, v.state, {.swap_halves = true}); }});
    std::int64_t samples = 0, hits = 0;
    for (const Case& text : reference_.cases) {
      decode(text, [&](const Visit& visit) {
        const bool right = step(visit, visit.state, {}) == visit.next;
        ++samples;
        hits += right;
        for (Alternative& other : others) {
          const bool theirs = other.draft(visit) == visit.next;
          other.hits += theirs;
          other.gained += theirs && !right;
          other.lost += right && !theirs;
        }
      });
    }
    const auto share = [&](std::int64_t count) {
      return samples == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(samples);
    };
    facts["first_draft_rate"] = share(hits);
    const Alternative* best = nullptr;
    for (const Alternative& other : others) {
      facts["first_draft_rate_by_variant"][other.what] = share(other.hits);
      // Clearly better: by a twentieth of all drafts, and by four standard errors of paired trials (McNemar).
      const std::int64_t gain = other.gained - other.lost;
      const bool clear = gain > 0 && share(gain) >= 0.05 && gain * gain >= 16 * (other.gained + other.lost);
      if (clear && (best == nullptr || other.hits > best->hits)) best = &other;
    }
    if (best != nullptr) {
      return Failure{
          best->diagnosis,
          fmt::format(
              "the first draft is right in {:.2f} of {} positions, and in {:.2f} {}: the assistant was trained so",
              share(hits), samples, share(best->hits), best->what)};
    }
    if (rate < floor) {
      return Failure{"acceptance", fmt::format("{:.3f} of the drafts are accepted, wanted {:.3f}: the text is right "
                                               "but drafting does not pay; an assistant of another "
                                               "fine-tune, or untrained (--acceptance-min 0 takes it)",
                                               rate, floor)};
    }
    return {};
  }

  const ValidateFlags& flags_;
  WeightType type_;
  std::unique_ptr<Backbone> backbone_;
  std::unique_ptr<Assistant> assistant_;
  Reference reference_;
  std::vector<TokenId> stop_ids_;
  bool sound_ = true;
  std::int64_t hidden_width_ = 0;
  std::optional<TokenId> first_draft_;
  json report_;
};

}  // namespace

void add_validate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "validate", "Check in six steps that an assistant drafts for a target, and say what is wrong if not");
  auto flags = std::make_shared<ValidateFlags>();
  auto floor = std::make_shared<double>(-1);
  auto* target = command->add_option("TARGET", flags->target, "The backbone's checkpoint (default: the nano pair)");
  command->add_option("ASSISTANT", flags->assistant, "The assistant's checkpoint")->needs(target);
  command->add_option("--json", flags->report, "Write the report to this file");
  command->add_option("--golden", flags->golden, "Recorded reference: a folder as tests/goldens has them");
  command->add_option("--dtype", flags->dtype, "Weights: f32, bf16 or int8")->capture_default_str();
  command->add_option("--max-tokens", flags->max_tokens, "Longest answer to a prompt")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  command
      ->add_option("--acceptance-min", *floor,
                   "Least share of drafts accepted, of 4 a round (default: half of what the golden recorded, else 0.1)")
      ->check(CLI::Range(0.0, 1.0));
  command->callback([flags, floor] {
    init_logging("outrider", "warn");
    if (*floor >= 0) flags->acceptance_min = *floor;
    if (flags->target.empty()) {
      const PairPaths nano = or_throw(pair_paths(""));
      flags->target = nano.backbone;
      flags->assistant = nano.assistant;
    }
    if (flags->assistant.empty())
      throw std::runtime_error("validate: give TARGET and ASSISTANT, or neither for the nano pair");
    Validation validation(*flags);
    const bool passed = validation.run();
    if (!flags->report.empty()) {
      or_throw(
          write_text(flags->report, validation.report().dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
    }
    if (!passed) throw CLI::RuntimeError(1);
  });
}

}  // namespace outrider
