"""What schemathesis is given, beside `schemathesis.toml`: files to upload, and two things to check of the answers."""

from __future__ import annotations

import os
from pathlib import Path

import schemathesis
from hypothesis import strategies as st

from rowssl.serve.security import HEADERS

FILES = sorted(Path(os.environ["ROWSSL_UPLOADS"]).iterdir())
schemathesis.openapi.media_type("image/png", st.sampled_from([file.read_bytes() for file in FILES]))


@schemathesis.check
def guarded(context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """Every answer has the headers that protect the page."""
    for name, value in HEADERS.items():
        if response.headers.get(name.lower()) != [value]:
            raise AssertionError(f"{name} is {response.headers.get(name.lower())}")


@schemathesis.check
class Reached:
    """Every operation was answered well at least once: otherwise the others prove little."""

    def __init__(self) -> None:
        self.tried: set[str] = set()
        self.reached: set[str] = set()

    def after_response(
        self, context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
    ) -> None:
        self.tried.add(case.operation.label)
        if response.status_code == 200:
            self.reached.add(case.operation.label)

    def after_run(self, context: schemathesis.CheckContext) -> None:
        if self.tried - self.reached:
            raise AssertionError(f"never answered with 200: {sorted(self.tried - self.reached)}")
