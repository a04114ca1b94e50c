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

"""nova-vqos-manage server top: all servers, live in a terminal."""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import curses
import datetime
import queue
import threading
import time
import typing as ty

from nova_vqos.manage import command
from nova_vqos.manage import errors
from nova_vqos.manage import server_rows as rows
from nova_vqos.manage import servers

#: By what servers can be sorted, the most of it first.
SORTS: ty.Mapping[str, Callable[[rows.Placed], float | None]] = {
    'throttled': rows.throttled,
    'delivered': rows.delivered_cu,
    'debt': rows.debt_cu_s,
}
_COLUMNS = ('server_uuid', 'host', 'flavor', 'entitled_cu', 'delivered_cu',
            'throttled', 'dd_cu', 'debt_cu_s', 'class', 'right')
# Nova is asked for hosts that are new this often.
_HOSTS_INTERVAL_S = 60.0
_KEYS_INTERVAL_MS = 200


class View(ty.NamedTuple):
    """What is to be seen at a moment.

    :ivar silent: how many hosts did not answer
    :ivar problem: why nobody could be asked; empty: somebody was
    """

    found: Sequence[rows.Placed]
    hosts: int
    silent: int
    at: datetime.datetime
    problem: str = ''


class TopServers(command.ManageCommand):
    """Watch what all servers get, like top does processes.

    Keys: t, d and o sort by throttled, delivered and debt (owed), q quits.
    Without a terminal, with --once or --number the tables are printed one
    after the other.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        command.add_hosts(parser)
        servers.add_filters(parser)
        parser.add_argument(
            '--sort', choices=tuple(SORTS), default='throttled',
            help='what servers with the most come first of, default: '
                 '%(default)s')
        parser.add_argument(
            '--interval', type=_interval_s, default=5.0, metavar='SECONDS',
            help='from one look to the next, default: %(default)g')
        parser.add_argument(
            '--once', action='store_const', const=1, dest='number',
            help='print what is now, and end')
        parser.add_argument(
            '-n', '--number', type=_rounds, metavar='N',
            help='print what is now so many times, and end')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        look = self._looker(parsed_args)
        # What cannot be asked at all is told before the screen is taken.
        first = look()
        if first.problem:
            raise errors.ManageError(first.problem)
        if parsed_args.number is None and self.app.stdout.isatty():
            try:
                curses.wrapper(_Screen(look, first, parsed_args).run)
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
                first = look()
        self.status = 1 if first.silent or first.problem else 0

    def _looker(self, parsed_args: argparse.Namespace
                ) -> Callable[[], View]:
        hosts = self.hosts(parsed_args)
        asked_at_s = time.monotonic()

        def look() -> View:
            nonlocal hosts, asked_at_s
            try:
                if time.monotonic() - asked_at_s > _HOSTS_INTERVAL_S:
                    asked_at_s = time.monotonic()
                    hosts = self.hosts(parsed_args)
                answers = self.fleet().ask(hosts, 'list_servers')
            except errors.ManageError as error:
                return View((), len(hosts), len(hosts), _now(), str(error))
            return View(servers.select(answers, parsed_args), len(answers),
                        sum(one.value is None for one in answers), _now())
        return look


class _Screen:
    """The terminal: draws what a thread of its own asks for."""

    def __init__(self, look: Callable[[], View], first: View,
                 parsed_args: argparse.Namespace) -> None:
        self._look = look
        self._view = first
        self._sort = parsed_args.sort
        self._interval_s = parsed_args.interval
        self._views: queue.SimpleQueue[View] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def run(self, window: ty.Any) -> None:
        """Draw until somebody quits; curses.wrapper gives the screen back."""
        # Not every terminal has colours, or can hide its cursor.
        with contextlib.suppress(curses.error):
            curses.use_default_colors()
            curses.curs_set(0)
        window.timeout(_KEYS_INTERVAL_MS)
        threading.Thread(target=self._ask, daemon=True).start()
        try:
            self._draw(window)
            while self._take(window.getch()):
                while not self._views.empty():
                    self._view = self._views.get()
                self._draw(window)
        finally:
            self._stopping.set()

    def _ask(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._views.put(self._look())

    def _take(self, key: int) -> bool:
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
    """What is seen of servers: two lines of the whole, then a table."""
    key = SORTS[sort]
    found = sorted(view.found, key=lambda one: (
        -(key(one) or 0.0), one.host, one.brief['server_uuid']))
    cells = [_COLUMNS, *(tuple(_text(rows.SHORT[name](one))
                               for name in _COLUMNS) for one in found)]
    widths = [max(len(row[number]) for row in cells)
              for number in range(len(_COLUMNS))]
    wrong = sum(rows.is_wrong(one) for one in found)
    # One that migrates is told of by both hosts.
    there = [one for one in found if not rows.is_arriving(one)]
    promised = sum(one.brief.get('entitled_cu') or 0 for one in there)
    delivered = sum(rows.delivered_cu(one) or 0.0 for one in there)
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
    """One line of it: what hosts tell may hold anything."""
    return ''.join(letter if letter.isprintable() else '?'
                   for letter in str(shown if shown is not None else '-'))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _interval_s(text: str) -> float:
    try:
        value_s = float(text)
    except ValueError:
        value_s = 0.0
    if not 1 <= value_s <= 3600:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no number of seconds from 1 to 3600')
    return value_s


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no number from 1 to 100000')
    return int(text)
