# SPDX-License-Identifier: Apache-2.0
"""What the devstack plugin leaves when it is cleaned away."""


import pytest

from nova_vqos.tests.functional import devstack_machine

machine = devstack_machine.machine
pytestmark = devstack_machine.MARKS


@pytest.mark.parametrize('where', ['link', 'hook'])
def test_what_is_not_ours_stays(machine, where):
    host = machine()
    path = getattr(host, where)
    if where == 'link':
        path.mkdir()
    else:
        path.parent.mkdir()
        path.write_text('#!/bin/sh\n')
    before = host.tree()
    assert 'not ours' in host.devstack('stack', fails=True)
    host.devstack('clean')
    assert path.exists()
    devstack_machine.check_clean(host, before)


def test_clean_after_a_run_that_failed(machine):
    host = machine()
    before = host.tree()
    host.devstack('stack', fails=True, CALIBRATION_FAILS=1)
    host.devstack('clean')
    devstack_machine.check_clean(host, before)


def test_clean_leaves_what_others_put_beside_ours(machine):
    host = machine(**devstack_machine.NO_AGENT)
    host.devstack('stack')
    theirs = (host.conf_dir / 'notes', host.hook.with_name('10-other'))
    for path in theirs:
        path.write_text('')
    host.devstack('clean')
    assert all(path.exists() for path in theirs)
    assert {path.name for path in host.conf_dir.iterdir()} == {'notes'}
    assert not host.hook.exists()


def test_clean_without_our_programs(machine):
    host = machine(**devstack_machine.NO_AGENT)
    before = host.tree()
    host.devstack('stack')
    (host.root / 'usr/local/bin/nova-vqos-libvirt-hook').unlink()
    host.devstack('clean')
    devstack_machine.check_clean(host, before)
