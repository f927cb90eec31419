"""The command `dumlp-pin`, one file a group of commands: each parses, calls, prints."""

from __future__ import annotations

import os
import sys

from dumlp_pin.cli import data as data
from dumlp_pin.cli import evidence as evidence
from dumlp_pin.cli import figures as figures
from dumlp_pin.cli import models as models
from dumlp_pin.cli import runs as runs
from dumlp_pin.cli import sets as sets
from dumlp_pin.cli import weights as weights
from dumlp_pin.cli.app import app, fail

# What a person can set right. Anything else is a fault of ours, and shows where it happened.
EXPECTED = (ValueError, KeyError, TypeError, OSError, ModuleNotFoundError, FloatingPointError)

BROKEN_PIPE = 141  # the status that a shell shows of a program that ended so


def main() -> None:
    try:
        app.cli(prog="dumlp-pin", description="Features of sets, by two MLPs and a dot product.")
        sys.stdout.flush()
    except KeyboardInterrupt:
        fail("stopped", 130)
    except BrokenPipeError:
        # Who reads along, as `head` does, has seen enough: what is left to print goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except EXPECTED as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        fail(" ".join(str(message).split()), 1)
