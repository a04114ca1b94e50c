# SPDX-License-Identifier: Apache-2.0
"""The units that verify a profile, run by a systemd, under all their limits.

The timer starts the service, and that measures a host of the lab which was
calibrated before, shortly. What it is told otherwise is told as the guide to
calibration says, by drop-ins.
"""

import contextlib
import glob
import json
import os
import re
import shlex
import shutil
import stat

import pytest

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos.calibration import guest
from nova_vqos.calibration import idle
from nova_vqos.conf import default_path
from nova_vqos.profile import document
from nova_vqos.profile import validity
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import systemd
from nova_vqos.tests.host import test_verify_idle
from nova_vqos.tests.host import unit_files
from nova_vqos_lab import process

SERVICE = 'nova-vqos-verify.service'
TIMER = 'nova-vqos-verify.timer'
SLICE = 'vqosidle.slice'
PROFILE = 'etc/nova-vqos/profile.yaml'
RECORD = default_path.VERIFICATION.lstrip('/')
LIMIT_S = test_verify_idle.LIMIT_S
STALE = 3

_GROUP = 'vqos-verify'
_LOG = 'run/verify.log'
_CALIBRATE = ('cpu', '--reference', 'gold', '--benchmark', 'integer',
              '--rounds', '4', '--widest-interval', '10', '--restart',
              '--output', f'/{PROFILE}')
# Until then the manager has started.
_AHEAD_S = 8
_WHEN = 'YYYY-MM-DD hh:mm:ss'
# Shorter, and content with whatever the machine does meanwhile.
_QUICK = '--rounds 4 --tolerance 0.9'


def exec_start():
    """:returns: the arguments of the unit's own program"""
    (found,) = re.findall(r'^ExecStart=\S+ (.*)$',
                          (unit_files.ETC / SERVICE).read_text(), re.M)
    return found


@pytest.fixture
def calibrate(lab):
    """Calibrates the host fast; its profile is gone after the test."""
    systemd.need()
    path = lab.fast.path(PROFILE)
    before = files.read(path) if os.path.exists(path) else None
    pcpus = cpuset.format_pcpus(lab.fast.pcpus)

    def run(*options):
        done = test_verify_idle.calibrate(
            lab.fast, *_CALIBRATE, '--pcpus', pcpus, *options)
        assert done.returncode == 0, done.stderr
        return document.load(path)

    yield run
    os.unlink(path)
    if before is not None:
        files.write(before.decode(), path)


@pytest.fixture
def verify(lab):
    """Lets the timer start the service, and waits for its end.

    As a context: in it the manager runs, and can be asked.
    """
    host = lab.fast

    @contextlib.contextmanager
    def run(options=_QUICK, drop_in=(), setup=''):
        """:param options: added to the unit's own program by a drop-in
        :param drop_in: further lines of it, for [Service]
        :param setup: done before the manager starts, for a shell
        """
        shutil.rmtree(host.path(systemd.UNITS), ignore_errors=True)
        for path in (_LOG, RECORD):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(host.path(path))
        systemd.write_unit(host, SLICE)
        systemd.write_unit(host, TIMER)
        systemd.write_unit(host, SERVICE, [
            f'StandardOutput=append:/{_LOG}', 'StandardError=inherit'])
        systemd.write_drop_in(host, SERVICE, 'override', [
            '[Service]', 'ExecStart=',
            f'ExecStart={shlex.quote(test_verify_idle.PROGRAM)} '
            f'{exec_start()} {options}', *drop_in])
        systemd.write_drop_in(host, TIMER, 'override', [
            '[Timer]', 'OnCalendar=', f'OnCalendar={_WHEN} UTC',
            'RandomizedDelaySec=0', 'AccuracySec=1'])
        # Right before the manager starts: what is past by then never comes.
        set_time = (f'sed -i "s/{_WHEN}/$(date -u -d "{_AHEAD_S} seconds" '
                    f'"+%F %T")/" /{systemd.UNITS}/{TIMER}.d/override.conf')
        started = host.popen(systemd.argv(
            _GROUP, TIMER, f'{setup}\n{set_time}'), log='systemd-verify')
        manager = systemd.Manager(host, started)
        top = host.hierarchy.directory('cpu', host.cgroup)
        # As the root of cgroups is.
        os.chmod(top, 0o555)

        def ended():
            found = manager.control(
                'show', '-P', 'ExecMainExitTimestampMonotonic', SERVICE,
                check=False)
            return found.isdecimal() and int(found) > 0
        try:
            process.wait_until(ended, LIMIT_S, 'the end of the verification',
                               log=started.log, alive=started.alive)
            yield manager
        finally:
            os.chmod(top, 0o755)
            manager.stop(TIMER, SERVICE)
            if os.path.exists(host.path(_LOG)):
                with open(host.path(_LOG), encoding='utf-8') as log:
                    print(log.read())
            for path in glob.glob(host.path(f'{systemd.UNITS}/*/*.conf')):
                with open(path, encoding='utf-8') as conf:
                    print(f'{path}:\n{conf.read()}')
    return run


