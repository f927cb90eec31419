"""The command `dumlp-pin`, one file a group of commands: each parses, calls, prints."""

from __future__ import annotations

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


def main() -> None:
    try:
        app.cli(prog="dumlp-pin", description="Features of sets, by two MLPs and a dot product.")
    except EXPECTED as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        fail(str(message), 1)
