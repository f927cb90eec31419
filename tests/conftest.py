"""Fixtures for tests of every part."""

from tests.commands import run as run
