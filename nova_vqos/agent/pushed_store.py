# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What was pushed, kept by the agent across restarts."""

import json
import logging
import threading
import time

from nova_vqos import profile as profiles
from nova_vqos import pushed

LOG = logging.getLogger(__name__)

DEFAULT_PATH = '/var/lib/nova-vqos/pushed.json'
SCHEMA = 1


class PushedStore:
    """What an agent has heard of; may be called from any thread.

    :ivar problem: why what is heard does not outlive the agent, or what was
        kept is not used; '': all is well
    """

    def __init__(self, path: str) -> None:
        """Prepare; nothing is read yet."""
        self.problem = ''
        self._path = path
        self._lock = threading.Lock()
        self._overrides = pushed.NOTHING
        self._stored = pushed.NOTHING

    @property
    def overrides(self) -> pushed.Overrides:
        """What holds now; never changed, but replaced by another."""
        return self._overrides

    def load(self) -> None:
        """Read what was kept. What cannot be used is left out, and told of."""
        try:
            content = json.loads(profiles.read(self._path))
            if content['schema'] != SCHEMA:
                raise pushed.PushInvalid(
                    f'its schema is {str(content["schema"])[:20]}, this agent '
                    f'knows {SCHEMA}')
            found = pushed.from_dict(content['flavors'])
        except profiles.ProfileMissing:
            return
        except (profiles.ProfileError, ValueError, KeyError, TypeError,
                RecursionError) as error:
            self._complain(f'{self._path} is ignored, servers follow their '
                           f'flavors as booted until the next push: {error}')
            return
        with self._lock:
            self._stored = found
            self._overrides = pushed.merged(self._overrides, found)

    def take(self, heard: pushed.Overrides) -> bool:
        """Take what is newer, and keep it.

        What cannot be kept holds all the same, for as long as this agent
        runs, and is tried again at the next call.

        :returns: whether anything was newer
        """
        with self._lock:
            before = self._overrides
            self._overrides = pushed.merged(before, heard)
            if self._overrides != self._stored:
                self._store()
            return self._overrides != before

    def _store(self) -> None:
        text = json.dumps({'schema': SCHEMA,
                           'flavors': pushed.to_dict(self._overrides)},
                          ensure_ascii=False)
        try:
            profiles.write(text, self._path)
        except (OSError, UnicodeError) as error:
            self._complain(f'what was pushed cannot be kept: {error}')
            return
        self._stored = self._overrides
        self.problem = ''

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            LOG.error('Policy push: %s', problem)
        self.problem = problem


def now_us() -> int:
    """What generations are made of."""
    return time.time_ns() // 1000
