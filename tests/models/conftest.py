"""Tests of models find the same, whatever packages of models are installed here."""

from importlib.metadata import PackageNotFoundError
from typing import NoReturn

import pytest


@pytest.fixture(autouse=True)
def no_packaged_models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide installed packages that hold a model, except from the tests of such a model."""

    def files(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    if request.path.stem != "test_smollm2":
        monkeypatch.setattr("specdemo.models.packages.files", files)
