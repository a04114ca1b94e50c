# SPDX-License-Identifier: Apache-2.0
"""A fault in the work for one server costs no other server.

All that is done for several servers goes through :meth:`Isolation.each`.
"""

from collections.abc import Callable, Iterable
import logging
import typing as ty

from nova_vqos.agent import retry

LOG = logging.getLogger(__name__)

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
# Work that was not tried again for so long is no work any more.
_FORGOTTEN_AFTER_S = 600.0
_MOST_ALARMS = 10

_Result = ty.TypeVar('_Result')


class Subject(ty.Protocol):
    """What names a server in log and alarms."""

    @property
    def uuid(self) -> str: ...

    @property
    def name(self) -> str: ...


class Named(ty.NamedTuple):
    """A server, by its UUID alone."""

    uuid: str
    name: str = ''


_Subject = ty.TypeVar('_Subject', bound=Subject)


class _Fault:
    """
    :ivar text: which work failed, for which server, and why
    :ivar until_s: when it is forgotten
    """

    def __init__(self) -> None:
        self.text = ''
        self.until_s = 0.0
        self.backoff = retry.Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)


class Isolation:
    """Counts, names and puts off the work that fails for a server.

    :ivar errors: how often work failed
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        :param clock: monotonic, in seconds
        """
        self.errors = 0
        self._clock = clock
        # By server, and what was done.
        self._faults: dict[tuple[str, str], _Fault] = {}

    @property
    def alarms(self) -> tuple[str, ...]:
        """What failed when it was last tried, a text for each."""
        now_s = self._clock()
        # Another thread may read them.
        texts = [fault.text for fault in list(self._faults.values())
                 if now_s < fault.until_s]
        more = len(texts) - _MOST_ALARMS
        return (*texts[:_MOST_ALARMS], *([
            f'{more} more kinds of work failed, see the log']
            if more > 0 else ()))

    def each(self, purpose: str, subjects: Iterable[_Subject],
             work: Callable[[_Subject], _Result],
             passes: tuple[type[Exception], ...] = ()
             ) -> dict[str, _Result]:
        """Work for several servers.

        One for which it fails is left alone for a second, twice as long each
        time, a minute at most.

        :param purpose: such as "billing server", for log and alarm
        :param passes: errors that are no server's own: they end all
        :returns: by UUID, what work returned; without those for which it
            failed, or that are left alone
        """
        done = {}
        for subject in subjects:
            key = subject.uuid, purpose
            fault = self._faults.get(key)
            if fault is not None and self._clock() < fault.backoff.next_at_s:
                continue
            try:
                done[subject.uuid] = work(subject)
            except passes:
                raise
            except Exception as error:
                self._record(key, subject.name, error)
            else:
                if fault is not None:
                    self._faults.pop(key, None)
                    LOG.info('%s goes well again', _text(key, subject.name))
        return done

    def forget(self, uuid: str) -> None:
        """Forget a server: it has gone."""
        for key in [key for key in self._faults if key[0] == uuid]:
            del self._faults[key]

    def _record(self, key: tuple[str, str], name: str,
                error: Exception) -> None:
        self.errors += 1
        now_s = self._clock()
        for old in [old for old, fault in self._faults.items()
                    if now_s >= fault.until_s]:
            del self._faults[old]
        known = key in self._faults
        fault = self._faults.setdefault(key, _Fault())
        fault.backoff.fail(now_s)
        fault.until_s = now_s + _FORGOTTEN_AFTER_S
        fault.text = f'{_text(key, name)} failed: {error!r}'
        if not known:
            LOG.error('This costs no other server: %s', fault.text,
                      exc_info=error)


def _text(key: tuple[str, str], name: str) -> str:
    uuid, purpose = key
    return f'{purpose} {uuid}{name and f" ({name})"}'
