#!/usr/bin/env python3
"""Breaks the coordinator's session in one place at a time, and prints which tests see each break.

All mutants are compiled at once: each stands in its source behind a switch that OUTRIDER_MUTANT=n turns on, so a run
takes one build and the tests' time for each mutant. The sources are put back at the end. A mutant that no test sees
exits with 1: write the test.

usage: mutants.py BUILD_DIR [--only N,N...] [--simulation GTEST_FILTER] [--seed S] [--jobs N]
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SESSION = ROOT / "coordinator-node" / "session"
SWITCH = """#ifndef MUTANT
#include <cstdlib>
inline const int the_mutant = std::getenv("OUTRIDER_MUTANT") == nullptr ? 0 : std::atoi(std::getenv("OUTRIDER_MUTANT"));
#define MUTANT(n) (the_mutant == (n))
#endif
"""
TESTS = {"transcripts": "tests/protocol/transcript_test", "unit": "tests/unit/coordinator_test",
         "simulation": "tests/simulation/simulation_test"}
DROPPED = None

# File, what stands there (once), what stands there instead: an expression, or DROPPED for a whole statement.
MUTANTS = [
    ("verifying.cc", "if (auto ok = verifier_.check(verdict, prefill); !ok) return distrust(ok.error());", DROPPED),
    ("verifying.cc", "verifier.suspect = false;", DROPPED),
    ("verifying.cc", "if (pending_.on_message(message)) return {};", DROPPED),
    ("verifying.cc", "pending_.wait_from_now();", DROPPED),
    ("verifying.cc", "verifier_.contradicts(verdict)", "false"),
    ("verifying.cc", "round_.renumber();", DROPPED),
    ("verifying.cc", "verify.q = round_.drafts.q;", DROPPED),
    ("verifying.cc", "verify.depths = round_.drafts.depths;", DROPPED),
    ("verifying.cc", "sequence_.tokens.begin() + end", "sequence_.tokens.end()"),
    ("verifying.cc", "if (sequence_.has_token()) prefill.sampling.prompt_logprobs.reset();", DROPPED),
    ("verifying.cc", "state_.encoder.leave();", DROPPED),
    ("verifying.cc", "drafters_.take_no_more(/*with_rows=*/true);", DROPPED),
    ("verifying.cc", "if (ended) drafters_.ahead.expect(0, 0);", DROPPED),
    ("verifying.cc", "if (round_.moved) verifier_.count_failover();", DROPPED),
    ("verifying.cc", "if (!state_.asks_verifier()) return {};", DROPPED),
    ("verifying.cc", "drafting_goes_on ? drafters_.rows_wanted() : std::nullopt", "drafters_.rows_wanted()"),
    ("session.cc", "if (message.round != state_.round.id) return true;", DROPPED),
    ("session.cc", "state_.round.moved = true;", DROPPED),
    ("session.cc", "state_.round.moved = moved;", DROPPED),
    ("session.cc", "state_.round.renumber();", DROPPED),
    ("session.cc", "state_.encoder.leave();", DROPPED),
    ("session.cc", "state_.verifier.leave();", DROPPED),
    ("session.cc", "if (media && encoder.empty() && verifier.hello.no_towers) return false;", DROPPED),
    ("drafting.cc", "need != nullptr ? 0 : sequence_.answered()", "sequence_.answered()"),
    ("drafting.cc", "if (state_.phase != Phase::kDrafting) return {};", DROPPED),
    ("drafting.cc", "if (!sound && drafters_.awaits_drafts()) return {};", DROPPED),
    ("drafting.cc", "count > most", "false"),
    ("drafting.cc", "drafters_.take_no_more();", DROPPED),
    ("drafting.cc", "round_.choice.catches_up = !replica.place.worker()->needs_rows();", DROPPED),
    ("drafter_seats.cc", "replica.end = rows.to;", DROPPED),
    ("encoder_seat.cc", "if (message.base != sequence_.request.media[sequence_.encoded].first) return {};", DROPPED),
    ("encoder_seat.cc", "encoding_class = encoder.hello.encoding_class;", DROPPED),
    ("encoder_seat.cc", "encoder.retry = {};", DROPPED),
    ("verifier_seat.cc", "verifier != nullptr && verifier->draining", "false"),
    ("verifier_seat.cc", "wanted.context_min = sequence_.prompt_size + sequence_.request.max_tokens - 1;", DROPPED),
    ("verifier_seat.cc", "if (resuming) wanted.name = reported_name;", DROPPED),
    ("verifier_seat.cc", "times == 0 || times > kSilentMax", "true"),
    ("sequence.cc", "if (stopped) fresh.erase(stop + 1, fresh.end());", DROPPED),
    ("stepwise_session.cc", "keep_alives_ = 0;", DROPPED),
    ("session_state.cc", "ledger.metrics.failovers > 0", "false"),
]


def insert_switches():
    """@return the sources as they were."""
    kept = {SESSION / name: (SESSION / name).read_text() for name, _, _ in MUTANTS}
    for name, old, _ in MUTANTS:
        if kept[SESSION / name].count(old) != 1:
            sys.exit(f"{name}: {kept[SESSION / name].count(old)} times '{old}', wanted once")
    for number, (name, old, new) in enumerate(MUTANTS, 1):
        path = SESSION / name
        text = path.read_text()
        switched = f"if (!MUTANT({number})) {{ {old} }}" if new is DROPPED else f"(MUTANT({number}) ? ({new}) : ({old}))"
        path.write_text(("" if "MUTANT" in text else SWITCH) + text.replace(old, switched))
    return kept


def sees(build, test, number, options):
    """Whether a test fails, or does not end."""
    command = [build / TESTS[test], "--gtest_brief=1", "--gtest_fail_fast"]
    if test == "simulation":
        command.append(f"--gtest_filter={options.simulation}")
    env = {**os.environ, "OUTRIDER_MUTANT": str(number)}
    if options.seed is not None:
        env["OUTRIDER_SIM_SEED"] = str(options.seed)
    try:
        return subprocess.run(command, cwd=ROOT, env=env, timeout=300, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", type=lambda text: [int(number) for number in text.split(",")])
    parser.add_argument("--simulation", default="*", help="which tests of the simulation (a GoogleTest filter)")
    parser.add_argument("--seed", type=int, help="one seed of the simulation instead of all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once")
    options = parser.parse_args()
    options.build = options.build.resolve()
    kept = insert_switches()
    try:
        targets = [pathlib.Path(path).name for path in TESTS.values()]
        subprocess.run(["cmake", "--build", options.build, "--target", *targets], check=True, stdout=subprocess.DEVNULL)
    finally:
        for path, text in kept.items():
            path.write_text(text)
    if any(sees(options.build, test, 0, options) for test in TESTS):
        sys.exit("the tests fail without a mutant")
    print("| | file | mutant | " + " | ".join(TESTS) + " |\n|---|---|---|" + "---|" * len(TESTS))
    numbers = [n for n in range(1, len(MUTANTS) + 1) if not options.only or n in options.only]
    unseen = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda number: [sees(options.build, test, number, options) for test in TESTS], numbers)
        for number, seen in zip(numbers, results):
            unseen += not any(seen)
            name, old, new = MUTANTS[number - 1]
            what = f"without `{old}`" if new is DROPPED else f"`{new}` for `{old}`"
            marks = " | ".join("seen" if one else "" for one in seen)
            print(f"| {number} | `{name}` | {what.replace('||', 'or')} | {marks} |", flush=True)
    return int(unseen > 0)


if __name__ == "__main__":
    sys.exit(main())
