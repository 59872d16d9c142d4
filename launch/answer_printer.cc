#include "launch/answer_printer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "common/base/utf8.h"

namespace outrider {

bool colours_allowed() {
  const char* const no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || *no_color == '\0';
}

void print_remark(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, colours_allowed() ? "\033[2m%s\033[0m\n" : "%s\n", text.c_str());
}

bool terminal_shows_rounds() {
  const char* const term = std::getenv("TERM");
  const std::string_view name = term == nullptr ? "" : term;
  return isatty(STDOUT_FILENO) != 0 && colours_allowed() && !name.empty() && name != "dumb" && name != "linux";
}

void AnswerPrinter::on_round(const RoundReport& round) {
  if (!shows_rounds_) return;
  round_ = round;
  token_ = 0;
}

void AnswerPrinter::on_token() {
  if (!round_) return;
  accepted_ = token_++ < round_->outcome.accepted;
  if (accepted_) return;
  write_rejected();
  round_.reset();
}

void AnswerPrinter::write_rejected() const {
  if (!round_->depths.empty()) return;  // the rejected branches of a tree are not one text
  const auto accepted = static_cast<std::size_t>(round_->outcome.accepted);
  if (accepted >= round_->drafts.size()) return;
  std::string text = tokenizer_.decode(std::span(round_->drafts).subspan(accepted), /*skip_special=*/false);
  std::ranges::replace(text, '\n', ' ');
  write("2;9", printable(text));
}

void AnswerPrinter::print(const ChatEvent& event) {
  if (event.kind == ChatEvent::Kind::kContent) {
    if (thinking_) write("", "\n\n");
    thinking_ = false;
    write(accepted_ ? "32" : "", event.text);
  } else if (event.kind == ChatEvent::Kind::kReasoning && for_person_) {
    thinking_ = true;
    write(accepted_ ? "2;32" : "2", event.text);
  } else if (event.kind == ChatEvent::Kind::kToolCall) {
    write("", "[" + event.name + " " + event.text + "]");
  }
}

void AnswerPrinter::finish() {
  write("", for_person_ ? "\n\n" : "\n");
  round_.reset();
  accepted_ = thinking_ = false;
}

void AnswerPrinter::write(std::string_view style, std::string_view text) const {
  const bool styled = !style.empty() && (shows_rounds_ || colours_allowed());
  // Each piece resets its style, so that an aborted program leaves no coloured terminal.
  std::string bytes = styled ? "\033[" + std::string(style) + "m" : "";
  bytes += text;
  if (styled) bytes += "\033[0m";
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  std::fflush(stdout);
}

}  // namespace outrider
