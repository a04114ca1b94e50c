# SPDX-License-Identifier: Apache-2.0
"""Unit tests never touch the host: whatever would, fails the test.

An audit hook sees what patched functions do not: also what C code opens.
"""

import contextlib
import importlib
import logging
import os
import sys
import tempfile

import hypothesis
import pytest

from nova import monkey_patch

# NOTE: before oslo.messaging is imported by any test: Nova forbids eventlet,
# and can do so only as long as nothing has imported it.
os.environ.setdefault('OS_NOVA_DISABLE_EVENTLET_PATCHING', '1')
monkey_patch.patch()
# NOTE: Nova's own tests call it again, and it fails once one of our programs
# has its own way to prevent the import of eventlet.
monkey_patch.patch = lambda: None

# NOTE: as it is imported, pyroute2 0.8, which 2026.1 has, runs uname and file.
# os-vif's plugins import it, which Nova's fixture of libvirt loads in a test.
with contextlib.suppress(ImportError):
    importlib.import_module('pyroute2')

# A busy machine is no reason to fail, however slow it is. In CI the examples
# are the same each time, as by Hypothesis' own profile for it.
hypothesis.settings.register_profile(
    'untimed', deadline=None, derandomize=bool(os.environ.get('CI')),
    suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile('untimed')


def pytest_addoption(parser):
    parser.addoption(
        '--fuzz-minutes', type=float, default=0, metavar='MINUTES',
        help='for how long each test of unit/fuzz tries inputs (default: one '
        'pass of some hundred)')


_FORBIDDEN_EVENTS = frozenset([
    'os.exec', 'os.fork', 'os.posix_spawn', 'os.system', 'socket.connect',
    'socket.bind', 'subprocess.Popen'])
_FORBIDDEN_TREES = ('/sys/', '/etc/nova', '/etc/libvirt', '/run/',
                    '/var/run/', '/var/lib/libvirt', '/var/lib/nova')
# What programs keep for the next time: of stevedore, what is installed.
_CACHES = ('.hypothesis', '__pycache__', 'python-entrypoints')
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _HostTouched(AssertionError):
    """A unit test reached for the host."""


_active = False


def _hook(event, arguments):
    if not _active:
        return
    if event in _FORBIDDEN_EVENTS:
        raise _HostTouched(f'{event} {arguments!r}')
    if event == 'open' and isinstance(arguments[0], str):
        path, _mode, flags = arguments
        if path.startswith(_FORBIDDEN_TREES):
            raise _HostTouched(f'open {path}')
        if flags & _WRITE_FLAGS and os.path.isabs(path) and not (
                path.startswith((tempfile.gettempdir(), '/dev/null'))
                or any(cache in path for cache in _CACHES)):
            raise _HostTouched(f'open {path} for writing')


# NOTE: it looks for the folder when it is first called, and writes there to
# see: from within the hook that never ends.
tempfile.gettempdir()
sys.addaudithook(_hook)


@contextlib.contextmanager
def _poison():
    global _active
    _active = True
    try:
        yield
    finally:
        _active = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with _poison():
        return (yield)


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """Take away what a program under test logs with.

    Its handlers write to streams of that test, which are closed after it.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers
                        if handler in handlers]
    root.setLevel(level)
