"""Writes what became of each case into $OUTRIDER_OUTCOMES: passed, failed or skipped, then its name."""
import os


def pytest_runtest_logreport(report):
    if report.when == "call" or (report.outcome != "passed" and report.when == "setup"):
        with open(os.environ["OUTRIDER_OUTCOMES"], "a") as outcomes:
            outcomes.write(f"{report.outcome} {report.nodeid}\n")
