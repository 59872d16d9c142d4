#pragma once

namespace CLI {
class App;
}

namespace outrider {

// Each adds a subcommand. Its callback throws std::runtime_error with the one line that a person
// needs, or CLI::RuntimeError with an exit status; main() turns both into an exit.

void add_role_commands(CLI::App& app);       ///< coordinator, verifier, drafter
void add_run_command(CLI::App& app);         ///< run
void add_serve_command(CLI::App& app);       ///< serve
void add_batch_command(CLI::App& app);       ///< batch
void add_chat_command(CLI::App& app);        ///< chat
void add_launch_command(CLI::App& app);      ///< launch
void add_completion_command(CLI::App& app);  ///< completion
void add_pack_command(CLI::App& app);        ///< pack
void add_keys_command(CLI::App& app);        ///< keys

}  // namespace outrider
