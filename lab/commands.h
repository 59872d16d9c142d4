#pragma once

#include "launch/command_line.h"

namespace outrider {

// The subcommands of `bench` that have files of their own.

void add_bench_ask_command(Command& bench);      ///< ask
void add_bench_engine_commands(Command& bench);  ///< engine, speculative
void add_bench_towers_command(Command& bench);   ///< towers

}  // namespace outrider
