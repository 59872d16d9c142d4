#pragma once

#include "launch/command_line.h"

namespace outrider {

// Each adds a subcommand; its callback throws as those of launch/commands.h do.

void add_bench_command(Command& app);             ///< bench pair, ask, engine, drafter, speculative, threads, towers
void add_bench_ask_command(Command& bench);       ///< of bench: ask
void add_bench_engine_commands(Command& bench);   ///< of bench: engine, drafter, speculative, threads
void add_bench_towers_command(Command& bench);    ///< of bench: towers
void add_experiment_command(Command& app);        ///< experiment, experiment report
void add_draft_vocabulary_command(Command& app);  ///< draft-vocabulary
void add_bake_table_command(Command& app);        ///< bake-table
void add_parity_command(Command& app);            ///< parity
void add_perplexity_command(Command& app);        ///< perplexity
void add_doctor_command(Command& app);            ///< doctor
void add_ready_command(Command& app);             ///< ready
void add_validate_command(Command& app);          ///< validate
void add_layout_command(Command& app);            ///< layout
void add_inspect_command(Command& app);           ///< inspect

}  // namespace outrider
