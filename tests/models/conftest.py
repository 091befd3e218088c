"""Tests of models find the same, whatever packages of models are installed here."""

from importlib import metadata
from typing import Any

import pytest

from specdemo.models.catalogue import catalogue


@pytest.fixture(autouse=True)
def no_packaged_models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide installed packages that hold a model, except from the tests of such a model."""

    hidden = {
        source.package.partition("==")[0] for entry in catalogue() for source in entry.sources if source.package
    }

    def files(name: str) -> Any:
        if name in hidden:
            raise metadata.PackageNotFoundError(name)
        return metadata.files(name)

    if request.path.stem != "test_smollm2":
        monkeypatch.setattr("specdemo.models.hub.files", files)
