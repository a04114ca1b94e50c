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


"""The loop that looks after a host's servers.

One thread owns all state. Whatever may block (a description, a write, a
connection) is done by a few workers, at most one job for a server at a time;
they, libvirt's events and RPC only leave messages for the loop.

What is done is the work of others, which the loop calls in turn: it is here
that their order can be read.
"""

from collections.abc import Callable
from concurrent import futures
import functools
import logging
import time
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos import pushed
from nova_vqos import tuning
from nova_vqos.agent import biller as billers
from nova_vqos.agent import caps
from nova_vqos.agent import connection
from nova_vqos.agent import counts
from nova_vqos.agent import descriptions
from nova_vqos.agent import events
from nova_vqos.agent import failures
from nova_vqos.agent import followers
from nova_vqos.agent import host
from nova_vqos.agent import jobs
from nova_vqos.agent import mailbox
from nova_vqos.agent import profile_watch
from nova_vqos.agent import pushed_store
from nova_vqos.agent import quanta
from nova_vqos.agent import quantum_keeper
from nova_vqos.agent import rounds
from nova_vqos.agent import sampling
from nova_vqos.agent import server as servers
from nova_vqos.agent import signs
from nova_vqos.agent import snapshot
from nova_vqos.agent import state
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

WORKERS = 8

# How long the end of the agent is put off for jobs that are under way. With
# what it takes to give servers their due it has to be less than the service
# waits for the loop.
_SETTLE_TIMEOUT_S = 2.0


