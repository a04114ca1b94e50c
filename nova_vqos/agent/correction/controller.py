# SPDX-License-Identifier: Apache-2.0
"""Corrections: the units of a server follow its own measured speed."""

from collections.abc import Mapping
import functools
import logging
import math
import secrets
import time
import typing as ty

from nova_vqos import files
from nova_vqos import speeds as records
from nova_vqos import units
from nova_vqos import utc
from nova_vqos.agent import controller
from nova_vqos.agent import outbox
from nova_vqos.agent import retry
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.caps import controller as caps
from nova_vqos.agent.correction import measurement
from nova_vqos.agent.correction import store as stores
from nova_vqos.agent.messages import enforcement
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import cpu
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

# Between two readings of a server.
_INTERVAL_S = 5.0
# After the start of a server here: caches are cold, and a guest that came may
# still fetch its memory.
_SETTLE_S = 10.0
# A correction changes a cap, and each write of a quota gives CPU time away. It
# changes sooner where it is known much better, by twice the windows.
_CHANGE_INTERVAL_S = 60.0
_LEAST_CHANGE = 0.01
# However a server was measured: other hosts may say anything.
_LARGEST_FACTOR = 3.0
# When other hosts are asked what they measured of a server that is new here.
_ASK_AFTER_S = (0.0, 2.0, 5.0, 10.0, 30.0)
_MOST_WAITING_ANSWERS = 1000


class _Read(ty.NamedTuple):
    """What a worker read of all servers that are corrected.

    :ivar counted: by UUID; None: the server is about to leave
    :ivar problems: why the others are not counted
    """

    counted: Mapping[str, usage.GuestWork | None]
    problems: Mapping[str, str]


class CorrectionState:
    """What the correction controller knows of one server.

    :ivar measured: on this host, in this run
    :ivar prediction: of its speed here; None: there is none
    :ivar since_s: since when its correction is in force, in seconds since
        1970; None: it has none
    :ivar changed_at_s: when it was last changed, on the monotonic clock
    :ivar changed_by: windows that it was known by then
    :ivar uncounted: why its instructions cannot be counted; '': they are
    :ivar problem: why it is not corrected, or not as far as it should be; '':
        it is
    :ivar nonce: by which an answer of another host is known; '': there was
        one
    :ivar ask_at_s: when other hosts are asked, on the monotonic clock; None:
        not known yet
    :ivar settled_at_s: when it is measured from, on the monotonic clock; None:
        not known yet
    """

    def __init__(self, _server: servers.Server) -> None:
        self.measured = measurement.Measurement()
        self.prediction: records.Prediction | None = None
        self.since_s: float | None = None
        self.changed_at_s = float('-inf')
        self.changed_by = 0
        self.uncounted = self.problem = ''
        self.nonce = ''
        self.ask_at_s: list[float] | None = None
        self.settled_at_s: float | None = None
        self._predicted_by: tuple[object, ...] = ()

    def may_change(self, now_s: float) -> bool:
        return (now_s >= self.changed_at_s + _CHANGE_INTERVAL_S
                or self.measured.windows >= 2 * self.changed_by > 0)

    def predict(self, speeds: records.Speeds | None,
                kinds: Mapping[str, float], reference: cpu.Reference) -> None:
        """Predict the speed of the server, if what it follows from changed.

        :param speeds: of the server; None: it was not measured yet
        :param kinds: coefficients of this host, by kind of work
        """
        predicted_by = speeds, kinds, reference
        # At each tick, for each server: mostly all are the same objects.
        if predicted_by == self._predicted_by:
            return
        self._predicted_by = predicted_by
        self.prediction = (
            None if speeds is None
            or speeds.reference != records.reference_of(reference)
            or speeds.lacks_kinds(reference)
            else speeds.predict(kinds, records.weights_of(reference)))

    def message(self, server: servers.Server,
                hosts: int) -> enforcement.Correction | None:
        """What of it others are to know; None: the server has none.

        :param hosts: how many unlike hosts it was measured on
        """
        if not _is_corrected(server):
            return None
        found, speed = self.prediction, self.measured.speed
        return enforcement.Correction(
            factor=server.correction,
            predicted=None if found is None else found.factor,
            low=None if found is None else found.low,
            high=None if found is None else found.high,
            since=None if self.since_s is None else utc.text(self.since_s),
            hosts=hosts, windows=self.measured.windows,
            phases=self.measured.phases,
            instructions_per_cpu_s=(None if speed is None
                                    else speed.per_cpu_s),
            problem='; '.join(filter(None, (self.uncounted, self.problem))))


