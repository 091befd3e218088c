"""Shared fixtures. The real pair is loaded once; tests that need a browser find Chromium or say why not."""

import os
import shutil
from collections.abc import Iterator

import pytest

from specdemo.engines.genai import GenAIEngine
from specdemo.models.pairs import bundled_pair

PROMPTS = (
    "Once upon a time there was a fox who",
    "In a deep forest there lived",
    '"Where are you going?" asked the wolf.',
)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what is cached, such as compiled models, out of the home of whoever runs the tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def engine() -> Iterator[GenAIEngine]:
    """The bundled pair in real OpenVINO pipelines."""
    engine = GenAIEngine(bundled_pair())
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; where it must not be missing, `SPECDEMO_REQUIRE_BROWSER` makes that a failure."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        message = "no Chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get("SPECDEMO_REQUIRE_BROWSER"):
            pytest.fail(message)
        pytest.skip(message)
    return path
