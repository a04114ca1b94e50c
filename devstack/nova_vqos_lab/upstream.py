# SPDX-License-Identifier: Apache-2.0
"""Tempest's own compute tests on the lab: with stock Nova, then with ours.

On the same cloud, one after the other: first as ``devstack/lab up
--keep-stock`` makes it, then with driver, filter, agent and hook of nova_vqos,
with flavors of CPU units. What differs is nova_vqos' doing, or chance.
"""

import contextlib
import os
import signal
import subprocess
import time

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos.tests.upstream import compare
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import paths
from nova_vqos_lab import process

STOCK = 'stock'
VQOS = 'vqos'

#: Servers, flavors, and what an administrator does with servers.
TESTS = (r'^tempest\.api\.compute\.(servers|flavors)\.'
         r'|^tempest\.api\.compute\.admin\.test_(create_server|delete_server'
         r'|flavors|live_migration|migrations|server)')
#: Tests that end differently, by the ends of their names, and why.
KNOWN: dict[str, str] = {}

# CU of the two flavors: small, since tests boot up to ten servers at once.
_UNITS = (10, 15)
_LIMIT_S = 3600
_PROGRESS_S = 60


def run(lab: clouds.Lab, directory: str, tests: str = TESTS,
        workers: int = 4) -> int:
    """Run tempest's tests with both, and print what they came to.

    :param lab: made anew
    :param directory: where logs and results are written to
    :param tests: regular expression
    :param workers: of tempest
    :returns: 0 when both came to the same, or all differences are known
    :raises LabError: when the lab cannot be made, or a run comes to nothing
    """
    os.makedirs(directory, exist_ok=True)
    lab.down()
    lab.up()
    prepare(lab, STOCK)
    stock = _run_tempest(lab, directory, STOCK, tests, workers)
    lab.profiles.calibrate()
    lab.deploy(servers_without_units='allow')
    prepare(lab, VQOS)
    vqos = _run_tempest(lab, directory, VQOS, tests, workers)
    differences = compare.compare(stock, vqos, KNOWN)
    process.say(compare.table(stock, vqos, differences))
    return compare.status(stock, vqos, differences)


def prepare(lab: clouds.Lab, driver: str) -> None:
    """Make the flavors of one of the runs, and tempest's configuration.

    :param driver: STOCK or VQOS
    """
    with lab.cloud() as cloud:
        image = cloud.make_image(
            f'{driver}-upstream', guest.find_kernel(), clouds.initramfs(),
            config.IDLE_GUEST)
        flavors = [f'{driver}-{units}' for units in _UNITS]
        for name, units in zip(flavors, _UNITS, strict=True):
            cloud.make_flavor(name, {} if driver == STOCK else {
                policy.UNITS_KEY: str(units)}, disk_gib=1)
    config.write(os.path.join(paths.TEMPEST, '.stestr.conf'),
                 config.STESTR_CONF)
    config.write_ini(os.path.join(paths.TEMPEST, 'tempest.conf'),
                     config.tempest_upstream(image, *flavors))


def _run_tempest(lab: clouds.Lab, directory: str, driver: str, tests: str,
                 workers: int) -> dict[str, compare.Outcome]:
    stream = os.path.join(directory, f'tempest-{driver}.subunit')
    log = os.path.join(directory, f'tempest-{driver}.log')
    process.say(f'-- tempest with {driver}: {log}')
    began = said = time.monotonic()
    with open(stream, 'wb') as output, open(log, 'wb') as errors:
        running = subprocess.Popen(
            lab.inside(['tempest', 'run', '--subunit', '--regex', tests,
                        '--concurrency', str(workers)]),
            cwd=paths.TEMPEST, env=lab.environment(), stdout=output,
            stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            while running.poll() is None:
                now = time.monotonic()
                if now - began > _LIMIT_S:
                    raise process.LabError(
                        f'tempest took more than {_LIMIT_S} s, see {log}')
                if now - said > _PROGRESS_S:
                    said = now
                    far = len(compare.read_subunit(stream))
                    process.say(f'   {far} tests after {now - began:.0f} s')
                time.sleep(1)
        finally:
            # With its workers.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGTERM)
            running.wait()
    found = compare.read_subunit(stream)
    if not found:
        raise process.LabError(f'tempest ran no test, see {log}')
    process.say(f'   {len(found)} tests in {time.monotonic() - began:.0f} s')
    return found
