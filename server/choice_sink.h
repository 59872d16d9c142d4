#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/generation_task.h"
#include "server/reply_writer.h"
#include "server/streamed_reply.h"

namespace outrider {

/// Receives a request's choices as they arrive, and collects each one.
class ChoiceSink {
 public:
  explicit ChoiceSink(const GenerationTask& task) : choices(task.choices()), task_(task) {}
  virtual ~ChoiceSink() = default;
  virtual void begin(std::size_t index) {
    if (task_.head.token_ids) choices[index].prompt_ids = task_.prompt_of(index);
  }
  virtual void round(std::size_t, const ReportedRound&) {}  ///< precedes its round's tokens
  virtual void event(std::size_t index, const ChatEvent& event) { append(event, choices[index].message); }
  /// No further event for the tokens so far: ids and scores do not wait for text. @param end_thought  see TokensAlone
  virtual void pause(std::size_t, bool /*end_thought*/) {}
  virtual void end(std::size_t index, const char* finish_reason, const StopReason& stop_reason) {
    choices[index].finish_reason = finish_reason;
    choices[index].stop_reason = stop_reason;
  }

  std::vector<Choice> choices;  ///< receive requested ids and scores before the tokens' events

 protected:
  const GenerationTask& task_;
};

/// Sends events. `choices` has the additional content of each choice's next event.
class StreamingSink final : public ChoiceSink {
 public:
  StreamingSink(const GenerationTask& task, ReplyWriter& writer, const StreamedReply::Emit& emit)
      : ChoiceSink(task), writer_(writer), emit_(emit), calls_(task.choices()), open_(task.choices()) {}
  void begin(std::size_t index) override {
    ChoiceSink::begin(index);
    send(index, ChoiceBegins{}, take_notes(index));
  }
  void round(std::size_t index, const ReportedRound& reported) override { send(index, reported, {}); }
  void event(std::size_t index, const ChatEvent& event) override {
    if (!task_.head.chat && event.kind != ChatEvent::Kind::kContent) return;
    send(index, event, take_notes(index));
    if (event.kind == ChatEvent::Kind::kToolCall) ++calls_[index];
  }
  void pause(std::size_t index, bool end_thought) override {
    if (!choices[index].token_ids.empty() || !choices[index].scores.empty())
      send(index, TokensAlone{end_thought}, take_notes(index));
  }
  void end(std::size_t index, const char* finish_reason, const StopReason& stop_reason) override {
    const bool last = --open_ == 0 && !task_.request.include_usage;
    const Usage usage = task_.usage();
    ChunkNotes notes = take_notes(index);
    if (last) notes.timed = nullptr;
    send(index, ChoiceEnds{finish_reason, stop_reason, last ? &usage : nullptr}, std::move(notes));
  }

 private:
  ChunkNotes take_notes(std::size_t index) {
    Choice pending = std::exchange(choices[index], {});
    ChunkNotes notes{.scores = std::move(pending.scores),
                     .token_ids = std::move(pending.token_ids),
                     .prompt_ids = std::move(pending.prompt_ids)};
    const CompletionRequest& request = task_.request;
    const bool timed = request.timings_in_each_chunk && choices.size() == 1 && task_.facts.generated_tokens > 0;
    if (!request.usage_in_each_chunk && !timed) return notes;
    so_far_ = task_.usage_so_far();
    if (request.usage_in_each_chunk) notes.so_far = &so_far_;
    if (timed) notes.timed = &so_far_;
    return notes;
  }
  template <typename What>
  void send(std::size_t index, const What& what, ChunkNotes notes) {
    emit_(writer_.event(task_.head, {.index = index, .what = what, .notes = std::move(notes), .calls = calls_[index]}));
  }
  ReplyWriter& writer_;
  const StreamedReply::Emit& emit_;
  std::vector<std::size_t> calls_;  ///< number of each choice's complete calls
  std::size_t open_;                ///< unfinished choices
  Usage so_far_;
};

}  // namespace outrider
