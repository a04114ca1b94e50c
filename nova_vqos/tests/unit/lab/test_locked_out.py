# SPDX-License-Identifier: Apache-2.0
"""A nova-compute that waits for itself, by its report."""

from nova_vqos_lab import locked_out

RULE = '=' * 72
INSIDE = ['get_connection', '_get_connection', 'getLibVersion']


def section(name, text):
    return f'{RULE}\n===={name:^64}====\n{RULE}\n{text}\n'


def report(*stacks):
    """:returns: what oslo.reports prints of threads with these functions"""
    threads = [
        f'------{"Thread #140146519303872":^60}------\n\n' + '\n'.join(
            f'/nova/virt/libvirt/host.py:{line} in {function}\n'
            f'    `with self._wrapped_conn_lock:`\n'
            for line, function in enumerate(stack, 1)) for stack in stacks]
    return section('Threads', '\n'.join(threads)) + section(
        'Green Threads', f'------{"Green Thread":^60}------\n\n'
        '/nova/virt/libvirt/host.py:9 in _connection_closed\n')


def test_one_that_holds_what_it_waits_for():
    assert locked_out.is_in(report(
        ['run'], [*INSIDE, '_close_callback', '_connection_closed'], ['run']))


def test_one_that_waits_for_another_thread():
    assert not locked_out.is_in(report(
        INSIDE, ['_native_thread', '_close_callback', '_connection_closed']))


def test_one_that_had_the_lock():
    assert not locked_out.is_in(report(
        [*INSIDE, '_connection_closed', '_queue_conn_event_handler']))


def test_other_words():
    assert not locked_out.is_in('')
    assert not locked_out.is_in('Guru Meditation\n')
