# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_napi, as root, on the newer kernel.

Has packets wait in the backlog of a pCPU, and prints one JSON object with what
the kernel counted at each limit of a poll.
"""

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import time
import traceback

LIMITS = (1, 2, 4, 8, 64, 200)
#: Ports of a bridge. A packet to all is one more for the bridge itself.
PORTS = 99
#: Packets to all ports in a row.
SENT = 100
_SETTLE_S = 0.2
#: Packets that a round of polls may take, as the kernel has it.
BUDGET = 300
_CORE = pathlib.Path('/proc/sys/net/core')
_TRACING = pathlib.Path('/sys/kernel/tracing')
_POLLS = _TRACING / 'events/napi/napi_poll'
# To all, of a protocol that no program receives.
_PACKET = (b'\xff' * 6 + b'\2' + b'\0' * 5 + b'\x88\xb5').ljust(60, b'x')


def main():
    try:
        make_bridge()
        found = {'polls': count_polls(), 'floods': flood()}
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        found = {'failed': traceback.format_exc()}
    print(json.dumps(found), flush=True)


def make_bridge():
    lines = ['link add bridge0 type bridge', 'link set bridge0 up']
    # Nothing else is to be sent.
    pathlib.Path('/proc/sys/net/ipv6/conf/default/disable_ipv6').write_text(
        '1')
    for number in range(PORTS + 1):
        lines += [
            f'link add port{number} type veth peer name end{number}',
            f'link set port{number} master bridge0',
            f'link set port{number} up', f'link set end{number} up']
    subprocess.run(['ip', '-batch', '-'], input='\n'.join(lines), text=True,
                   check=True)
    subprocess.run(['mount', '-t', 'tracefs', 'tracefs', str(_TRACING)],
                   check=True)
    time.sleep(1)


def opened():
    """:returns: a socket that sends into the bridge"""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    made.bind((f'end{PORTS}', 0))
    return made


def set_limit(limit, budget):
    """
    :param limit: packets of a poll
    :param budget: packets of a round of polls
    """
    (_CORE / 'dev_weight').write_text(str(limit))
    (_CORE / 'netdev_budget').write_text(str(budget))


def count_polls():
    """:returns: by limit, what the kernel says of one packet to all ports"""
    found = {}
    with opened() as sending:
        for limit in LIMITS:
            set_limit(limit, limit)
            # The first poll has the limit of the last one.
            sending.send(_PACKET)
            time.sleep(_SETTLE_S)
            before = counters()
            (_TRACING / 'trace').write_text('')
            (_POLLS / 'enable').write_text('1')
            sending.send(_PACKET)
            time.sleep(_SETTLE_S)
            (_POLLS / 'enable').write_text('0')
            works = [int(work) for work in re.findall(
                r'napi_poll:.* work (\d+) budget',
                (_TRACING / 'trace').read_text())]
            found[limit] = {**difference(before), 'polls': sum(
                map(bool, works)), 'packets': sum(works)}
    return found


def flood():
    """:returns: what the kernel says of many packets to all ports in a row, by
        limit: where a round of polls has the kernel's budget, and where it has
        no more than one poll
    """
    return {name: {limit: flood_once(limit, budget or limit)
                   for limit in LIMITS}
            for name, budget in (('default', BUDGET), ('one poll', None))}


def flood_once(limit, budget):
    set_limit(limit, budget)
    with opened() as sending:
        sending.send(_PACKET)
        time.sleep(_SETTLE_S)
        before = counters()
        with unpreempted():
            for _ in range(SENT):
                # ENOBUFS: the backlog was full, which counts as a drop.
                with contextlib.suppress(OSError):
                    sending.send(_PACKET)
        time.sleep(_SETTLE_S)
        return difference(before)


@contextlib.contextmanager
def unpreempted():
    """Run before ksoftirqd: packets from a wire come whether or not it runs.

    Else the scheduler decides how many packets wait: ksoftirqd, woken by one
    send, may preempt the next.
    """
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def counters():
    """:returns: packets that were taken from a backlog, and that found it
        full; and rounds of polls that ended before the backlog was empty
    """
    rows = [[int(number, 16) for number in line.split()[:3]] for line in
            pathlib.Path('/proc/net/softnet_stat').read_text().splitlines()]
    return dict(zip(('processed', 'dropped', 'squeezed'),
                    map(sum, zip(*rows, strict=True)), strict=True))


def difference(before):
    return {name: now - before[name] for name, now in counters().items()}


if __name__ == '__main__':
    main()