class Reconciler:
    """Compares what is with what was promised, and mends it."""

    def __init__(self, hypervisor: base.Hypervisor,
                 profiles_in_use: profile_watch.ProfileWatch,
                 heartbeat: state.Heartbeat,
                 manager: state.ServiceManager, *,
                 periods: tuning.Periods, reserved_cu: int = 0,
                 allocation_ratio: float = 1.0,
                 biller: billers.Biller | None = None,
                 keeper: quantum_keeper.QuantumKeeper | None = None,
                 store: pushed_store.PushedStore | None = None,
                 tick_interval_s: float = 1.0,
                 sample_interval_s: float = 10.0,
                 heartbeat_interval_s: float = 10.0,
                 executor: futures.Executor | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is read or connected yet.

        :param reserved_cu: see :class:`decision.HostTerms`, as the next one
        :param biller: bills servers for their I/O; None: nobody does
        :param keeper: gives servers their slices; None: nobody does
        :param store: has what was pushed of flavors; None: nothing was
        :param executor: runs what may block; tests bring their own
        :param clock: monotonic, in seconds
        """
        def overrides() -> pushed.Overrides:
            return pushed.NOTHING if store is None else store.overrides
        self._hypervisor = hypervisor
        self._profiles = profiles_in_use
        self._manager = manager
        self._tick_interval_s = tick_interval_s
        self._executor = executor or futures.ThreadPoolExecutor(
            WORKERS, thread_name_prefix='worker')
        self._clock = clock
        self._stopping = False
        self._tick_at_s = float('-inf')
        self._tick_ms = 0.0
        self._known: dict[str, servers.Server] = {}
        self._counts = counts.Counts()
        self._mailbox = mailbox.Mailbox()
        post = self._mailbox.post
        self._connection = connection.Connection(
            hypervisor, self._executor, post, clock,
            on_event=self.on_event, on_up=self._take_refresh)
        self._events = events.Events(
            self._known, on_lost=self._connection.lose,
            on_stopped=self._tick_soon)
        self._rounds = rounds.Rounds(biller, self._known, self._executor,
                                     post)
        self._quanta = quanta.Quanta(keeper, self._known, self._executor,
                                     post)
        self._sampling = sampling.Sampling(
            hypervisor, self._known, self._executor, post,
            interval_s=sample_interval_s)
        self._host = host.Host(
            hypervisor, profiles_in_use, self._connection, self._rounds,
            self._quanta, self._sampling, self._known, store, periods=periods,
            reserved_cu=reserved_cu,
            allocation_ratio=allocation_ratio)
        self._signs = signs.SignsOfLife(self._host, heartbeat,
                                        heartbeat_interval_s)
        self._jobs = jobs.Jobs(self._known, self._executor, post)
        failed = failures.Failures(self._counts, clock,
                                   self._connection.lose)
        self._descriptions = descriptions.Descriptions(
            hypervisor, self._jobs, failed, self._counts, clock, overrides)
        self._followers = followers.Followers(self._known, overrides,
                                              self._counts, clock)
        self._caps = caps.Caps(
            hypervisor, self._known, self._jobs, failed, self._counts,
            self._host.terms, clock)

    # What other threads call.

    def run(self) -> None:
        """Work until stopped."""
        while not self._stopping:
            try:
                self.step()
            except Exception:
                # The caps of all servers depend on this loop: one that it
                # cannot cope with must not end it.
                self._counts.errors += 1
                LOG.exception('A step of the loop failed')
            self._mailbox.wait(max(0.0, min(
                self._tick_at_s, self._signs.next_at_s) - self._clock()))
        try:
            if self._connection.up:
                self._settle()
                self._rounds.give_back(self._host.terms(), self._hypervisor)
        except Exception:
            # The rest has to be closed all the same.
            LOG.exception('Not all servers got their units back')
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._rounds.close()
        self._quanta.close()
        self._hypervisor.close()

    def stop(self) -> None:
        """Make :meth:`run` return soon.

        Caps stay as they are; a server that paid for its I/O gets its whole
        entitlement back.
        """
        self._stopping = True
        self._mailbox.wake()

    def wake(self, uuid: str) -> None:
        """Look at a server now, if it runs here."""
        self._mailbox.post(functools.partial(self._take_wake, uuid))

    def refresh(self) -> None:
        """Read everything again."""
        self._mailbox.post(self._take_refresh)

    def lift(self, uuid: str, for_s: float) -> None:
        """Take the limit on a server's I/O away for a while.

        It comes back by itself, or with the end of a migration.
        """
        self._mailbox.post(functools.partial(self._take_lift, uuid, for_s))

    def is_lifted(self, uuid: str) -> bool:
        """Whether nothing limits a server's I/O, or it is not known here.

        :raises TimeoutError: when the loop is held up
        """
        def look() -> bool:
            server = self._known.get(uuid)
            return server is None or server.want is None or (
                server.want.domain is None and server.right)
        return self._mailbox.ask(look)

    def follow_pushed(self) -> dict[str, ty.Any]:
        """Have all servers follow what was pushed, from now on.

        :returns: see :meth:`nova_vqos.agent.followers.Followers.follow`
        :raises TimeoutError: when the loop is held up; it does so later
        """
        return self._mailbox.ask(self._followers.follow)

    def pushed_report(self) -> dict[str, ty.Any]:
        """How servers follow what was pushed.

        :returns: see :meth:`nova_vqos.agent.followers.Followers.report`
        :raises TimeoutError: when the loop is held up
        """
        return self._mailbox.ask(self._followers.report)

    def forget(self, uuid: str) -> bool:
        """Drop what is remembered of a server.

        One that still runs is found again at the next tick.

        :returns: whether there was anything to forget
        :raises TimeoutError: when the loop is held up
        """
        return self._mailbox.ask(
            lambda: self._known.pop(uuid, None) is not None)

    def server_report(self, uuid: str) -> dict[str, ty.Any] | None:
        """What is known of a server; None: nothing.

        :raises TimeoutError: when the loop is held up
        """
        def read() -> dict[str, ty.Any] | None:
            server = self._known.get(uuid)
            return None if server is None else snapshot.in_detail(
                server, self._moment())
        return self._mailbox.ask(read)

    def servers_report(self, timeout_s: float = mailbox.ASK_TIMEOUT_S
                       ) -> list[dict[str, ty.Any]]:
        """What is known of each server that runs here.

        :param timeout_s: for how long to wait for the loop
        :raises TimeoutError: when the loop is held up
        """
        return self._mailbox.ask(lambda: snapshot.of_servers(
            self._known.values(), self._moment()), timeout_s)

    def host_report(self, timeout_s: float = mailbox.ASK_TIMEOUT_S
                    ) -> dict[str, ty.Any]:
        """What is known of the host and the loop.

        :param timeout_s: for how long to wait for the loop
        :raises TimeoutError: when the loop is held up
        """
        return self._mailbox.ask(
            lambda: self._host.report(self._counts, self._tick_ms),
            timeout_s)

    def profile_in_use(self) -> tuple[profiles.Profile | None,
                                      tuple[str, ...]]:
        """The host's profile, if there is one, and what is wrong with it.

        :raises TimeoutError: when the loop is held up
        """
        return self._mailbox.ask(
            lambda: (self._profiles.profile, self._profiles.alarms))

    def on_event(self, event: base.Event) -> None:
        """Take an event of the hypervisor."""
        self._mailbox.post(functools.partial(self._events.take, event))

    # The loop.

    def step(self) -> None:
        """Take all messages; look at all servers if it is time to."""
        self._mailbox.take()
        now_s = self._clock()
        if now_s >= self._tick_at_s:
            # Ticks that were missed are not made up for.
            self._tick_at_s = max(self._tick_at_s + self._tick_interval_s,
                                  now_s + self._tick_interval_s / 2)
            self._tick(now_s)
            self._tick_ms = (self._clock() - now_s) * 1000
        else:
            for server in self._known.values():
                if server.reconsider:
                    self._consider(server, now_s)
        self._manager.alive(now_s)
        self._signs.leave(now_s)

    def _tick(self, now_s: float) -> None:
        self._counts.ticks += 1
        if self._profiles.poll(now_s):
            self._reconsider_all()
        if not self._connection.up:
            self._connection.make(now_s)
            # What was read before can be read all the same.
            self._sampling.begin(now_s)
            return
        try:
            running = self._hypervisor.running()
        except base.HypervisorError as error:
            self._connection.lose(str(error))
            return
        for uuid in self._known.keys() - running.keys():
            del self._known[uuid]
        for uuid, run_id in running.items():
            server = self._known.get(uuid)
            if server is None or server.run_id != run_id:
                server = self._known[uuid] = servers.Server(uuid, run_id)
            self._consider(server, now_s)
        terms = self._host.terms()
        self._rounds.begin(now_s, terms)
        self._quanta.begin(now_s, terms)
        self._sampling.begin(now_s)

    def _consider(self, server: servers.Server, now_s: float) -> None:
        try:
            self._look_at(server, now_s)
        except Exception as error:
            # One server that is not understood must not cost the others.
            self._counts.errors += 1
            if server.complain(f'unexpected: {error!r}'):
                LOG.exception('Looking at server %s (%s) failed',
                              server.uuid, server.name)

    def _look_at(self, server: servers.Server, now_s: float) -> None:
        """Look at one server, and have done what is to be done."""
        if (server.lifted_until_s is not None
                and now_s >= server.lifted_until_s):
            server.lifted_until_s = None
            server.reconsider = True
        if server.working or not self._connection.up:
            return
        if self._descriptions.look_at(server, now_s):
            self._caps.look_at(server, now_s)

    def _settle(self) -> None:
        """Let jobs end that are under way, for a while; begin no others.

        A write that came after the last one of all would undo it.
        """
        until_s = time.monotonic() + _SETTLE_TIMEOUT_S
        while True:
            try:
                self._mailbox.take()
            except Exception:
                # The rest is worth it all the same.
                LOG.exception('A message was not understood')
                continue
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not (
                    self._rounds.working or self._quanta.working
                    or self._sampling.working or self._jobs.working):
                return
            self._mailbox.wait(left_s)

    # Messages: they run on the loop.

    def _take_wake(self, uuid: str) -> None:
        server = self._known.get(uuid)
        if server is None:
            # It may just have started: the bulk call tells.
            self._tick_soon()
            return
        server.undescribed = True
        server.reconsider = True
        server.stop_backing_off()

    def _take_refresh(self) -> None:
        for server in self._known.values():
            server.undescribed = True
        self._reconsider_all()
        self._tick_soon()

    def _take_lift(self, uuid: str, for_s: float) -> None:
        server = self._known.get(uuid)
        if server is not None:
            server.lifted_until_s = self._clock() + for_s
            server.reconsider = True
            server.stop_backing_off()

    def _moment(self) -> snapshot.Moment:
        return snapshot.Moment(self._host.terms(), self._clock())

    def _reconsider_all(self) -> None:
        for server in self._known.values():
            server.reconsider = True
            server.stop_backing_off()

    def _tick_soon(self) -> None:
        self._tick_at_s = self._clock()
