# SPDX-License-Identifier: Apache-2.0
"""The requests of domains' devices, from bulk calls to libvirt.

For interfaces libvirt reads the kernel's counters, at once. For disks it asks
each QEMU, which costs most of a reading, and may block for ever.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
import logging
import queue
import threading
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import session as libvirt_session

LOG = logging.getLogger(__name__)

# How long a call may take, and how many may be pending at once. A QEMU that
# does not answer its monitor (stopped, or stuck in the host's storage) blocks
# the call that asks it, for ever: libvirt has no time limit for that. The next
# call skips that QEMU, since the first one still holds its job. Each blocked
# call occupies one of the five that libvirtd allows a connection.
LIMIT_S = 5.0
_MOST_PENDING = 3

# A domain that does less is asked about its disks rarely: each time costs QEMU
# and libvirtd about a millisecond.
_IDLE = base.Idle(share=0.02, most_s=30.0)

# A domain with a job, such as a migration, would hold up all others.
NOWAIT = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT

# Libvirt's own bounds are not as high.
_MOST_DEVICES = 4096

# Domains whose statistics were not understood, as was said.
_odd: set[str] = set()

Record = tuple[ty.Any, Mapping[str, ty.Any]]
_Parsed = ty.TypeVar('_Parsed')


class Schedule:
    """Which domains are to be read, and asked about their disks.

    Requests cost CPU time: a domain that used hardly any has hardly made any,
    and is read rarely. Nothing is lost, since counters hold all that was done
    meanwhile.
    """

    def __init__(self) -> None:
        # By UUID: run, when, and the CPU time at that time.
        self._answered: dict[str, tuple[str, float, int]] = {}

    def is_due(self, uuid: str, run: str, now_s: float, cpu_ns: int,
               idle: base.Idle = _IDLE) -> bool:
        """Whether a domain is to be asked now.

        :param run: of its emulator
        :param cpu_ns: CPU time of all its threads
        :param idle: a domain that does less can wait
        """
        last_run, last_s, last_ns = self._answered.get(uuid, ('', 0.0, 0))
        passed_s = now_s - last_s
        return (last_run != run or passed_s >= idle.most_s
                or cpu_ns - last_ns > idle.share * passed_s * 1e9)

    def record(self, uuid: str, run: str, now_s: float, cpu_ns: int) -> None:
        """Record that a domain has answered."""
        self._answered[uuid] = run, now_s, cpu_ns

    def retain(self, uuids: Container[str]) -> None:
        """Forget all other domains."""
        for uuid in [uuid for uuid in self._answered if uuid not in uuids]:
            del self._answered[uuid]


class BulkReader:
    """Makes bulk calls, each with a time limit."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._pending = 0
        self._lock = threading.Lock()

    def read(self, fetch: Callable[[], list[Record]]) -> list[Record]:
        """Make a call.

        :param fetch: calls libvirt, in a thread that is abandoned where it
            gets no answer
        :returns: the answer
        :raises Unavailable: when libvirt refuses, or does not answer in time
        :raises Exception: as fetch does
        """
        with self._lock:
            if self._pending >= _MOST_PENDING:
                raise base.Unavailable(
                    f'libvirt has not yet answered {self._pending} calls for '
                    'statistics')
            self._pending += 1
        answers: queue.SimpleQueue[list[Record] | Exception] = (
            queue.SimpleQueue())
        threading.Thread(target=self._fetch, args=(fetch, answers),
                         name='libvirt-statistics', daemon=True).start()
        try:
            answer = answers.get(timeout=self._limit_s)
        except queue.Empty:
            raise base.Unavailable(
                'libvirt gave no statistics within '
                f'{self._limit_s:g} s') from None
        if (isinstance(answer, base.HypervisorError)
                and not isinstance(answer, base.Unavailable)):
            raise base.Unavailable(
                f'libvirt gives no statistics: {answer}') from answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _fetch(self, fetch: Callable[[], list[Record]],
               answers: 'queue.SimpleQueue[list[Record] | Exception]'
               ) -> None:
        try:
            answers.put(fetch())
        except Exception as error:
            answers.put(error)
        finally:
            with self._lock:
                self._pending -= 1


