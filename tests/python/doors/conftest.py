"""Shared by the tests of the doors beside PyTorch. TENURE_LIBRARY names libtenure.so.0, or the folder it lies in."""

import os

import pytest


@pytest.fixture(scope="session")
def native():
    """The library, on its simulated device."""
    if not os.environ.get("TENURE_LIBRARY"):
        pytest.skip("TENURE_LIBRARY does not name libtenure.so.0")
    from tenure import _native

    return _native.load()


@pytest.fixture
def gpu(native):
    """The name of a GPU."""
    from tenure import _arenas
    from tenure._library import TenureError

    try:
        return _arenas.device("cuda:0").name
    except TenureError as error:
        pytest.skip(f"no GPU: {error}")


@pytest.fixture
def alice(native):
    """An arena of 64 MiB on every device, empty again at the end."""
    import gc

    import tenure

    arena = tenure.arena("alice", max="64MiB")
    yield arena
    gc.collect()
    assert arena.stats()["blocks"] == 0
    arena.destroy()