class CorrectionController(controller.Controller):
    """Learns how fast this host is for each server with ``vqos:work=auto``."""

    def __init__(self, hypervisor: base.Hypervisor, known: servers.Servers,
                 job: worker.PeriodicJob, server_caps: caps.CapsController,
                 store: stores.Store, sender: outbox.Outbox,
                 reserve_cu: int, clock: ty.Callable[[], float]) -> None:
        """
        :param job: does the reading
        :param store: has what was measured of servers; this alone writes it
        :param sender: sends what was measured to other hosts
        :param reserve_cu: CU for all servers that need more than they claimed
        :param clock: monotonic, in seconds
        """
        self._hypervisor = hypervisor
        self._servers = known
        self._job = job
        self._caps = server_caps
        self._store = store
        self._outbox = sender
        self._log_tokens = retry.log_tokens()
        self._reserve_cu = reserve_cu
        self._clock = clock
        self._states = known.states(CorrectionState)
        # As of the last look at each, in the order in which they came; and
        # what they may use beyond their claims together.
        self._corrected: dict[servers.Server, None] = {}
        self._beyond_cu = 0.0
        self._terms: controller.HostTerms | None = None
        self._read_at_s = float('-inf')
        self._counts = False
        self._changes = 0

    def state(self, server: servers.Server) -> CorrectionState:
        """What is known of a server; for reading."""
        return self._states[server]

    def message(self, server: servers.Server) -> enforcement.Correction | None:
        """What of a server others are to know; None: it has no correction."""
        speeds = self._store.get(server.uuid)
        return self._states[server].message(
            server, 0 if speeds is None else speeds.hosts)

    def tick(self, now_s: float, terms: controller.HostTerms) -> None:
        """Read all servers that are corrected, and ask for those that came."""
        self._terms = terms
        self.due_at_s = now_s + _INTERVAL_S
        self._corrected = dict.fromkeys(filter(
            _is_corrected, filter(self._servers.runs, self._corrected)))
        self._beyond_cu = math.fsum(self._servers.isolation.each(
            'counting the units of server', self._corrected,
            _beyond_cu).values())
        self._servers.isolation.each(
            'correcting server', self._corrected,
            lambda server: self._follow(server, now_s, terms))
        corrected = [server for server in self._corrected
                     if not server.is_arriving]
        if now_s < self._read_at_s or self._job.busy or not (
                corrected or self._counts or self._store.is_changed):
            return
        self._read_at_s = now_s + _INTERVAL_S
        # Without any the last counters are closed.
        self._counts = bool(corrected)
        self._job.begin(
            functools.partial(
                self._read, {server.uuid: server.run_id
                             for server in corrected}, self._store.text()),
            functools.partial(self._record, tuple(corrected)))

    def _follow(self, server: servers.Server, now_s: float,
                terms: controller.HostTerms) -> None:
        self._correct(server, now_s, terms)
        self._ask(server, now_s)
        if self._states[server].ask_at_s:
            self.due_at_s = now_s

    def reconcile(self, server: servers.Server, now_s: float,
                  terms: controller.HostTerms) -> None:
        """Correct a server by what is known, before its cap is worked out."""
        self._terms = terms
        if _is_corrected(server):
            if server not in self._corrected:
                self._corrected[server] = None
                self._beyond_cu += _beyond_cu(server)
                self.expire()
            self._correct(server, now_s, terms)
        elif server.correction != 1.0:
            self._change(server, 1.0, now_s)

    def status(self) -> controller.Status:
        """What is wrong with the store, or cannot be counted."""
        return controller.Status(
            alarms=tuple(filter(None, (self._store.problem,))),
            counters={'corrections': self._changes}, errors=self._job.errors,
            busy=self._job.busy)

    def close(self) -> None:
        """Store what was measured; corrections stay in force."""
        self._store.write(self._store.text())

    # What other hosts ask and answer.

    def answer(self, uuid: str, host: str, nonce: str) -> None:
        """Send what was measured of a server to the host that it came to.

        Not while this host asks for it itself: what it has is not all.
        """
        found = self._store.get(uuid)
        server = self._servers.get(uuid)
        asks = server is not None and self._states[server].ask_at_s != []
        if found is not None and not asks:
            self._outbox.hand_over_speeds(host, uuid, nonce, found)

    def receive(self, uuid: str, nonce: str,
                received: records.Speeds) -> None:
        """Receive what other hosts measured of a server that came here.

        What this agent did not ask for is dropped.
        """
        server = self._servers.get(uuid)
        if server is None:
            return
        state = self._states[server]
        if not state.nonce or not secrets.compare_digest(state.nonce, nonce):
            self._warn_of_speeds(uuid, 'were not asked for')
            return
        profile = None if self._terms is None else self._terms.profile
        if profile is not None and received.lacks_kinds(profile.reference):
            self._warn_of_speeds(uuid, 'lack kinds of work')
            return
        state.nonce, state.ask_at_s = '', []
        if self._terms is None:
            return
        self._store.put(uuid, records.merged(received,
                                             self._store.get(uuid)))
        LOG.info('Server %s (%s) was measured on %d unlike hosts before',
                 uuid, server.name, received.hosts)
        self._correct(server, self._clock(), self._terms, at_once=True)

    def _warn_of_speeds(self, uuid: str, reason: str) -> None:
        # Any member of the bus can have the line written.
        if self._log_tokens.acquire(self._clock()):
            LOG.warning('Speeds of server %s on other hosts %s, dropping them',
                        uuid, reason)

    def _ask(self, server: servers.Server, now_s: float) -> None:
        state = self._states[server]
        if state.ask_at_s is None:
            # Of one that this host knows from before the agent started, no
            # other has anything newer.
            knows = (server.origin == 'found'
                     and self._store.get(server.uuid) is not None)
            state.nonce = '' if knows else secrets.token_hex(16)
            state.ask_at_s = [] if knows else [
                now_s + after_s for after_s in _ASK_AFTER_S]
        if state.ask_at_s and now_s >= state.ask_at_s[0]:
            self._outbox.claim_speeds(server.uuid, state.nonce)
            state.ask_at_s = [at_s for at_s in state.ask_at_s if at_s > now_s]

    # Readings.

    def _read(self, run_ids: Mapping[str, int], text: str | None) -> _Read:
        """On a worker."""
        self._store.write(text)
        found: dict[str, usage.GuestWork | None] = {
            **self._hypervisor.guest_work(run_ids)}
        for uuid in found:
            try:
                if self._hypervisor.is_busy(uuid):
                    found[uuid] = None
            except base.HypervisorError:
                found[uuid] = None
        return _Read(found, self._hypervisor.guest_work_problems())

    def _record(self, corrected: tuple[servers.Server, ...],
                read: _Read) -> None:
        now_s, terms = self._clock(), self._terms
        if terms is None:
            return
        self._servers.isolation.each(
            'measuring server',
            filter(self._servers.runs, corrected),
            lambda server: self._record_one(server, read, now_s, terms))

    def _record_one(self, server: servers.Server, read: _Read, now_s: float,
                    terms: controller.HostTerms) -> None:
        state = self._states[server]
        state.uncounted = read.problems.get(server.uuid, '')
        if state.settled_at_s is None:
            state.settled_at_s = now_s + _SETTLE_S
        if server.uuid not in read.counted:
            return
        reading = read.counted[server.uuid]
        if reading is None or now_s < state.settled_at_s:
            state.measured.restart_window()
            return
        if state.measured.add(reading, self._cap_share(server)):
            LOG.info('Server %s (%s) does other work now: its speed is '
                     'measured anew', server.uuid, server.name)
            self._store.put(server.uuid, None)
        self._observe(server, terms)
        self._correct(server, now_s, terms)

    def _cap_share(self, server: servers.Server) -> float | None:
        """What each of its vCPUs may use, in pCPUs; None: it has no cap."""
        wanted = self._caps.state(server).desired
        cap = None if wanted is None else wanted.tune.cap
        return None if cap is None else float(cap.share)

    def _observe(self, server: servers.Server,
                 terms: controller.HostTerms) -> None:
        """Store the speed of a server here."""
        speed, profile = self._states[server].measured.speed, terms.profile
        kinds = _kinds(server, profile)
        if speed is None or profile is None or kinds is None:
            return
        before = self._store.get(server.uuid)
        last = None if before is None else before.speed_on(kinds)
        if last is not None:
            if last.is_apart(speed):
                # It was here before, with other work: so was it elsewhere.
                before = None
            elif last.is_alike(speed):
                return
        self._store.put(server.uuid, records.measured(
            before, records.reference_of(profile.reference), kinds, speed,
            time.time()))

    # Corrections.

    def _correct(self, server: servers.Server, now_s: float,
                 terms: controller.HostTerms, *,
                 at_once: bool = False) -> None:
        """Correct a server as far as it may be."""
        state, policy, profile = (
            self._states[server], server.policy, terms.profile)
        kinds = _kinds(server, profile)
        if policy is None or policy.units is None or profile is None:
            return
        if kinds is None:
            state.problem = 'it runs on pCPUs of several core types'
            self._change(server, 1.0, now_s)
            return
        state.problem = ''
        state.predict(self._store.get(server.uuid), kinds, profile.reference)
        factor = 1.0 if state.prediction is None else self._bounded(
            server, min(max(state.prediction.factor, 1 / _LARGEST_FACTOR),
                        _LARGEST_FACTOR), profile)
        if (factor == server.correction
                or not (at_once or state.may_change(now_s))
                or abs(math.log(factor / server.correction))
                < _LEAST_CHANGE):
            return
        self._change(server, factor, now_s)

    def _bounded(self, server: servers.Server, factor: float,
                 profile: model.Profile) -> float:
        """A correction that the host can give, and that costs no others."""
        state, policy = self._states[server], server.policy
        cu = ty.cast(int, None if policy is None else policy.units)
        vcpus = 1 if policy is None else policy.vcpus
        left_cu = max(0.0, self._reserve_cu - (
            self._beyond_cu - _beyond_cu(server)))
        # It may use so much more than it claimed.
        least = cu / (cu + left_cu)
        if factor < least:
            state.problem = (
                f'its work needs {_percent(1 / factor - 1)} more CPU time '
                f'than its units, and {left_cu:.0f} CU of [vqos] '
                'correction_reserve_cu are left')
            factor = least
        # A vCPU has no more than a pCPU.
        fastest = float(units.share(cu, vcpus,
                                    server.host_coefficient(profile)))
        if factor < fastest <= 1.0:
            state.problem = ('its work needs a faster pCPU than this host '
                             'has for the speed of each vCPU')
            factor = fastest
        return factor

    def _change(self, server: servers.Server, factor: float,
                now_s: float) -> None:
        if factor == server.correction:
            return
        state = self._states[server]
        LOG.info('Server %s (%s): its own work is %.3f times as fast here as '
                 'the mean of all kinds, before %.3f; its cap follows',
                 server.uuid, server.name, factor, server.correction)
        before_cu = _beyond_cu(server)
        server.record_correction(factor)
        if server in self._corrected:
            self._beyond_cu += _beyond_cu(server) - before_cu
        state.changed_at_s = now_s
        state.changed_by = state.measured.windows
        state.since_s = time.time()
        self._changes += 1
        self._servers.mark(server)


def _is_corrected(server: servers.Server) -> bool:
    return server.policy is not None and server.policy.is_corrected


def _kinds(server: servers.Server,
           profile: model.Profile | None) -> Mapping[str, float] | None:
    """Coefficients of the pCPUs of a server, by kind of work.

    None where they are not known, or of several core types.
    """
    if profile is None or server.domain is None:
        return None
    pcpus = server.domain.pcpus or profile.pcpus
    found: list[cpu.CpuClass] = [
        one for one in profile.cpu_classes if not one.pcpus.isdisjoint(pcpus)]
    try:
        return found[0].busy.kinds if len(found) == 1 else None
    except files.FileError:
        return None


def _beyond_cu(server: servers.Server) -> float:
    """CU of the host that a server may use beyond its claim."""
    if server.policy is None or server.policy.units is None:
        return 0.0
    return max(0.0, server.policy.units / server.correction
               - server.policy.units)


def _percent(part: float) -> str:
    return f'{100 * part:.0f} %'
