# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage server top."""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import curses
import datetime
import queue
import threading
import time
import typing as ty

from nova_vqos import plain_text
from nova_vqos.agent import rpcapi
from nova_vqos.cmd import arguments
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import servers

#: Figures by which servers can be sorted, largest first.
SORTS: ty.Mapping[str, Callable[[servers.Placed], float | None]] = {
    'throttled': servers.throttled,
    'delivered': servers.delivered_cu,
    'debt': servers.debt_cu_s,
}
# Nova is asked for hosts that are new this often.
_HOSTS_INTERVAL_S = 60.0
_KEYS_INTERVAL_MS = 200


class View(ty.NamedTuple):
    """All servers at a moment.

    :ivar silent: how many hosts did not answer
    :ivar problem: why no host could be asked; empty: some were
    """

    found: Sequence[servers.Placed]
    hosts: int
    silent: int
    at: datetime.datetime
    problem: str = ''


class TopServers(command.ManageCommand):
    """Watch all servers in a terminal, as top watches processes.

    Keys: t, d and o sort by throttled, delivered and debt (owed), q quits.
    Without a terminal, with --once or --number the tables are printed one
    after the other.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        command.add_hosts(parser)
        servers.add_filters(parser)
        parser.add_argument(
            '--sort', choices=tuple(SORTS), default='throttled',
            help='the figure by which to sort, largest first, default: '
                 '%(default)s')
        parser.add_argument(
            '--interval', default=5.0, metavar='SECONDS', type=lambda text: (
                arguments.number(text, 3600, 'seconds', least=1)),
            help='time between two refreshes, default: %(default)g')
        parser.add_argument(
            '--once', action='store_const', const=1, dest='number',
            help='print one table, and end')
        parser.add_argument(
            '-n', '--number', metavar='N',
            type=lambda text: arguments.count(text, 1, 100_000),
            help='print so many tables, and end')

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        refresh = self._make_refresh(parsed_args)
        # An error goes to the terminal before the screen is taken.
        first = refresh()
        if first.problem:
            raise errors.ManageError(first.problem)
        if parsed_args.number is None and self.app.stdout.isatty():
            try:
                curses.wrapper(_Screen(refresh, first, parsed_args).run)
            except curses.error as error:
                raise errors.ManageError(
                    f'this terminal cannot be drawn on ({error}): give '
                    '--once') from error
            return
        number = parsed_args.number or 1
        for left in reversed(range(number)):
            self.app.stdout.write(
                '\n'.join(lines(first, parsed_args.sort)) + '\n')
            self.app.stdout.flush()
            if left:
                time.sleep(parsed_args.interval)
                first = refresh()
        self.status = 1 if first.silent or first.problem else 0

    def _make_refresh(self, parsed_args: argparse.Namespace
                      ) -> Callable[[], View]:
        hosts = self.hosts(parsed_args)
        asked_at_s = time.monotonic()

        def refresh() -> View:
            nonlocal hosts, asked_at_s
            try:
                if time.monotonic() - asked_at_s > _HOSTS_INTERVAL_S:
                    asked_at_s = time.monotonic()
                    hosts = self.hosts(parsed_args)
                answers = self.ask_quietly(hosts, rpcapi.LIST_SERVERS)
            except errors.ManageError as error:
                return View((), len(hosts), len(hosts),
                            datetime.datetime.now(datetime.UTC), str(error))
            return View(servers.select(answers, parsed_args), len(answers),
                        sum(one.value is None for one in answers),
                        datetime.datetime.now(datetime.UTC))
        return refresh


class _Screen:
    """Draws the servers on a terminal; a thread asks for them."""

    def __init__(self, refresh: Callable[[], View], first: View,
                 parsed_args: argparse.Namespace) -> None:
        self._refresh = refresh
        self._view = first
        self._sort = parsed_args.sort
        self._interval_s = parsed_args.interval
        self._views: queue.SimpleQueue[View] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def run(self, window: ty.Any) -> None:
        """Draw until the user quits; curses.wrapper resets the screen."""
        # Not every terminal has colours, or can hide its cursor.
        with contextlib.suppress(curses.error):
            curses.use_default_colors()
            curses.curs_set(0)
        window.timeout(_KEYS_INTERVAL_MS)
        threading.Thread(target=self._ask, daemon=True).start()
        try:
            self._draw(window)
            while self._handle(window.getch()):
                while not self._views.empty():
                    self._view = self._views.get()
                self._draw(window)
        finally:
            self._stopping.set()

    def _ask(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._views.put(self._refresh())

    def _handle(self, key: int) -> bool:
        """:returns: whether to go on"""
        name = chr(key) if 0 <= key < 256 else ''
        self._sort = {'t': 'throttled', 'd': 'delivered',
                      'o': 'debt'}.get(name, self._sort)
        return name not in ('q', 'Q')

    def _draw(self, window: ty.Any) -> None:
        height, width = window.getmaxyx()
        window.erase()
        for number, line in enumerate(lines(self._view,
                                            self._sort)[:height]):
            # The last column of the last line cannot be written to.
            window.addnstr(number, 0, line, max(1, width - 1),
                           curses.A_REVERSE if number == 2 else 0)
        window.refresh()


def lines(view: View, sort: str) -> list[str]:
    """Two lines about all servers, then a table of them."""
    key = SORTS[sort]
    found = sorted(view.found, key=lambda one: (
        -(key(one) or 0.0), one.host, one.server.server_uuid))
    cells = [tuple(servers.SHORT), *(
        tuple(_text(column(one)) for column in servers.SHORT.values())
        for one in found)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    wrong = sum(servers.is_wrong(one) for one in found)
    # One that migrates has a row on both hosts.
    there = [one for one in found if not one.server.arriving]
    promised = sum(one.server.entitled_cu or 0 for one in there)
    delivered = sum(servers.delivered_cu(one) or 0.0 for one in there)
    return [
        f'{view.at:%H:%M:%S} UTC  hosts: {view.hosts}, no answer: '
        f'{view.silent}; servers: {len(there)}, wrong: {wrong}; sorted by '
        f'{sort}',
        view.problem or f'promised {promised} CU, delivered '
        f'{delivered:.0f} CU',
        *('  '.join(text.ljust(width) for text, width in
                    zip(row, widths, strict=True)).rstrip()
          for row in cells)]


def _text(shown: ty.Any) -> str:
    """One printable line: answers may have anything in them."""
    return plain_text.one_line(str(shown if shown is not None else '-'))
