#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/model/audio/sound_encoder.h"
#include "common/model/block_drafter/block_config.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/model/vision/picture_encoder.h"
#include "common/os/files.h"
#include "common/os/logging.h"
#include "lab/in_process_pair.h"
#include "lab/questions.h"
#include "lab/reporting.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kDrafts = 4;

struct ValidateFlags {
  fs::path target, assistant, golden;
  ReportFlags report;
  std::string dtype = "f32";
  std::int64_t max_tokens = 48;
  std::optional<double> acceptance_min;
};

/// The error of one part of the pair, which ends its step.
struct Failure : CommandError {
  template <typename... Values>
  Failure(const char* part, fmt::format_string<Values...> format, Values&&... values)
      : CommandError(format, std::forward<Values>(values)...), diagnosis(part) {}
  const char* diagnosis;
};

template <typename T>
T or_fail(const char* part, Result<T> result) {
  if (!result) throw Failure(part, "{}", result.error().message);
  return std::move(result).value();
}

/// Known before a pair runs.
struct Reference {
  std::vector<Question> cases;                ///< `greedy` is empty if nothing is recorded
  std::optional<TokenId> first_draft;         ///< of the first case
  std::optional<double> recorded_acceptance;  ///< of kDrafts drafts a round
  std::string source;
};

/// Reads a folder in the form of tests/goldens: generate_golden.json, or golden.json with golden.safetensors.
Reference read_golden(const fs::path& dir) {
  Reference reference{.cases = {}, .first_draft = {}, .recorded_acceptance = {}, .source = dir.string()};
  if (fs::exists(dir / "generate_golden.json")) {
    reference.cases = read_golden_questions(dir / "generate_golden.json");
  } else {
    const Checkpoint tensors = or_throw(Checkpoint::open(dir / "golden.safetensors"));
    const fs::path file = dir / "golden.json";
    const json notes = or_throw(parse_json_object(or_throw(read_text(file)), file.string()));
    try {
      reference.cases.push_back({golden_prompt(tensors), notes.at("greedy"), notes.at("matches")});
      reference.first_draft = notes.at("draft_tokens").at(0).get<TokenId>();
    } catch (const json::exception& error) {
      throw CommandError("{}: {}", file.string(), error.what());
    }
  }
  std::int64_t drafted = 0, accepted = 0;
  for (const Question& text : reference.cases) {
    for (std::size_t i = 1; i < text.matches.size(); ++i) {  // the first belongs to the round without drafts
      drafted += kDrafts;
      accepted += text.matches[i];
    }
  }
  if (drafted > 0) reference.recorded_acceptance = static_cast<double>(accepted) / static_cast<double>(drafted);
  return reference;
}

/// Without a golden: chat turns if there is a tokenizer, else sequences of pseudo-random ids. The backbone's output in
/// step 1 is then the reference.
Reference own_reference(const ModelFiles& target, const TextConfig& config) {
  Reference reference{
      .cases = {}, .first_draft = {}, .recorded_acceptance = {}, .source = "the target's own plain greedy run"};
  if (or_throw(target.tokenizer_json())) {
    reference.cases = user_turns(load_text_side(target), {kDemoPrompts.begin(), kDemoPrompts.begin() + kFewPrompts});
    return reference;
  }
  for (std::int64_t seed = 1; seed <= 4; ++seed) {
    std::vector<TokenId> ids;
    for (std::int64_t i = 0; i < 24; ++i)
      ids.push_back(static_cast<TokenId>((i * i * 31 + seed * 97 + i * 7) % config.vocab_size));
    reference.cases.push_back({std::move(ids)});
  }
  return reference;
}

bool finite(std::span<const float> row) {
  return std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
}

/// One position of a plain greedy run, with all possible inputs of an assistant there.
struct Visit {
  TokenId token, next;                 ///< `next` is the target's choice after `token`
  const std::vector<float>& state;     ///< hidden row that produced `token`: the assistant's input
  const std::vector<float>& pre_norm;  ///< the same before the final norm
  std::span<const float> same;         ///< hidden row of `token` itself
  const DonorReplica& replica;         ///< rows of everything before `token`
};