class QemuReader:
    """Asks QEMUs, on a connection that nothing else uses.

    NOTE: in libvirt's client before version 10.0 (src/rpc/virnetclient.c) a
    call can get lost beside another one on the same connection that waits for
    its answer: the thread that waits is to send both, and misses its wake-up.
    It sends at the next keepalive, after 5 s. Beside a call that a QEMU does
    not answer that was one of 15 in a row.
    """

    def __init__(self, session: libvirt_session.Session) -> None:
        self._session = session
        self._bulk = BulkReader()
        # A connection, and libvirt's domains on it by UUID.
        self._seen: tuple[ty.Any, dict[str, ty.Any]] = None, {}

    def read(self, uuids: Collection[str], groups: int) -> list[Record]:
        """Read statistics of domains, without those that are gone.

        :param groups: libvirt's VIR_DOMAIN_STATS_*
        :raises Unavailable: when libvirt refuses, or does not answer in time
        """
        if not uuids:
            return []
        return self._bulk.read(lambda: self._fetch(uuids, groups))

    def retain(self, uuids: Container[str]) -> None:
        """Forget all other domains."""
        domains = self._seen[1]
        for uuid in [uuid for uuid in list(domains) if uuid not in uuids]:
            domains.pop(uuid, None)

    def _fetch(self, uuids: Collection[str], groups: int) -> list[Record]:
        connection = self._session.connected()
        # NOTE: a thread that was abandoned may come here after others, of an
        # earlier connection: libvirt refuses domains of two.
        seen = self._seen
        if seen[0] is not connection:
            seen = self._seen = connection, {}
        domains = seen[1]
        found = []
        for uuid in uuids:
            domain = domains.get(uuid)
            if domain is None:
                try:
                    domain = domains[uuid] = self._session.call(
                        connection.lookupByUUIDString, uuid)
                except base.Unavailable:
                    raise
                except base.HypervisorError as error:
                    LOG.debug('Domain %s cannot be asked: %s', uuid, error)
                    continue
            found.append(domain)
        records: list[Record] = self._session.call(
            connection.domainListGetStats, found, groups,
            NOWAIT) if found else []
        return records


def each(records: Iterable[Record],
         parse: Callable[[ty.Any, Mapping[str, ty.Any]], _Parsed]
         ) -> dict[str, _Parsed]:
    """Parse the statistics of several domains.

    :param parse: of libvirt's domain and its statistics
    :returns: by UUID; without domains whose statistics are not understood
    """
    parsed = {}
    for domain, found in records:
        try:
            parsed[domain.UUIDString()] = parse(domain, found)
        except Exception:
            # Whatever it is, it is the fault of this domain alone. The next
            # reading raises it, too.
            if domain.UUIDString() not in _odd:
                _odd.add(domain.UUIDString())
                LOG.exception("libvirt's statistics of domain %s are not "
                              'understood', domain.UUIDString())
    return parsed


def interfaces(found: Mapping[str, ty.Any]
               ) -> dict[str, usage.InterfaceCounters]:
    """Parse the counters of interfaces, by their names on the host.

    NOTE: in the guest's direction: virNetDevTapInterfaceStats() in libvirt's
    src/util/virnetdevtap.c turns the counters of a tap around.

    :param found: libvirt's statistics of the domain
    """
    counters = {}
    for index in range(_count(found, 'net.count')):
        prefix = f'net.{index}.'
        # An interface that is being unplugged has a name only.
        if f'{prefix}rx.pkts' in found:
            counters[found[f'{prefix}name']] = usage.InterfaceCounters(
                rx_packets=found[f'{prefix}rx.pkts'],
                rx_bytes=found.get(f'{prefix}rx.bytes', 0),
                rx_dropped=found.get(f'{prefix}rx.drop', 0),
                tx_packets=found.get(f'{prefix}tx.pkts', 0),
                tx_bytes=found.get(f'{prefix}tx.bytes', 0))
    return counters


def disks(found: Mapping[str, ty.Any]) -> dict[str, usage.DiskCounters] | None:
    """Parse the counters of disks, by their names in the guest.

    :param found: libvirt's statistics of the domain
    :returns: None: not known this time
    """
    count = _count(found, 'block.count')
    counters = {}
    for index in range(count):
        prefix = f'block.{index}.'
        if f'{prefix}rd.reqs' in found:
            counters[found[f'{prefix}name']] = usage.DiskCounters(
                read_requests=found[f'{prefix}rd.reqs'],
                read_bytes=found.get(f'{prefix}rd.bytes', 0),
                write_requests=found.get(f'{prefix}wr.reqs', 0),
                write_bytes=found.get(f'{prefix}wr.bytes', 0))
    # Without the domain's job libvirt answers with names only.
    return None if count and not counters else counters


def _count(found: Mapping[str, ty.Any], name: str) -> int:
    count: int = found.get(name, 0)
    return min(count, _MOST_DEVICES)
