# SPDX-License-Identifier: Apache-2.0
"""Functional tests: Nova's own services and Placement in one process.

NOTE: Nova decides between eventlet and threads, by this variable, when
nova.tests.functional is imported, which has to come before all else of Nova.
Computes of Nova 34 run threaded; those of Nova 33 on eventlet, and threaded
where their operator says so: as here, by the variable.
"""

import importlib.metadata
import os

from oslo_utils import strutils
import pytest

_VARIABLE = 'OS_NOVA_DISABLE_EVENTLET_PATCHING'

NOVA = int(importlib.metadata.version('nova').split('.')[0])
THREADED = strutils.bool_from_string(
    os.environ.setdefault(_VARIABLE, str(NOVA >= 34)))
needs_threads = pytest.mark.requires(
    '' if THREADED else 'not for tests on eventlet')
# Of oslotest: a test that hangs fails, with its log.
os.environ.setdefault('OS_TEST_TIMEOUT', '500')

import nova.tests.functional  # noqa: E402,F401