class Validation {
 public:
  explicit Validation(const ValidateFlags& flags) : flags_(flags), type_(or_throw(parse_weight_type(flags.dtype))) {}

  /// @return true if every step passed
  bool run() {
    const std::pair<const char*, void (Validation::*)(Row&)> steps[] = {
        {"backbone-only decode", &Validation::decode_alone},    {"assistant load", &Validation::load_assistant},
        {"hidden export shape", &Validation::check_export},     {"assistant consumes it", &Validation::consume},
        {"one-token draft and verify", &Validation::one_token}, {"multi-token loop", &Validation::loop}};
    bool passed = true;
    // A file that is not an assistant is refused before the target decodes all prompts.
    const Result<ModelFiles> files = ModelFiles::open(flags_.assistant);
    const bool is_assistant = files && load_assistant_config(*files);
    std::vector<Row> reports;
    for (const auto& [name, step] : steps) {
      Row facts;
      const char* status = "not run";
      if (passed && (is_assistant || !reports.empty())) {
        try {
          (this->*step)(facts);
          status = "passed";
        } catch (const Failure& failure) {
          passed = false;
          status = "failed";
          facts.add({{"diagnosis", failure.diagnosis}, {"message", failure.what()}});
        }
      }
      if (!flags_.report.json) fmt::print("{} {:<28} {}\n{}", reports.size() + 1, name, status, key_lines(facts));
      reports.push_back({{"step", reports.size() + 1}, {"name", name}, {"status", status}});
      reports.back().add(facts);
    }
    write_report(
        flags_.report,
        {{"target", flags_.target.string()},
         {"assistant", flags_.assistant.string()},
         {"dtype", flags_.dtype},
         {"steps", reports},
         {"passed", passed}},
        passed ? "\nThis assistant drafts for this target. No variant of its inputs drafts clearly better, so its "
                 "inputs are right.\n"
               : "");
    return passed;
  }

 private:
  /// Decodes greedily without drafts, one row at a time. @param on_visit  may be empty
  std::vector<TokenId> decode(const Question& text, const std::function<void(const Visit&)>& on_visit) {
    InProcessPair pair(*backbone_, on_visit ? assistant_.get() : nullptr);
    const std::string last_layer = fmt::format("layers.{}.output", backbone_->config().num_hidden_layers - 1);
    std::vector<float> pre_norm, next_pre_norm;
    const TraceSink trace = [&](const std::string& name, Matrix<const float> value) {
      if (name != last_layer) return;
      const std::span<const float> row = value[value.size(0) - 1].span();
      next_pre_norm.assign(row.begin(), row.end());
    };
    pair.prefill(text.prompt, on_visit ? &trace : nullptr);
    hidden_width_ = std::ssize(pair.hidden());
    sound_ = sound_ && finite(pair.hidden());
    std::vector<TokenId> answer = {pair.token()};
    while (std::ssize(answer) < limit(text) && !is_stop(pair.token())) {
      pre_norm = next_pre_norm;
      const Backbone::Output& output = pair.verify({}, on_visit ? &trace : nullptr);
      sound_ = sound_ && finite(output.logits[0].span());
      const auto next = static_cast<TokenId>(argmax(output.logits[0].span()));
      if (on_visit) on_visit({pair.token(), next, pair.hidden(), pre_norm, output.hidden[0].span(), pair.replica()});
      pair.keep(0, next);
      answer.push_back(next);
    }
    return answer;
  }

  std::int64_t limit(const Question& text) const {
    return text.greedy.empty() ? flags_.max_tokens : std::min<std::int64_t>(flags_.max_tokens, std::ssize(text.greedy));
  }
  bool is_stop(TokenId token) const { return std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end(); }

  // ---- 1 ----

