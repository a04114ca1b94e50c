#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What a scrape of an agent's metrics costs, by how many servers there are.

Takes no host: the answers of the agent are made up, with all fields
of a server (charged, of a class, two vCPUs), and counters that have as many
digits as real ones. Prints series and bytes for each server, plain and zipped,
which are exact, and in the median the CPU time of a zipped page, relative to
one without servers and to one whose text is made by prometheus_client, in
turns; *text* is that ratio without gzip, which costs both the same. Of the
time only ratios are of use, the rest is the machine's. The control is what the
library's page differs from itself by, with the most servers.

  tools/bench/metrics.py --servers 0 100 1000
"""

import argparse
from collections.abc import Callable
import functools
import pathlib
import random
import statistics
import sys
import tempfile
import time
import typing as ty
import uuid

import against_itself
import prometheus_client

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_vqos.metrics import endpoint
from nova_vqos.tests.fixtures import library_text
from nova_vqos.tests.fixtures import metrics


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=(
        argparse.RawDescriptionHelpFormatter))
    parser.add_argument('--servers', type=int, nargs='+',
                        default=[0, 1, 10, 100, 1000])
    parser.add_argument('--rounds', type=int, default=15)
    options = parser.parse_args()
    print('servers  series  each  bytes each  zipped each  time, none = 1  '
          'library = 1  text  CPU seconds')
    nothing: Cost | None = None
    for count in sorted({0, *options.servers}):
        found = measure(count, options.rounds)
        nothing = nothing or found
        each = [(now - then) / max(1, count) for now, then in zip(
            found[:3], nothing[:3], strict=True)]
        print(f'{count:7}{found.series:8}{each[0]:6.1f}{each[1]:12.0f}'
              f'{each[2]:13.1f}{found.page_s / nothing.page_s:16.1f}'
              f'{found.page_s / found.library_page_s:13.2f}'
              f'{found.text_s / found.library_text_s:6.2f}'
              f'{found.page_s:13.4f}')
    print(against_itself.line("the library's page", found.library_pages_s))
    return 0


class Cost(ty.NamedTuple):
    """Of a page.

    :ivar plain_bytes: as plain text
    :ivar text_s: CPU time, without gzip
    :ivar page_s: CPU time, with gzip
    """

    series: int
    plain_bytes: int
    zipped_bytes: int
    text_s: float
    page_s: float
    library_text_s: float
    library_page_s: float
    library_pages_s: tuple[float, ...]


def make_servers(count: int) -> list[dict[str, ty.Any]]:
    digits = random.Random(1)

    def counter() -> float:
        return digits.randrange(10**11) / 1e6
    return [metrics.make_server(
        server_uuid=str(uuid.uuid4()), name=f'instance-{number:08x}',
        vcpu_s=counter(), throttled_s=counter(), disk_limit=None, burst=None,
        bill={
            **metrics.make_server()['bill'], 'used_here_cu_s': {
                name: counter() for name in metrics.COMPONENTS}})
        for number in range(count)]


def measure(count: int, rounds: int) -> Cost:
    with tempfile.TemporaryDirectory() as directory:
        agent = metrics.Agent(pathlib.Path(directory))
        agent.servers = make_servers(count)
        snapshot = agent.snapshot()
        agent.snapshot = lambda: snapshot
        library = library_text.Collector(agent.samples)
        took_s: dict[Callable[[], bytes], list[tuple[float, float]]] = {
            agent.page: [],
            functools.partial(prometheus_client.generate_latest, library): []}
        for _ in range(rounds):
            for make, times_s in took_s.items():
                # What makes it at each scrape, without what it remembers.
                page = endpoint.Page(make)
                began_s = time.thread_time()
                page.read(zipped=False)
                text_s = time.thread_time() - began_s
                page.read(zipped=True)
                times_s.append((text_s, time.thread_time() - began_s))
        page = endpoint.Page(agent.page)
        plain = page.read(zipped=False)
        return Cost(
            len(metrics.parse(plain.decode())), len(plain),
            len(page.read(zipped=True)),
            *(statistics.median(of_one) for times_s in took_s.values()
              for of_one in zip(*times_s, strict=True)),
            tuple(page_s for _, page_s in times_s))


if __name__ == '__main__':
    sys.exit(main())
