#pragma once

#include "launch/command_line.h"

namespace outrider {

// Each adds a subcommand. Its callback throws std::runtime_error with the one line that a person
// needs, or ExitStatus; main() turns both into an exit.

void add_role_commands(Command& app);       ///< coordinator, verifier, drafter
void add_run_command(Command& app);         ///< run
void add_serve_command(Command& app);       ///< serve
void add_batch_command(Command& app);       ///< batch
void add_chat_command(Command& app);        ///< chat
void add_launch_command(Command& app);      ///< launch
void add_completion_command(Command& app);  ///< completion
void add_pack_command(Command& app);        ///< pack
void add_keys_command(Command& app);        ///< keys

}  // namespace outrider
