#pragma once

#include <optional>
#include <string_view>

#include "common/model/tokenizer/chat_parser.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// @return whether NO_COLOR (no-color.org) is unset or empty.
bool colours_allowed();

/// @return whether standard output is a terminal that can show the source of each part of an answer: colours are
/// allowed, and TERM names neither "dumb" nor the Linux console, which strikes nothing through.
bool terminal_shows_rounds();

/// Writes answers to standard output as they come. With rounds, accepted drafts are green, rejected drafts are dimmed
/// and struck through where they would have stood, and the target's own tokens are plain. Text that is held back (a
/// character's first bytes, what may become a stop string) looks like the token that released it.
class AnswerPrinter {
 public:
  struct Look {
    bool for_person = false;  ///< thoughts are shown, dimmed, and a blank line follows each answer
    bool rounds = false;
  };

  /// @param tokenizer  outlives this object
  AnswerPrinter(const Tokenizer& tokenizer, const Look& look)
      : tokenizer_(tokenizer), for_person_(look.for_person), shows_rounds_(look.rounds) {}

  /// Takes the report of the round that the next tokens belong to.
  void on_round(const RoundReport& round);
  /// The next token of the answer, before the text that it brings.
  void on_token();
  void print(const ChatEvent& event);
  /// Ends an answer; the next one may follow.
  void finish();

 private:
  /// @param style  parameters of ANSI's "select graphic rendition"; empty: none
  void write(std::string_view style, std::string_view text) const;
  /// The drafts that the target would not have said.
  void write_rejected() const;

  const Tokenizer& tokenizer_;
  const bool for_person_, shows_rounds_;
  std::optional<RoundReport> round_ = {};  ///< of the tokens that come
  int token_ = 0;                          ///< of `round_`, the next one
  bool accepted_ = false;                  ///< the current token is a draft that held
  bool thinking_ = false;                  ///< a thought was printed last
};

}  // namespace outrider
