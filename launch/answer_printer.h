#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/model/tokenizer/chat_parser.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// @return true if NO_COLOR (no-color.org) is unset or empty
bool colours_allowed();

/// Prints a remark to a person at a terminal: dimmed, unless NO_COLOR forbids that.
void print_remark(const std::string& text);

/// @return true if standard output is a terminal that can show the source of each part of an answer: colours are
/// allowed, and TERM is neither "dumb" nor the Linux console, which cannot strike through
bool terminal_shows_rounds();

/// Writes answers to standard output as they arrive. With rounds, accepted drafts are green, rejected drafts are dimmed
/// and struck through in their place, and the target's own tokens are plain. Held-back text (a character's first bytes,
/// a possible stop string) has the style of the token that releases it.
class AnswerPrinter {
 public:
  struct Look {
    bool for_person = false;  ///< shows thoughts, dimmed, and a blank line after each answer
    bool rounds = false;
  };

  /// @param tokenizer  outlives this object
  AnswerPrinter(const Tokenizer& tokenizer, const Look& look)
      : tokenizer_(tokenizer), for_person_(look.for_person), shows_rounds_(look.rounds) {}

  /// Takes the report of the round with the next tokens.
  void on_round(const RoundReport& round);
  /// Announces the next token of the answer, before its text.
  void on_token();
  void print(const ChatEvent& event);
  /// Ends an answer; another one may follow.
  void finish();

 private:
  /// @param style  parameters of ANSI's "select graphic rendition"; empty: none
  void write(std::string_view style, std::string_view text) const;
  /// Writes the rejected drafts.
  void write_rejected() const;

  const Tokenizer& tokenizer_;
  const bool for_person_, shows_rounds_;
  std::optional<RoundReport> round_ = {};  ///< of the tokens that follow
  int token_ = 0;                          ///< index in `round_` of the next token
  bool accepted_ = false;                  ///< the current token is an accepted draft
  bool thinking_ = false;                  ///< a thought was printed last
};

}  // namespace outrider
