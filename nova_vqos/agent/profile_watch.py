# SPDX-License-Identifier: Apache-2.0
"""Follows the host profile: loads it again when its file changes."""

from collections.abc import Callable, Mapping
import logging

from nova_vqos import files
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint as fingerprints
from nova_vqos.profile import model
from nova_vqos.profile import validity

LOG = logging.getLogger(__name__)

# The host rarely changes under a running agent (a governor, a new emulator);
# reading its fingerprint costs tens of milliseconds.
FINGERPRINT_INTERVAL_S = 600.0


class ProfileWatch:
    """The profile in use, and what is wrong with it.

    A stale profile is used, since a cap that is a little off beats none. One
    that vanished or became unreadable leaves the last good one in use.

    :ivar profile: None until one could be loaded
    """

    def __init__(self, path: str, max_interval: float,
                 fingerprint: Callable[[str | None], Mapping[str, str]]
                 = fingerprints.of_host) -> None:
        """Prepare; nothing is read yet.

        :param path: of the profile
        :param max_interval: see :func:`nova_vqos.profile.validity.staleness`
        :param fingerprint: gives that of this host, by its emulator
        """
        self.profile: model.Profile | None = None
        self._path = path
        self._max_interval = max_interval
        self._fingerprint = fingerprint
        self._identity: tuple[int, ...] | None = ()
        self._problem = ''
        self._stale: tuple[str, ...] = ()
        self._checked_at_s = float('-inf')

    @property
    def alarms(self) -> tuple[str, ...]:
        """What is wrong, one text each."""
        return tuple(filter(None, (self._problem, *self._stale)))

    @property
    def problem(self) -> str:
        """What is wrong, in one text; '': nothing is."""
        return '; '.join(self.alarms)

    def poll(self, now_s: float) -> bool:
        """Look whether the file changed.

        :param now_s: on the monotonic clock
        :returns: whether another profile is in use now
        """
        identity = files.identity(self._path)
        if identity == self._identity:
            self._check(now_s)
            return False
        self._identity = identity
        before = self.profile
        try:
            self.profile = document.load(self._path)
        except files.FileError as error:
            self._problem = str(error)
            LOG.error('%s. %s', error,
                      'Caps are left as they are' if before is None else
                      f'Profile {before.id} stays in use')
            return False
        self._problem = ''
        if before is not None and before.id == self.profile.id:
            return False
        LOG.info('Profile %s of %s is in use, created at %s',
                 self.profile.id, self._path, self.profile.created_at)
        self._checked_at_s = float('-inf')
        self._check(now_s)
        return True

    def _check(self, now_s: float) -> None:
        if self.profile is None or (
                now_s - self._checked_at_s < FINGERPRINT_INTERVAL_S):
            return
        self._checked_at_s = now_s
        stale = tuple(validity.staleness(
            self.profile,
            self._fingerprint(self.profile.fingerprint.get('emulator')),
            max_interval=self._max_interval))
        if stale and stale != self._stale:
            LOG.warning('Profile %s is stale, and still in use for running '
                        'servers; calibrate this host again: %s',
                        self.profile.id, '; '.join(stale))
        self._stale = stale
