# SPDX-License-Identifier: Apache-2.0
"""A last bound on the time of a test, should its own not stop it.

NOTE: by a thread, since OS_TEST_TIMEOUT already uses the process's one alarm.
"""

import gc
import pathlib

import pytest

_TIMEOUT_S = 600


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S, method='thread'))


def pytest_collection_finish():
    """Have Python look for garbage rarely, and not in all of Nova.

    Each test makes and drops some hundred thousand objects; with the defaults
    a seventh of the CPU time of a test is spent on looking for cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
