#pragma once

namespace CLI {
class App;
}

namespace outrider {

// Each adds a subcommand; its callback throws as those of launch/commands.h do.

void add_bench_command(CLI::App& app);            ///< bench pair, ask, engine, drafter, speculative, vision
void add_bench_ask_command(CLI::App& bench);      ///< of bench: ask
void add_bench_engine_commands(CLI::App& bench);  ///< of bench: engine, drafter, speculative
void add_bench_vision_command(CLI::App& bench);   ///< of bench: vision
void add_experiment_command(CLI::App& app);       ///< experiment, experiment report
void add_draft_vocabulary_command(CLI::App& app); ///< draft-vocabulary
void add_parity_command(CLI::App& app);           ///< parity
void add_perplexity_command(CLI::App& app);       ///< perplexity
void add_doctor_command(CLI::App& app);           ///< doctor
void add_ready_command(CLI::App& app);            ///< ready
void add_validate_command(CLI::App& app);         ///< validate
void add_layout_command(CLI::App& app);           ///< layout
void add_inspect_command(CLI::App& app);          ///< inspect

}  // namespace outrider
