#pragma once

namespace CLI {
class App;
}

namespace outrider {

// Each adds a subcommand. Its callback throws std::runtime_error with the one line that a person
// needs, or CLI::RuntimeError with an exit status; main() turns both into an exit.

void add_role_commands(CLI::App& app);            ///< coordinator, verifier, drafter
void add_run_command(CLI::App& app);              ///< run
void add_serve_command(CLI::App& app);            ///< serve
void add_chat_command(CLI::App& app);             ///< chat
void add_bench_command(CLI::App& app);            ///< bench pair, engine, speculative
void add_bench_engine_commands(CLI::App& bench);  ///< of bench: engine, speculative
void add_parity_command(CLI::App& app);           ///< parity
void add_perplexity_command(CLI::App& app);       ///< perplexity
void add_pack_command(CLI::App& app);             ///< pack
void add_doctor_command(CLI::App& app);           ///< doctor
void add_ready_command(CLI::App& app);            ///< ready
void add_validate_command(CLI::App& app);         ///< validate
void add_layout_command(CLI::App& app);           ///< layout
void add_inspect_command(CLI::App& app);          ///< inspect

}  // namespace outrider
