# SPDX-License-Identifier: Apache-2.0
"""The pushes of the agent, in a file."""

from collections.abc import Iterable
import json
import logging
import threading
import time

from nova_vqos import files
from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import push_signature

LOG = logging.getLogger(__name__)

SCHEMA = 2
# Of agents before RPC 1.6: the newest override of each flavor.
_OVERRIDES_SCHEMA = 1


class OverrideStore:
    """The pushes of an agent; may be called from any thread.

    :ivar problem: why the file cannot be written, or was ignored; '': none
    :ivar refused: why the last push was refused for lack of room; '': it was
        not
    """

    def __init__(self, path: str,
                 verifier: push_signature.Verifier | None = None) -> None:
        """Prepare; nothing is read yet.

        :param verifier: checks all pushes; None: none need be signed
        """
        self.verifier = verifier or push_signature.Verifier()
        self.problem = ''
        self.refused = ''
        self._path = path
        self._lock = threading.Lock()
        self._pushes: policy_push.Pushes = ()
        self._stored: policy_push.Pushes = ()
        self._overrides = policy_override.NOTHING

    @property
    def pushes(self) -> policy_push.Pushes:
        """The pushes that hold."""
        return self._pushes

    @property
    def overrides(self) -> policy_override.Overrides:
        """The overrides in effect; a change makes a new object."""
        return self._overrides

    def load(self) -> None:
        """Read the file; log and ignore an invalid one."""
        try:
            found = self._read()
        except files.FileMissing:
            return
        except (files.FileError, ValueError, KeyError, TypeError,
                RecursionError) as error:
            self._record_problem(
                f'{self._path} is ignored, servers follow their flavors as '
                f'booted until the next push: {error}')
            return
        valid = []
        for push in found:
            try:
                self.verifier.check(push)
            except push_signature.SignatureInvalid as error:
                self._record_problem(
                    f'a push in {self._path} is ignored, servers follow their '
                    f'flavors as booted until the next push: {error}')
            else:
                valid.append(push)
        with self._lock:
            # NOTE: the file stays as it is until there is something newer: an
            # operator may have named the wrong key.
            self._stored = policy_push.merged((), valid)
            self._use(policy_push.merged(self._pushes, valid))

    def _read(self) -> policy_push.Pushes:
        content = json.loads(files.read(self._path))
        if content['schema'] == _OVERRIDES_SCHEMA:
            return policy_push.of_overrides(
                policy_override.from_dict(content['flavors']))
        if content['schema'] != SCHEMA:
            raise policy_override.PushInvalid(
                f'its schema is {str(content["schema"])[:20]}, this agent '
                f'knows {SCHEMA}')
        return policy_push.merged((), policy_push.from_list(content['pushes']))

    def merge(self, received: Iterable[policy_push.Push]
              ) -> tuple[bool, policy_push.TooManyFlavors | None]:
        """Merge newer pushes that were verified, and store them.

        Where they cannot be stored, they are in effect until this agent ends,
        and the next call tries again.

        :returns: whether any was newer; and the error of one for which there
            is no room, None where there is none
        """
        refused = None
        with self._lock:
            held = self._pushes
            # First the full ones, which make room.
            for push in sorted(received, key=lambda push: (
                    not push.full, push.order)):
                try:
                    held = policy_push.merged(held, [push])
                except policy_push.TooManyFlavors as error:
                    refused = error
            newer = held != self._pushes
            if newer:
                self._use(held)
            if self._pushes != self._stored:
                self._store()
            if refused is not None:
                self._record_refusal(str(refused))
            elif newer:
                self.refused = ''
        return newer, refused

    def _use(self, held: policy_push.Pushes) -> None:
        self._pushes = held
        self._overrides = policy_push.overrides_of(held)

    def _store(self) -> None:
        text = json.dumps({'schema': SCHEMA, 'pushes': [
            push.to_dict() for push in self._pushes]}, ensure_ascii=False)
        try:
            files.write(text, self._path, mode=0o600)
        except (OSError, UnicodeError) as error:
            self._record_problem(f'overrides cannot be stored: {error}')
            return
        self._stored = self._pushes
        self.problem = ''

    def _record_refusal(self, refused: str) -> None:
        if not self.refused:
            LOG.error('Policy push is refused: %s', refused)
        self.refused = f'a policy push was refused: {refused}'

    def _record_problem(self, problem: str) -> None:
        if problem != self.problem:
            LOG.error('Policy push: %s', problem)
        self.problem = problem


def now_us() -> int:
    """The time of now as a generation, in microseconds since 1970."""
    return time.time_ns() // 1000
