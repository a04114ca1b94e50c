# SPDX-License-Identifier: Apache-2.0
"""The overrides of the agent, in a file."""

import json
import logging
import threading
import time

from nova_vqos import files
from nova_vqos import policy_override

LOG = logging.getLogger(__name__)

SCHEMA = 1


class OverrideStore:
    """The overrides of an agent; may be called from any thread.

    :ivar problem: why the file cannot be written, or was ignored; '': none
    """

    def __init__(self, path: str) -> None:
        """Prepare; nothing is read yet."""
        self.problem = ''
        self._path = path
        self._lock = threading.Lock()
        self._overrides = policy_override.NOTHING
        self._stored = policy_override.NOTHING

    @property
    def overrides(self) -> policy_override.Overrides:
        """The overrides in effect; a change makes a new object."""
        return self._overrides

    def load(self) -> None:
        """Read the file; log and ignore an invalid one."""
        try:
            content = json.loads(files.read(self._path))
            if content['schema'] != SCHEMA:
                raise policy_override.PushInvalid(
                    f'its schema is {str(content["schema"])[:20]}, this agent '
                    f'knows {SCHEMA}')
            found = policy_override.from_dict(content['flavors'])
        except files.FileMissing:
            return
        except (files.FileError, ValueError, KeyError, TypeError,
                RecursionError) as error:
            self._record_problem(
                f'{self._path} is ignored, servers follow their flavors as '
                f'booted until the next push: {error}')
            return
        with self._lock:
            self._stored = found
            self._overrides = policy_override.merged(self._overrides, found)

    def merge(self, received: policy_override.Overrides) -> bool:
        """Merge newer overrides, and store them.

        Where they cannot be stored, they are in effect until this agent ends,
        and the next call tries again.

        :returns: whether any was newer
        """
        with self._lock:
            before = self._overrides
            self._overrides = policy_override.merged(before, received)
            if self._overrides != self._stored:
                self._store()
            return self._overrides != before

    def _store(self) -> None:
        text = json.dumps({'schema': SCHEMA,
                           'flavors': policy_override.to_dict(
                               self._overrides)},
                          ensure_ascii=False)
        try:
            files.write(text, self._path, mode=0o600)
        except (OSError, UnicodeError) as error:
            self._record_problem(f'overrides cannot be stored: {error}')
            return
        self._stored = self._overrides
        self.problem = ''

    def _record_problem(self, problem: str) -> None:
        if problem != self.problem:
            LOG.error('Policy push: %s', problem)
        self.problem = problem


def now_us() -> int:
    """The time of now as a generation, in microseconds since 1970."""
    return time.time_ns() // 1000
