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

"""The loop that keeps the caps of a host's servers.

One thread owns all state. Whatever may block (a description, a write, a
connection) is done by a few workers, at most one job for a server at a time;
they, libvirt's events and RPC only leave messages for the loop.
"""

from collections.abc import Callable
from concurrent import futures
import functools
import logging
import queue
import threading
import time
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos.agent import biller as billers
from nova_vqos.agent import decision
from nova_vqos.agent import plan
from nova_vqos.agent import profile_watch
from nova_vqos.agent import rounds
from nova_vqos.agent import server as servers
from nova_vqos.agent import state
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

WORKERS = 8

_FIRST_RECONNECT_S = 0.5
_LONGEST_RECONNECT_S = 10.0
# How long RPC waits for the loop, which a hanging daemon can hold up.
_ASK_TIMEOUT_S = 20.0
# How long the end of the agent is put off for jobs that are under way. With
# what it takes to give servers their due it has to be less than the service
# waits for the loop.
_SETTLE_TIMEOUT_S = 2.0
# Between two looks for a class of pCPUs for a server that none has room for.
_CHOOSE_INTERVAL_S = 10.0

_Answer = ty.TypeVar('_Answer')


class Reconciler:
    """Compares what is with what was promised, and mends it."""

    def __init__(self, hypervisor: base.Hypervisor,
                 profiles_in_use: profile_watch.ProfileWatch,
                 heartbeat: state.Heartbeat,
                 manager: state.ServiceManager, *,
                 period_us: int, reserved_cu: int = 0,
                 allocation_ratio: float = 1.0,
                 biller: billers.Biller | None = None,
                 tick_interval_s: float = 1.0,
                 heartbeat_interval_s: float = 10.0,
                 executor: futures.Executor | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is read or connected yet.

        :param reserved_cu: see :class:`decision.HostTerms`, as the next one
        :param biller: bills servers for their I/O; None: nobody does
        :param executor: runs what may block; tests bring their own
        :param clock: monotonic, in seconds
        """
        self._hypervisor = hypervisor
        self._profiles = profiles_in_use
        self._heartbeat = heartbeat
        self._manager = manager
        self._period_us = period_us
        self._reserved_cu = reserved_cu
        self._allocation_ratio = allocation_ratio
        self._tick_interval_s = tick_interval_s
        self._heartbeat_interval_s = heartbeat_interval_s
        self._executor = executor or futures.ThreadPoolExecutor(
            WORKERS, thread_name_prefix='worker')
        self._clock = clock
        self._messages: queue.SimpleQueue[Callable[[], None]] = (
            queue.SimpleQueue())
        self._wake = threading.Event()
        self._stopping = False
        self._servers: dict[str, servers.Server] = {}
        self._rounds = rounds.Rounds(
            biller, self._servers, self._executor, self._post,
            self._take_bill_failure)
        self._bill_failure = ''
        self._offered = self._rounds.offers
        self._connected = self._connecting = False
        self._reconnects = 0
        self._connect_at_s = float('-inf')
        self._tick_at_s = float('-inf')
        self._heartbeat_at_s = float('-inf')
        self._heartbeat_fails = False
        self._counts = dict.fromkeys(
            ('ticks', 'writes', 'pins', 'restored', 'policy_errors',
             'errors'), 0)
        self._tick_ms = 0.0

    # What other threads call.

    def run(self) -> None:
        """Work until stopped."""
        while not self._stopping:
            # Cleared first: what arrives during the step is not lost.
            self._wake.clear()
            try:
                self.step()
            except Exception:
                # The caps of all servers depend on this loop: one that it
                # cannot cope with must not end it.
                self._counts['errors'] += 1
                LOG.exception('A step of the loop failed')
            self._wake.wait(max(0.0, min(
                self._tick_at_s, self._heartbeat_at_s) - self._clock()))
        try:
            if self._connected:
                self._settle()
                self._rounds.give_back(self._terms(), self._hypervisor)
        except Exception:
            # The rest has to be closed all the same.
            LOG.exception('Not all servers got their units back')
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._rounds.close()
        self._hypervisor.close()

    def stop(self) -> None:
        """Make :meth:`run` return soon.

        Caps stay as they are; a server that paid for its I/O gets its whole
        entitlement back.
        """
        self._stopping = True
        self._wake.set()

    def wake(self, uuid: str) -> None:
        """Look at a server now, if it runs here."""
        self._post(functools.partial(self._take_wake, uuid))

    def refresh(self) -> None:
        """Read everything again."""
        self._post(self._take_refresh)

    def lift(self, uuid: str, for_s: float) -> None:
        """Take the limit on a server's I/O away for a while.

        It comes back by itself, or with the end of a migration.
        """
        self._post(functools.partial(self._take_lift, uuid, for_s))

    def is_lifted(self, uuid: str) -> bool:
        """Whether nothing limits a server's I/O, or it is not known here.

        :raises TimeoutError: when the loop is held up
        """
        def look() -> bool:
            server = self._servers.get(uuid)
            return server is None or server.want is None or (
                server.want.domain is None and server.right)
        return self._ask(look)

    def forget(self, uuid: str) -> bool:
        """Drop what is remembered of a server.

        One that still runs is found again at the next tick.

        :returns: whether there was anything to forget
        :raises TimeoutError: when the loop is held up
        """
        return self._ask(lambda: self._servers.pop(uuid, None) is not None)

    def server_report(self, uuid: str) -> dict[str, ty.Any] | None:
        """What is known of a server; None: nothing.

        :raises TimeoutError: when the loop is held up
        """
        def read() -> dict[str, ty.Any] | None:
            server = self._servers.get(uuid)
            return None if server is None else server.report()
        return self._ask(read)

    def host_report(self) -> dict[str, ty.Any]:
        """What is known of the host and the loop.

        :raises TimeoutError: when the loop is held up
        """
        return self._ask(self._host_report)

    def on_event(self, event: base.Event) -> None:
        """Take an event of the hypervisor."""
        self._post(functools.partial(self._take_event, event))

    # The loop.

    def step(self) -> None:
        """Take all messages; look at all servers if it is time to."""
        self._take_messages()
        now_s = self._clock()
        if now_s >= self._tick_at_s:
            # Ticks that were missed are not made up for.
            self._tick_at_s = max(self._tick_at_s + self._tick_interval_s,
                                  now_s + self._tick_interval_s / 2)
            self._tick(now_s)
            self._tick_ms = (self._clock() - now_s) * 1000
        else:
            for server in self._servers.values():
                if server.reconsider:
                    self._consider(server, now_s)
        self._manager.alive(now_s)
        if (now_s >= self._heartbeat_at_s
                or self._rounds.offers != self._offered):
            self._heartbeat_at_s = now_s + self._heartbeat_interval_s
            self._beat()

    def _take_messages(self) -> None:
        while True:
            try:
                message = self._messages.get_nowait()
            except queue.Empty:
                return
            message()

    def _settle(self) -> None:
        """Let jobs end that are under way, for a while; begin no others.

        A write that came after the last one of all would undo it.
        """
        until_s = time.monotonic() + _SETTLE_TIMEOUT_S
        while True:
            self._wake.clear()
            try:
                self._take_messages()
            except Exception:
                # The rest is worth it all the same.
                LOG.exception('A message was not understood')
                continue
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not (self._rounds.working or any(
                    server.working for server in self._servers.values())):
                return
            self._wake.wait(left_s)

    def _tick(self, now_s: float) -> None:
        self._counts['ticks'] += 1
        if self._profiles.poll(now_s):
            self._heartbeat_at_s = now_s
            self._reconsider_all()
        if not self._connected:
            self._reconnect(now_s)
            return
        try:
            running = self._hypervisor.running()
        except base.HypervisorError as error:
            self._lose_connection(str(error))
            return
        for uuid in self._servers.keys() - running.keys():
            del self._servers[uuid]
        for uuid, run_id in running.items():
            server = self._servers.get(uuid)
            if server is None or server.run_id != run_id:
                server = self._servers[uuid] = servers.Server(uuid, run_id)
            self._consider(server, now_s)
        self._rounds.begin(now_s, self._terms())

    def _consider(self, server: servers.Server, now_s: float) -> None:
        try:
            self._look_at(server, now_s)
        except Exception as error:
            # One server that is not understood must not cost the others.
            self._counts['errors'] += 1
            if server.complain(f'unexpected: {error!r}'):
                LOG.exception('Looking at server %s failed', server.uuid)

    def _look_at(self, server: servers.Server, now_s: float) -> None:
        """Look at one server, and have done what is to be done."""
        if (server.lifted_until_s is not None
                and now_s >= server.lifted_until_s):
            server.lifted_until_s = None
            server.reconsider = True
        if server.working or not self._connected:
            return
        if server.is_arriving and now_s >= server.describe_at_s:
            server.undescribed = True
        if server.undescribed:
            if now_s >= server.retry_at_s:
                self._submit(server, self._describe)
            return
        if server.policy is None and server.want is None:
            server.reconsider = False
            return
        try:
            in_force = self._hypervisor.read(server.uuid)
        except (base.DomainGone, base.Unavailable):
            # The bulk call of the next tick tells.
            return
        except base.HypervisorError as error:
            server.complain(f'its cap cannot be read: {error}')
            return
        if self._is_to_be_pinned(server, in_force, now_s):
            return
        if (server.right and in_force is server.in_force
                and not server.reconsider):
            server.last_right_s = now_s
            return
        server.reconsider = False
        self._judge(server, in_force, now_s)

    def _is_to_be_pinned(self, server: servers.Server,
                         in_force: base.InForce, now_s: float) -> bool:
        """Have a server pinned to one class if it may run on several.

        Its cap comes after, by that class; one that cannot be pinned is
        capped by the slowest.
        """
        if now_s < max(server.retry_at_s, server.choose_at_s):
            return False
        try:
            pcpus = plan.to_pin(server, self._servers.values(),
                                self._terms(), in_force)
        except decision.Unenforceable as error:
            server.note_floating(str(error))
            # Sums over all servers are nothing for each tick.
            server.choose_at_s = now_s + _CHOOSE_INTERVAL_S
            return False
        server.note_floating('')
        if pcpus is None or not server.pin_allowance.take(now_s):
            return False
        server.pinned_to = pcpus
        self._submit(server, functools.partial(self._pin, pcpus))
        return True

    def _judge(self, server: servers.Server, in_force: base.InForce,
               now_s: float) -> None:
        if server.policy is None:
            self._release(server, in_force, now_s)
            return
        try:
            changes = plan.pending(server, self._terms(), in_force)
        except decision.Unenforceable as error:
            server.in_force = in_force
            server.right = False
            server.complain(f'its cap is left as it is: {error}')
            self._release(server, in_force, now_s)
            return
        if not changes:
            if server.want is not None:
                server.note_right(in_force, now_s)
            return
        server.note_wrong(in_force, changes, now_s)
        if now_s < server.retry_at_s:
            return
        if server.tampering.open and not server.allowance.take(now_s):
            server.complain('somebody else changes its cap again and again: '
                            'it is restored every ten seconds only')
            return
        self._submit(server, functools.partial(self._write, changes))

    def _release(self, server: servers.Server, in_force: base.InForce,
                 now_s: float) -> None:
        """Have the limit on its I/O ended where nobody can work it out."""
        changes = plan.to_release(server, self._terms(), in_force)
        if (changes and now_s >= server.retry_at_s
                and server.allowance.take(now_s)):
            self._submit(server, functools.partial(self._write, changes))

    # Jobs: they run on a worker, and must not touch any state.

    def _describe(self, uuid: str) -> Callable[[servers.Server], None]:
        domain = self._hypervisor.describe(uuid)
        return functools.partial(self._take_description, domain)

    def _write(self, changes: tuple[base.Change, ...],
               uuid: str) -> Callable[[servers.Server], None]:
        self._hypervisor.write(uuid, changes)
        return functools.partial(self._take_written, changes)

    def _pin(self, pcpus: frozenset[int],
             uuid: str) -> Callable[[servers.Server], None]:
        self._hypervisor.pin(uuid, pcpus)
        return functools.partial(self._take_pinned, pcpus)

    def _submit(self, server: servers.Server, job: Callable[
            [str], Callable[[servers.Server], None]]) -> None:
        server.working = True
        # What happens from now on asks for another description.
        server.undescribed = False
        uuid, run_id = server.uuid, server.run_id

        def work() -> None:
            outcome: Callable[[servers.Server], None]
            try:
                outcome = job(uuid)
            except Exception as error:
                outcome = functools.partial(
                    self._take_failure, job == self._describe, error)
            self._post(functools.partial(self._take_outcome, uuid, run_id,
                                         outcome))
        self._executor.submit(work)

    # Messages: they run on the loop.

    def _take_outcome(self, uuid: str, run_id: int, outcome: Callable[
            [servers.Server], None]) -> None:
        server = self._servers.get(uuid)
        if server is None or server.run_id != run_id:
            return
        server.working = False
        server.reconsider = True
        outcome(server)

    def _take_description(self, domain: base.Domain,
                          server: servers.Server) -> None:
        before = server.policy_error
        if (not server.take_description(domain, self._clock())
                and server.policy_error != before):
            self._counts['policy_errors'] += 1

    def _take_written(self, changes: tuple[base.Change, ...],
                      server: servers.Server) -> None:
        server.writes += 1
        self._counts['writes'] += 1
        if server.tampering.open:
            self._counts['restored'] += 1
        LOG.debug('Wrote to server %s: %s', server.uuid, changes)
        if server.policy is None:
            server.complain('')
            return
        now_s = self._clock()
        # Read back before anything else is decided.
        try:
            in_force = self._hypervisor.read(server.uuid)
            left = plan.pending(server, self._terms(), in_force)
        except decision.Unenforceable:
            # It is looked at next, as all that was written to.
            return
        except base.HypervisorError as error:
            self._take_failure(False, error, server)
            return
        if left:
            # Unless another vCPU was plugged in meanwhile.
            if server.has_vcpus_of(in_force):
                server.complain('its cap was written, and is not in force: '
                                f'{left}')
                server.back_off(now_s)
            server.note_wrong(in_force, left, now_s)
        else:
            server.note_right(in_force, now_s)

    def _take_pinned(self, pcpus: frozenset[int],
                     server: servers.Server) -> None:
        self._counts['pins'] += 1
        LOG.info('Server %s (%s, %s) was pinned to one class of pCPUs: %s',
                 server.uuid, server.name, server.origin,
                 profiles.format_pcpus(pcpus))
        # Read back before anything else is decided.
        server.undescribed = True

    def _take_failure(self, describing: bool, error: Exception,
                      server: servers.Server) -> None:
        server.undescribed = server.undescribed or describing
        server.pinned_to = None
        server.back_off(self._clock())
        if isinstance(error, base.DomainBusy):
            # Each one that boots is met while it is being started.
            LOG.log(logging.DEBUG if describing else logging.INFO,
                    'Server %s (%s) has to wait: %s', server.uuid,
                    server.name, error)
        elif isinstance(error, base.Unavailable):
            self._lose_connection(str(error))
        elif isinstance(error, base.DomainGone):
            LOG.debug('Server %s is gone: %s', server.uuid, error)
        elif isinstance(error, base.HypervisorError | decision.Unenforceable):
            self._counts['errors'] += 1
            server.complain(str(error))
        else:
            self._counts['errors'] += 1
            if server.complain(f'unexpected: {error!r}'):
                LOG.error('A job on server %s failed', server.uuid,
                          exc_info=error)

    def _take_event(self, event: base.Event) -> None:
        LOG.debug('Event %s', event)
        if event.kind is base.EventKind.CONNECTION_LOST:
            self._lose_connection(event.detail)
            return
        server = self._servers.get(event.uuid)
        if event.kind is base.EventKind.TOUCHED:
            if server is not None:
                server.reconsider = True
            return
        if event.run_id >= 0 and (server is None
                                  or server.run_id < event.run_id):
            server = self._servers[event.uuid] = servers.Server(
                event.uuid, event.run_id)
        if event.kind is base.EventKind.STOPPED:
            self._tick_at_s = self._clock()
        if server is None or server.run_id != event.run_id:
            return
        server.reconsider = True
        server.stop_backing_off()
        if event.kind is base.EventKind.TUNED:
            server.tampering.take_event(event, server.want)
            return
        server.undescribed = True
        if event.detail == base.JOB_COMPLETED:
            # A migration that failed, or anything else that it is not worth
            # to be told from.
            server.lifted_until_s = None
        if event.kind is base.EventKind.STARTED:
            server.origin = event.detail
        # Whichever comes first: libvirt may tell of RESUMED before STARTED. In
        # a migration STARTED is but the QEMU, whose guest is not here yet.
        if server.runs_since_s is None and (
                event.kind is base.EventKind.RESUMED
                or (event.kind is base.EventKind.STARTED
                    and event.detail != 'migrated')):
            server.runs_since_s = event.seen_at_s

    def _take_wake(self, uuid: str) -> None:
        server = self._servers.get(uuid)
        if server is None:
            # It may just have started: the bulk call tells.
            self._tick_at_s = self._clock()
            return
        server.undescribed = True
        server.reconsider = True
        server.stop_backing_off()

    def _take_refresh(self) -> None:
        for server in self._servers.values():
            server.undescribed = True
        self._reconsider_all()
        self._tick_at_s = self._clock()

    def _take_connection(self, error: Exception | None) -> None:
        self._connecting = False
        now_s = self._clock()
        if error is not None:
            delay_s = min(_LONGEST_RECONNECT_S,
                          _FIRST_RECONNECT_S * 2 ** min(self._reconnects, 10))
            self._reconnects += 1
            self._connect_at_s = now_s + delay_s
            LOG.warning('%s. Next try in %.1f s; caps stay as they are',
                        error, delay_s)
            return
        self._connected = True
        self._heartbeat_at_s = now_s
        self._reconnects = 0
        LOG.info('Connected to the hypervisor, cgroup version %d',
                 self._hypervisor.cgroup_version)
        self._take_refresh()

    def _lose_connection(self, reason: str) -> None:
        if self._connected:
            LOG.warning('Connection to the hypervisor lost: %s', reason)
            self._connected = False
            self._heartbeat_at_s = self._clock()

    def _reconnect(self, now_s: float) -> None:
        if self._connecting or now_s < self._connect_at_s:
            return
        self._connecting = True

        def connect() -> None:
            failure: Exception | None = None
            try:
                self._hypervisor.connect(self.on_event)
            except Exception as error:
                failure = error
            self._post(functools.partial(self._take_connection, failure))
        self._executor.submit(connect)

    def _terms(self) -> decision.HostTerms:
        return decision.HostTerms(
            profile=self._profiles.profile,
            cgroup_version=self._hypervisor.cgroup_version,
            period_us=self._period_us, reserved_cu=self._reserved_cu,
            allocation_ratio=self._allocation_ratio,
            charges=self._rounds.charges)

    def _reconsider_all(self) -> None:
        for server in self._servers.values():
            server.reconsider = True
            server.stop_backing_off()

    def _beat(self) -> None:
        profile = self._profiles.profile
        self._offered = self._rounds.offers
        try:
            self._heartbeat.write(
                profile_id=None if profile is None else profile.id,
                connected=self._connected, alarms=self._alarms(),
                dd_billing=self._offered)
            self._heartbeat_fails = False
        except OSError as error:
            if not self._heartbeat_fails:
                LOG.error('No sign of life can be left: the scheduler will '
                          'refuse this host: %s', error)
            self._heartbeat_fails = True

    def _host_report(self) -> dict[str, ty.Any]:
        profile = self._profiles.profile
        looked_after = [server for server in self._servers.values()
                        if server.policy is not None]
        return {
            'connected': self._connected,
            'cgroup_version': self._hypervisor.cgroup_version,
            'profile_id': None if profile is None else profile.id,
            'alarms': list(self._alarms()),
            'domains': len(self._servers),
            'servers': sorted(server.uuid for server in looked_after),
            'wrong': sorted(server.uuid for server in looked_after
                            if not server.right),
            'last_tick_ms': round(self._tick_ms, 3),
            'bills': self._rounds.done,
            'dd_billing': list(self._rounds.offers),
            'capacity': self._rounds.capacity,
            **self._counts,
            'errors': self._counts['errors'] + self._rounds.errors,
        }

    def _alarms(self) -> tuple[str, ...]:
        return (*self._profiles.alarms, *self._rounds.alarms)

    def _take_lift(self, uuid: str, for_s: float) -> None:
        server = self._servers.get(uuid)
        if server is not None:
            server.lifted_until_s = self._clock() + for_s
            server.reconsider = True
            server.stop_backing_off()

    def _take_bill_failure(self, error: Exception) -> None:
        # NOTE: caps do not depend on it. Whether the hypervisor is there at
        # all, the bulk call of the next tick tells.
        self._counts['errors'] += 1
        if str(error) != self._bill_failure:
            LOG.error('Servers cannot be billed now: %s', error,
                      exc_info=None if isinstance(
                          error, base.HypervisorError) else error)
        self._bill_failure = str(error)

    def _post(self, message: Callable[[], None]) -> None:
        self._messages.put(message)
        self._wake.set()

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Have a question answered by the loop.

        :raises TimeoutError: when the loop is held up
        """
        answer: futures.Future[_Answer] = futures.Future()

        def reply() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)
        self._post(reply)
        return answer.result(_ASK_TIMEOUT_S)
