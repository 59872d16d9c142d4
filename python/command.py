#!python
"""The command `outrider` of a wheel: runs the program that lies in the package, which is not loaded for that."""
import importlib.util
import os
import pathlib
import sys

package = importlib.util.find_spec("outrider")
if package is None or package.origin is None:
    sys.exit("outrider: the package of this command is not installed")
program = pathlib.Path(package.origin).parent / "bin" / "outrider"
try:
    os.execv(program, [str(program), *sys.argv[1:]])
except OSError as error:
    sys.exit(f"outrider: {program} cannot be run: {error.strerror}")
