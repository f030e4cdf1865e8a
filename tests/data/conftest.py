from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Keep the tests out of the user's cache, but let them share what they draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBUSTCAPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
