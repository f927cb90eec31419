"""The command line as a person has it, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dumlp_pin.cli import main


@dataclass(frozen=True)
class Result:
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("predict", model, file)`; with `fails=True` it must end with status 1."""

    def run_command(*words: object, fails: bool = False) -> Result:
        monkeypatch.setattr("sys.argv", ["dumlp-pin", *map(str, words)])
        if fails:
            with pytest.raises(SystemExit) as end:
                main()
            assert end.value.code == 1
        else:
            main()
        captured = capsys.readouterr()
        return Result(captured.out, captured.err)

    return run_command