  void decode_alone(Row& facts) {
    const ModelFiles files = or_fail("target", ModelFiles::open(flags_.target));
    backbone_ = or_fail("target", Backbone::load(files, type_, kRowsMax));
    const TextConfig& config = backbone_->config();
    reference_ = flags_.golden.empty() ? own_reference(files, config) : read_golden(flags_.golden);
    stop_ids_ = or_throw(load_generation_config(files)).eos_token_ids;
    facts.push_back({"reference", reference_.source});
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < reference_.cases.size(); ++i) {
      Question& text = reference_.cases[i];
      const bool fits = !text.prompt.empty() && std::all_of(text.prompt.begin(), text.prompt.end(), [&](TokenId token) {
        return 0 <= token && token < config.vocab_size;
      });
      if (!fits)
        throw Failure("target", "prompt {} of {} has ids outside the vocabulary of {}", i, reference_.source,
                      config.vocab_size);
      const std::vector<TokenId> answer = decode(text, {});
      if (!sound_) throw Failure("target", "hidden rows or logits are not finite numbers");
      tokens += std::ssize(answer);
      // Another type than the reference's may correctly choose differently.
      if (type_ == WeightType::kF32 && !text.greedy.empty() &&
          !std::equal(answer.begin(), answer.end(), text.greedy.begin())) {
        const auto at = std::mismatch(answer.begin(), answer.end(), text.greedy.begin()).first - answer.begin();
        throw Failure("target", "prompt {}: token {} is {}, the reference has {}: the weights differ", i, at,
                      answer[static_cast<std::size_t>(at)], text.greedy[static_cast<std::size_t>(at)]);
      }
      text.greedy = answer;
    }
    facts.push_back({"prompts", reference_.cases.size()});
    facts.push_back({"tokens", tokens});
    if (flags_.golden.empty()) facts.push_back({"first_answer_ids", reference_.cases[0].greedy});
    test_vision(files, facts);
    test_audio(files, facts);
  }

  /// Tests two pictures before a prompt, for a model with vision.
  void test_vision(const ModelFiles& files, Row& facts) {
    const Result<std::unique_ptr<PictureEncoder>> tower = PictureEncoder::load(files, type_);
    if (!tower) return no_tower("vision tower", "vision_tower", tower.error(), facts);
    const VisionConfig& config = (*tower)->config();
    facts.push_back({"vision_tower", fmt::format("{} layers, {} pixels a soft token", config.num_hidden_layers,
                                                 config.soft_token_side() * config.soft_token_side())});
    return tell_apart("vision tower", config.image_token_id, config.both_ways,
                      [&](int step) -> Result<Matrix<const float>> {
                        const std::int64_t side = 2 * config.soft_token_side();
                        Picture picture{.height = side, .width = side, .rgb = {}};
                        for (std::int64_t i = 0; i < 3 * side * side; ++i)
                          picture.rgb.push_back(static_cast<std::uint8_t>(i * step));
                        ASSIGN_OR_RETURN(const Patches patches, cut_into_patches(picture, config));
                        return (*tower)->encode(patches);
                      });
  }

  /// Tests two sounds of half a second before a prompt, for a model with audio.
  void test_audio(const ModelFiles& files, Row& facts) {
    const Result<std::unique_ptr<SoundEncoder>> tower = SoundEncoder::load(files, type_);
    if (!tower) return no_tower("audio tower", "audio_tower", tower.error(), facts);
    facts.push_back({"audio_tower", fmt::format("{} layers", (*tower)->config().num_hidden_layers)});
    return tell_apart("audio tower", (*tower)->config().audio_token_id, /*both_ways=*/false,
                      [&](int step) -> Result<Matrix<const float>> {
                        std::vector<float> samples;
                        for (std::int64_t i = 0; i < kSampleRate / 2; ++i)
                          samples.push_back(static_cast<float>(i * step % 256 - 128) / 256);
                        return (*tower)->encode(samples);
                      });
  }

  static void no_tower(const char* what, const char* fact, const Error& why, Row& facts) {
    if (why.code != Errc::kNotFound) throw Failure(what, "{}", why.message);
    facts.push_back({fact, "none"});
  }

  /// Requires that the hidden rows after two media are finite, and differ.
  /// @param encode  gets a step, which selects the medium, and returns its soft tokens
  template <typename Encode>
  void tell_apart(const char* what, TokenId token, bool both_ways, const Encode& encode) {
    std::vector<std::vector<float>> after;
    for (const int step : {1, 5}) {
      const Result<Matrix<const float>> soft = encode(step);
      if (!soft) throw Failure(what, "{}", soft.error().message);
      if (!finite({soft->data(), static_cast<std::size_t>(soft->size(0) * soft->size(1))}))
        throw Failure(what, "soft tokens are not finite numbers");
      std::vector<TokenId> prompt(static_cast<std::size_t>(soft->size(0)), token);
      prompt.insert(prompt.end(), reference_.cases[0].prompt.begin(), reference_.cases[0].prompt.end());
      const SoftRows rows{.first = 0, .values = *soft, .both_ways = both_ways};
      InProcessPair pair(*backbone_);
      pair.prefill(prompt, {}, {&rows, 1});
      if (!finite(pair.hidden())) throw Failure(what, "hidden rows after soft tokens are not finite numbers");
      after.push_back(pair.hidden());
    }
    if (after[0] == after[1]) throw Failure(what, "two different inputs give the same hidden row");
  }

  // ---- 2 ----

  void load_assistant(Row& facts) {
    const ModelFiles files = or_fail("assistant", ModelFiles::open(flags_.assistant));
    const AssistantConfig config = or_fail("assistant", load_assistant_config(files));
    if (config.text.vocab_size != backbone_->config().vocab_size) {
      throw Failure("tokenizer", "the assistant's vocabulary has {} tokens, the target's {}", config.text.vocab_size,
                    backbone_->config().vocab_size);
    }
    const ModelFiles target_files = open_model(flags_.target);
    if (or_throw(target_files.tokenizer_json()) && or_throw(files.tokenizer_json())) {
      const Tokenizer target = or_fail("tokenizer", Tokenizer::load(target_files)),
                      assistant = or_fail("tokenizer", Tokenizer::load(files));
      for (TokenId id = 0; id < std::max(target.vocab_size(), assistant.vocab_size()); ++id) {
        if (target.token_text(id) == assistant.token_text(id)) continue;
        throw Failure("tokenizer",
                      "token {} is '{}' in {} and '{}' in {}: the assistant was made for another vocabulary", id,
                      target.token_text(id), target.name(), assistant.token_text(id), assistant.name());
      }
      facts.push_back({"tokenizers", "same tokens"});
    } else {
      facts.push_back({"tokenizers", "not compared: one side has no tokenizer.json"});
    }
    Result<std::unique_ptr<Assistant>> assistant =
        Assistant::load(files, backbone_->config(), backbone_->weights(), type_);
    const bool fits = assistant || assistant.error().code != Errc::kMismatch;
    assistant_ = or_fail(fits ? "assistant" : "bridge", std::move(assistant));
  }

  // ---- 3 ----

  void check_export(Row& facts) {
    const std::int64_t wanted = assistant_->config().backbone_hidden_size;
    facts.push_back({"hidden_row", std::vector{hidden_width_}});
    if (hidden_width_ != wanted)
      throw Failure("bridge", "the target exports rows of {}, the assistant reads {}", hidden_width_, wanted);
    const KvCache cache = backbone_->make_cache();
    const DonorReplica replica = assistant_->make_replica();
    for (const auto& [kind, layer, name] : {std::tuple(AttentionKind::kSliding, &replica.sliding, "sliding"),
                                            std::tuple(AttentionKind::kFull, &replica.full, "full")}) {
      const LayerKv& donor = cache.layer(backbone_->donor_cache(kind));
      facts.push_back({fmt::format("donor_{}", name), std::vector{donor.num_key_value_heads(), donor.head_dim()}});
      if (donor.row_bytes() != layer->row_bytes()) {
        throw Failure("bridge", "the {} donor has rows of {} bytes, the assistant reads {}", name, donor.row_bytes(),
                      layer->row_bytes());
      }
    }
  }

  // ---- 4 ----

  void consume(Row& facts) {
    bool ok = true;
    std::size_t state = 0;
    Question text = reference_.cases[0];
    text.greedy.resize(std::min<std::size_t>(text.greedy.size(), 2));
    decode(text, [&](const Visit& visit) {
      const Assistant::Step step = assistant_->draft_step(visit.token, visit.state, visit.replica);
      state = step.state.size();
      ok = ok && finite(step.logits) && finite(step.state);
      // All scores are equal: nothing of the input came through.
      ok = ok && *std::max_element(step.logits.begin(), step.logits.end()) >
                     *std::min_element(step.logits.begin(), step.logits.end());
      if (!first_draft_) first_draft_ = step.token;
    });
    facts.push_back({"next_state", std::vector{state}});
    if (!ok) throw Failure("assistant", "its scores or its next state are not finite, or all scores are equal");
  }

  // ---- 5 and 6 ----

  struct Counts {
    std::int64_t rounds = 0, drafted = 0, accepted = 0;
  };

  /// Decodes a case speculatively. @return the first index that differs from the reference, if any
  std::optional<std::size_t> speculate(const Question& text, std::int64_t draft_length, std::int64_t rounds_max,
                                       Counts& counts) {
    InProcessPair pair(*backbone_, assistant_.get());
    pair.prefill(text.prompt);
    std::vector<TokenId> answer = {pair.token()};
    for (std::int64_t i = 0; i < rounds_max && answer.size() < text.greedy.size(); ++i) {
      const InProcessPair::Round round = pair.round(draft_length, stop_ids_);
      answer.insert(answer.end(), round.tokens.begin(), round.tokens.end());
      counts.rounds += 1;
      counts.drafted += round.drafted;
      counts.accepted += round.accepted;
    }
    const std::size_t compared = std::min(answer.size(), text.greedy.size());
    for (std::size_t i = 0; i < compared; ++i) {
      if (answer[i] != text.greedy[i]) return i;
    }
    return std::nullopt;
  }

  void one_token(Row& facts) {
    if (first_draft_) facts.push_back({"first_draft", *first_draft_});
    if (type_ == WeightType::kF32 && reference_.first_draft && first_draft_ != reference_.first_draft) {
      throw Failure("hand-off", "the first draft is {}, the reference has {}: the assistant's inputs differ",
                    first_draft_.value_or(-1), *reference_.first_draft);
    }
    Counts counts;
    if (const auto at = speculate(reference_.cases[0], 1, 1, counts)) {
      throw Failure("verification", "token {} differs from plain decoding: a bug in Outrider, please report it", *at);
    }
    facts.push_back({"accepted", counts.accepted});
  }

  /// A variant for an assistant that was trained differently.
  struct Alternative {
    const char* diagnosis;
    const char* what;
    std::function<TokenId(const Visit&)> draft;
    std::int64_t hits = 0, gained = 0, lost = 0;  ///< gained: right where ours is wrong
  };

  void loop(Row& facts) {
    Counts counts;
    for (std::size_t i = 0; i < reference_.cases.size(); ++i) {
      if (const auto at = speculate(reference_.cases[i], kDrafts, reference_.cases[i].prompt.size() + 4096, counts)) {
        throw Failure("verification",
                      "prompt {}: token {} differs from plain decoding: a bug in Outrider, please report it", i, *at);
      }
    }
    const double rate =
        counts.drafted == 0 ? 0 : static_cast<double>(counts.accepted) / static_cast<double>(counts.drafted);
    const double floor = flags_.acceptance_min.value_or(
        reference_.recorded_acceptance ? *reference_.recorded_acceptance / 2 : kAcceptanceMin);
    facts.push_back({"rounds", counts.rounds});
    facts.push_back({"drafted_tokens", counts.drafted});
    facts.push_back({"accepted_tokens", counts.accepted});
    facts.push_back({"rejected_tokens", counts.drafted - counts.accepted});
    facts.push_back({"acceptance_rate", rate});
    facts.push_back({"acceptance_floor", floor});

    try_alternatives(facts);
    if (rate < floor) {
      throw Failure("acceptance",
                    "{:.3f} of the drafts are accepted, wanted {:.3f}: the text is right, but drafting does not pay; "
                    "the assistant may belong to another fine-tune or be untrained (--acceptance-min 0 accepts it)",
                    rate, floor);
    }
  }

  /// Tests whether a variant would draft clearly better here.
  void try_alternatives(Row& facts) {
    const auto step = [&](const Visit& v, std::span<const float> state, const StepVariant& variant) {
      return assistant_->draft_step(v.token, state, v.replica, variant).token;
    };
    Alternative others[] = {
        {"position", "at position p - 1", [&](const Visit& v) { return step(v, v.state, {.rope_shift = -1}); }},
        {"position", "at position p + 1", [&](const Visit& v) { return step(v, v.state, {.rope_shift = 1}); }},
        {"hand-off", "with the hidden row of the token itself instead of the one that produced it",
         [&](const Visit& v) { return step(v, v.same, {}); }},
        {"hand-off", "with the hidden row before the final norm",
         [&](const Visit& v) { return step(v, v.pre_norm, {}); }},
        {"hand-off", "with state and embedding exchanged in pre_projection's input",
         [&](const Visit& v) { return step(v, v.state, {.swap_halves = true}); }}};
    std::int64_t samples = 0, hits = 0;
    for (const Question& text : reference_.cases) {
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
    Row rates;
    const Alternative* best = nullptr;
    for (const Alternative& other : others) {
      rates.push_back({other.what, share(other.hits)});
      // Clearly better: by a twentieth of all drafts, and by four standard errors of paired trials (McNemar).
      const std::int64_t gain = other.gained - other.lost;
      const bool clear = gain > 0 && share(gain) >= 0.05 && gain * gain >= 16 * (other.gained + other.lost);
      if (clear && (best == nullptr || other.hits > best->hits)) best = &other;
    }
    facts.push_back({"first_draft_rate", share(hits)});
    facts.push_back({"first_draft_rate_by_variant", rates});
    if (best == nullptr) return;
    throw Failure(best->diagnosis,
                  "the first draft is right in {:.2f} of {} positions, but in {:.2f} {}: the assistant was trained so",
                  share(hits), samples, share(best->hits), best->what);
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
};

}  // namespace