def said(host):
    """:returns: what the service wrote for the compute driver"""
    with open(host.path(RECORD), encoding='utf-8') as record:
        return json.load(record)


def status(manager):
    """:returns: of the service's program"""
    return int(manager.control('show', '-P', 'ExecMainStatus', SERVICE))


def test_the_timer_has_the_host_verified(lab, calibrate, verify):
    """And a stale profile is a failure to be seen."""
    made = calibrate()
    with verify() as manager:
        assert status(manager) == 0
        found = said(lab.fast)
        assert found['profile_id'] == made.id
        assert found['verdict'] in ('ok', 'drifted')
        # As nova-compute, which is another user, reads it.
        for path, mode in ((os.path.dirname(RECORD), 0o755), (RECORD, 0o644)):
            found = os.stat(lab.fast.path(path))
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (mode, 0)
        for name, value in (('Slice', SLICE), ('Result', 'success'),
                            ('ProtectSystem', 'strict'),
                            ('NoNewPrivileges', 'yes')):
            assert manager.control('show', '-P', name, SERVICE) == value
        assert manager.control('show', '-P', 'CPUWeight', SLICE) == 'idle'
    # The idle group that it made is gone.
    assert not os.path.exists(lab.fast.hierarchy.directory(
        'cpu', f'{lab.fast.cgroup}/{idle.NAME}'))

    (one,) = made.cpu_classes
    slow = one.busy._replace(**{
        field: getattr(one.busy, field) / 3
        for field in ('coefficient', 'interval_low', 'interval_high')})
    changed = made._replace(cpu_classes=(one._replace(busy=slow),))
    document.store(changed, lab.fast.path(PROFILE))
    with verify('--rounds 4') as manager:
        assert status(manager) == STALE
        assert manager.control('is-failed', SERVICE) == 'failed'
        assert said(lab.fast)['verdict'] == validity.STALE
    assert 'calibrate this host again' in validity.why_stale(
        lab.fast.path(RECORD), changed.id)


def test_where_services_are_kept_off_the_pcpus(lab, calibrate, verify):
    """CPUAffinity of the manager; and the unit's own, as the guide says."""
    calibrate()
    others = frozenset(os.sched_getaffinity(0)) - lab.fast.pcpus
    if not others:
        requirement.need('services and servers need a pCPU each')
    kept_off = (
        'mkdir /run/systemd/user.conf.d; printf "[Manager]\\nCPUAffinity="'
        f'{cpuset.format_pcpus(others)} >/run/systemd/user.conf.d/vqos.conf')
    with verify(setup=kept_off) as manager:
        assert status(manager) == 1
    with open(lab.fast.path(_LOG), encoding='utf-8') as log:
        assert 'cannot be used' in log.read()
    everything = cpuset.format_pcpus(os.sched_getaffinity(0))
    with verify(drop_in=[f'CPUAffinity={everything}'],
                setup=kept_off) as manager:
        assert status(manager) == 0
        assert said(lab.fast)['verdict'] in ('ok', 'drifted')


def test_a_profile_of_guests(lab, calibrate, verify):
    """QEMU works under these limits, too, with the kernel that is given."""
    kernel = guest.find_kernel()
    made = calibrate('--in-guest', '--virt-type', 'qemu', '--kernel', kernel)
    assert made.provenance['guest_kernel'] in os.path.basename(kernel)
    with verify(f'{_QUICK} --kernel {shlex.quote(kernel)}') as manager:
        assert status(manager) == 0
        assert said(lab.fast)['profile_id'] == made.id


def test_systemd_understands_the_timer():
    if shutil.which('systemd-analyze') is None:
        requirement.need('the package systemd is missing')
    due = process.run(['systemd-analyze', 'calendar', re.search(
        r'^OnCalendar=(.*)$', (unit_files.ETC / TIMER).read_text(), re.M)[1]])
    assert 'Normalized form: Sun *-*-* 04:00:00' in due.stdout