void add_validate_command(Command& app) {
  Command* command =
      app.add_subcommand("validate", "Check in six steps that an assistant drafts for a target, and diagnose why not");
  auto flags = std::make_shared<ValidateFlags>();
  auto* target = command->add_option("TARGET", flags->target,
                                     "The backbone's checkpoint, or its name on the hub (default: the nano pair)");
  command
      ->add_option("ASSISTANT", flags->assistant,
                   "The assistant's checkpoint (default: the one that belongs to the target by its name)")
      ->needs(target);
  flags->report.add_to(*command);
  command->add_option("--golden", flags->golden, "Recorded reference: a folder in the form of tests/goldens");
  ModelFlags::add_dtype(*command, flags->dtype);
  add_number(*command, "--max-tokens", flags->max_tokens, 2, 4096, "Maximum number of tokens per answer");
  command
      ->add_option("--acceptance-min", flags->acceptance_min,
                   "Minimum acceptance rate, at 4 drafts per round (default: half of the golden's, else 0.1)")
      ->check(CLI::Range(0.0, 1.0));
  command->callback([flags] {
    init_logging("outrider", "warn");
    if (flags->target.empty()) {
      const PairPaths nano = or_throw(pair_paths(""));
      flags->target = nano.backbone;
      flags->assistant = nano.assistant;
    }
    if (flags->assistant.empty()) {
      const PairPaths found = or_throw(pair_paths(flags->target));
      if (found.assistant.empty()) throw UsageError("validate: TARGET has no assistant beside it: give ASSISTANT too");
      flags->target = found.backbone;
      flags->assistant = found.assistant;
    }
    flags->target = or_throw(model_path(flags->target));
    flags->assistant = or_throw(model_path(flags->assistant));
    if (is_block_drafter(flags->assistant))
      throw CommandError(
          "{}: is a block or EAGLE-3 drafter, wanted an assistant; `outrider bench pair --draft-model` measures it",
          flags->assistant.string());
    if (!Validation(*flags).run()) throw ExitStatus(1);
  });
}

}  // namespace outrider
