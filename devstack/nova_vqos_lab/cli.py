# SPDX-License-Identifier: Apache-2.0
"""The command line of the lab: devstack/lab."""

import argparse
from collections.abc import Callable, Sequence
import importlib
import math
import os
import random
import signal
import sys
import types
import typing as ty

from nova_vqos_lab import cloud
from nova_vqos_lab import config
from nova_vqos_lab import counting
from nova_vqos_lab import earlier
from nova_vqos_lab import equivalence
from nova_vqos_lab import kinds
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import proof
from nova_vqos_lab import results
from nova_vqos_lab import services
from nova_vqos_lab import slowcpu
from nova_vqos_lab import soak
from nova_vqos_lab import story
from nova_vqos_lab import tempest
from nova_vqos_lab import upgrade
from nova_vqos_lab import vendordata
from nova_vqos_lab import watcher

_Found = ty.TypeVar('_Found', kinds.Comparison, proof.Proof)

_MOST_SEEDS = 10**6
_MOST_MINUTES = 24 * 60
_MOST_CYCLES = 100
_EPILOG = f"""\
Everything is below {paths.ROOT} (NOVA_VQOS_LAB_DIR), in namespaces and cgroups
named {paths.PREFIX}-... (NOVA_VQOS_LAB_PREFIX), and gone after 'down'. Logs
are in {paths.LOGS}.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of the lab.

    :returns: exit status
    """
    parser = _parser()
    # What comes after these is another program's, options included.
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    rest: list[str] = []
    if arguments[:1] in (['exec'], ['tempest'], ['on']):
        words = 2 if arguments[0] == 'on' else 1
        if len(arguments) > words and arguments[words] not in ('-h',
                                                               '--help'):
            rest = arguments[words:]
            arguments = arguments[:words]
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return options.function(options, rest)
    except process.LabError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Of a reader such as head, who has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted: 'devstack/lab down' removes what there is",
              file=sys.stderr, flush=True)
        # Threads may wait for what is not to come any more.
        os._exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='devstack/lab', epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description='A real two-host OpenStack on this machine, with hosts '
        'of unlike speed, to see nova_vqos at work. Needs root.')
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    one = commands.add_parser(
        'up', help='make the cloud, calibrate its hosts, deploy nova_vqos')
    one.add_argument('--keep', action='store_true',
                     help='what it does anyway: the cloud runs until down, '
                     'and its openrc and tempest.conf are written')
    one.add_argument('--keep-stock', action='store_true',
                     help='stop at stock Nova; another up goes on from there')
    one.set_defaults(function=_up)
    one = commands.add_parser('down', help='remove every trace of it')
    one.set_defaults(function=_down)
    one = commands.add_parser(
        'status', help='show what runs, and how to use it')
    one.set_defaults(function=_status)
    one = commands.add_parser(
        'demo', help='make the cloud anew, run the demonstration of CPU '
        'units on it, and leave it running')
    one.add_argument('--json', metavar='FILE',
                     help='also write measurements and checks to FILE')
    one.add_argument('--plot', metavar='FILE', type=_svg,
                     help='also draw promised and delivered speed, as SVG, '
                     'to FILE; needs matplotlib')
    one.add_argument('--whole', action='store_true',
                     help='with the chapters for those who want to know '
                     'everything: twice as long')
    one.add_argument('--removed-next', action='store_true',
                     help='the cloud is not used afterwards: calibrate by '
                     'fewer kinds of work, and leave host fast as the last '
                     'chapter needs it')
    one.set_defaults(function=_demo)
    one = commands.add_parser(
        'plot', help='draw what demo --json wrote, as demo --plot does; '
        'needs matplotlib, and no cloud')
    one.add_argument('results', metavar='JSON')
    one.add_argument('plot', metavar='FILE', type=_svg,
                     help='to write, as SVG')
    one.set_defaults(function=_plot)
    one = commands.add_parser(
        'kinds', help='make the cloud anew, run programs that no host was '
        'calibrated by on both hosts, with stock Nova and at equal units, '
        'show how long they take, and remove it')
    one.add_argument('--json', metavar='FILE',
                     help='also write what was found to FILE')
    one.add_argument('--slow', choices=slowcpu.WAYS,
                     default=slowcpu.INSTRUCTIONS,
                     help="what makes the slow host slow: each of a guest's "
                     'instructions, divisions most, so that kinds of work '
                     'differ more than they do on unlike CPUs; or a lower '
                     'clock, for all kinds alike (default: %(default)s)')
    one.set_defaults(function=_kinds)
    one = commands.add_parser(
        'prove', help='make the cloud anew, move a server between its hosts '
        'again and again, show what it had of its cap and whether both are '
        'equally fast for it, and remove the cloud')
    one.add_argument('--json', metavar='FILE',
                     help='also write what was found to FILE')
    one.add_argument('--plot', metavar='FILE', type=_svg,
                     help='also draw what was found, as SVG, to FILE; needs '
                     'matplotlib')
    one.add_argument('--cycles', type=_cycles, default=proof.CYCLES,
                     help='how often it comes to fast, to slow and back, at '
                     f'least {equivalence.LEAST_CYCLES} times '
                     '(default: %(default)s, which take about 15 minutes)')
    one.add_argument('--slow', choices=slowcpu.WAYS, default=slowcpu.CLOCK,
                     help='what makes the slow host slow (default: '
                     '%(default)s, for all kinds of work alike: no program '
                     'is of one kind alone)')
    one.set_defaults(function=_prove)
    one = commands.add_parser(
        'upstream', help="make the cloud anew, run tempest's own compute "
        'tests on it with stock Nova, then with nova_vqos, show what differs, '
        'and remove it')
    one.add_argument('--output', '-o', metavar='DIRECTORY', required=True,
                     help='for logs and results')
    one.add_argument('--regex',
                     help='of tests (default: servers, flavors, and what '
                     'administrators do with servers)')
    one.add_argument('--workers', '-n', type=int, default=4,
                     help='of tempest (default: %(default)s)')
    one.set_defaults(function=_upstream)
    one = commands.add_parser(
        'soak', help='make what is missing of the cloud, do to it and to its '
        'servers what chance wants, and look after each step whether all '
        'that must hold does; exits with 1 where something did not')
    one.add_argument('--minutes', type=_minutes, default=15,
                     help='how long (default: %(default)s)')
    one.add_argument('--steps', type=_steps, metavar='N',
                     help='end after so many steps, at the latest')
    one.add_argument('--seed', type=int, metavar='N',
                     help='of the chance (default: another one each time)')
    one.set_defaults(function=_soak)
    one = commands.add_parser(
        'vendordata', help="complete the cloud, start Nova's metadata service "
        'and nova-vqos-vendordata, and boot a server whose guest reads its '
        'figures; show them beside those of server show')
    one.set_defaults(function=_vendordata)
    one = commands.add_parser(
        'upgrade', help='make the cloud anew with an earlier nova_vqos, '
        'upgrade the controller and host after host while servers run and '
        'move, and leave it running; exits with 1 where something was not '
        'right')
    one.add_argument('--from', dest='revision', metavar='COMMIT',
                     default=earlier.REVISION,
                     help='of the earlier one, in this checkout '
                     '(default: %(default)s)')
    one.add_argument('--back', action='store_true',
                     help='then go back to the earlier one, in the opposite '
                     'order')
    one.set_defaults(function=_upgrade)
    one = commands.add_parser(
        'watcher', help='make the parts of the cloud that are missing, start '
        'Watcher, and have it level the units of servers by the strategy of '
        'nova_vqos: audit, action plan, live migrations; exits with 1 where '
        'something is not right afterwards')
    one.set_defaults(function=_watcher)
    one = commands.add_parser(
        'exec', usage='devstack/lab exec COMMAND...',
        help="run a command in the cloud's network, logged in as its "
        'administrator')
    one.set_defaults(function=_exec)
    one = commands.add_parser(
        'tempest', usage='devstack/lab tempest ARGUMENT...',
        help='run tempest against the cloud, such as: run '
        '--serial --regex nova_vqos')
    one.set_defaults(function=_tempest)
    one = commands.add_parser(
        'on', usage='devstack/lab on HOST COMMAND...',
        help='run a command on one of the hosts, such as virsh list')
    one.add_argument('host', choices=tuple(paths.HOST_ADDRESSES))
    one.set_defaults(function=_on)
    return parser


def _up(options: argparse.Namespace, _rest: list[str]) -> int:
    with cloud.only_one():
        lab = cloud.Lab()
        if options.keep_stock:
            lab.up()
        else:
            _make(lab)
        if lab.is_deployed:
            tempest.prepare(lab)
    _say_usage()
    return 0


def _make(lab: cloud.Lab) -> None:
    """Make what is missing of a cloud with nova_vqos."""
    lab.up()
    if not lab.is_deployed:
        lab.profiles.calibrate()
        lab.deploy()


def _down(_options: argparse.Namespace, _rest: list[str]) -> int:
    with cloud.only_one():
        cloud.Lab().down()
    return 0


def _status(_options: argparse.Namespace, _rest: list[str]) -> int:
    lab = cloud.Lab()
    state = ('up, with nova_vqos' if lab.is_deployed
             else 'up, with stock Nova' if lab.is_up
             else 'not up, or half made: see devstack/lab down')
    process.say(f'lab: {state}')
    for name, pid in lab.running():
        _say_running(name, pid)
    if lab.is_up:
        for service in services.APIS:
            process.say(f'{service:10} {config.url(service)}')
        _say_usage()
    return 0 if lab.is_up else 1


def _demo(options: argparse.Namespace, _rest: list[str]) -> int:
    # What it lacks it says before the minutes that the rest takes.
    plotter = _module_of_plots('demo_plot') if options.plot else None
    with cloud.only_one():
        lab = cloud.Lab()
        lab.down()
        found = story.run(lab, whole=options.whole,
                          stays=not options.removed_next)
        if options.json:
            found.write(options.json)
        process.say(found.table())
        if plotter is not None:
            plotter.write(found.measurements, options.plot)
        if found.ended and not options.removed_next:
            # The guides use it.
            tempest.prepare(lab)
    return 0 if found.passed else 1


def _plot(options: argparse.Namespace, _rest: list[str]) -> int:
    plotter = _module_of_plots('demo_plot')
    plotter.write(results.read_measurements(options.results),
                  options.plot)
    return 0


def _kinds(options: argparse.Namespace, _rest: list[str]) -> int:
    os.environ[slowcpu.VARIABLE] = options.slow
    os.environ.setdefault(counting.VARIABLE, '1')
    _show(options, kinds.run)
    return 0


def _prove(options: argparse.Namespace, _rest: list[str]) -> int:
    os.environ[counting.VARIABLE] = '1'
    os.environ[slowcpu.VARIABLE] = options.slow
    # What it lacks it says before the minutes that the rest takes.
    plotter = _module_of_plots('proof_plot') if options.plot else None
    found = _show(options, lambda lab: proof.run(lab, options.cycles))
    if plotter is not None:
        plotter.write(found, options.plot)
    return 0 if found.is_shown else 1


def _module_of_plots(name: str) -> types.ModuleType:
    """:returns: a module of this package that needs matplotlib"""
    try:
        return importlib.import_module(f'nova_vqos_lab.{name}')
    except ImportError as error:
        raise process.LabError(f'plots need matplotlib: {error}') from error


def _show(options: argparse.Namespace,
          measure: Callable[[cloud.Lab], _Found]) -> _Found:
    """Measure on a lab of its own, show and write what was found."""
    with cloud.only_one():
        # A server is only where the pace is known.
        lab = cloud.Lab(pcpus_each=1)
        try:
            found = measure(lab)
            # Before the removal, which may fail for another reason.
            if options.json:
                found.write(options.json)
            process.say(found.table())
        finally:
            lab.down()
    return found


def _upstream(options: argparse.Namespace, _rest: list[str]) -> int:
    # It needs what tests need, which no other command does.
    from nova_vqos_lab import upstream

    with cloud.only_one():
        lab = cloud.Lab()
        try:
            return upstream.run(lab, options.output,
                                options.regex or upstream.TESTS,
                                options.workers)
        finally:
            lab.down()


def _soak(options: argparse.Namespace, _rest: list[str]) -> int:
    seed = options.seed
    if seed is None:
        seed = random.SystemRandom().randrange(_MOST_SEEDS)
    process.say(f'seed {seed}')
    with cloud.only_one():
        lab = cloud.Lab()
        _make(lab)
        done = soak.run(lab, seed, options.minutes, options.steps)
    process.say(f'again: devstack/lab soak --seed {seed} --steps '
                f'{done.steps} --minutes {math.ceil(options.minutes * 2)}')
    process.say(done.summary())
    return 1 if done.violations else 0


def _vendordata(_options: argparse.Namespace, _rest: list[str]) -> int:
    with cloud.only_one():
        lab = cloud.Lab()
        _make(lab)
        vendordata.start(lab)
        with lab.cloud() as session:
            reader = vendordata.Reader(lab, session)
            found, shown = reader.wait_read()
    process.say(vendordata.table(found, shown))
    process.say('what its guest reads:\n'
                f'  devstack/lab exec openstack console log show '
                f'--lines 3 {vendordata.NAME}')
    return 0


def _upgrade(options: argparse.Namespace, _rest: list[str]) -> int:
    with cloud.only_one():
        lab = cloud.Lab()
        lab.down()
        done = upgrade.run(lab, options.revision, is_return=options.back)
    process.say(done.table())
    return 0 if done.is_right else 1


def _watcher(_options: argparse.Namespace, _rest: list[str]) -> int:
    with cloud.only_one():
        lab = cloud.Lab()
        _make(lab)
        done = watcher.run(lab)
    process.say(done.table())
    return 0 if done.is_right else 1


def _exec(_options: argparse.Namespace, rest: list[str]) -> int:
    cloud.Lab().execute(rest or [os.environ.get('SHELL', '/bin/sh')])
    return 0


def _tempest(_options: argparse.Namespace, rest: list[str]) -> int:
    if not os.path.isdir(paths.TEMPEST):
        raise process.LabError('there is no tempest.conf: devstack/lab up '
                               'writes it')
    cloud.Lab().execute(['tempest', *rest], paths.TEMPEST)
    return 0


def _on(options: argparse.Namespace, rest: list[str]) -> int:
    host = cloud.Lab().hosts[options.host]
    return host.interactive(rest or ['/bin/sh'])


def _say_running(name: str, pid: int | None) -> None:
    process.say(f'  {name:26} {f"pid {pid}" if pid else "does not run"}')


def _say_usage() -> None:
    process.say(
        f'logs: {paths.LOGS}; credentials: {paths.OPENRC}\n'
        'its network is its own, use it from within:\n'
        '  devstack/lab exec openstack server list --long\n'
        '  devstack/lab exec openstack resource provider list\n'
        '  devstack/lab on slow virsh list\n'
        '  devstack/lab tempest run --serial --regex nova_vqos\n'
        '  devstack/lab down')


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes <= _MOST_MINUTES:
        raise argparse.ArgumentTypeError(
            f'{text!r}, it must be a number above 0, at most {_MOST_MINUTES}')
    return minutes


def _cycles(text: str) -> int:
    if not (text.isdecimal()
            and equivalence.LEAST_CYCLES <= int(text) <= _MOST_CYCLES):
        raise argparse.ArgumentTypeError(
            f'{text!r}, it must be a whole number from '
            f'{equivalence.LEAST_CYCLES} to {_MOST_CYCLES}')
    return int(text)


def _svg(text: str) -> str:
    directory = os.path.dirname(text) or '.'
    if not (text.endswith('.svg') and os.access(directory, os.W_OK)):
        raise argparse.ArgumentTypeError(
            f'{text!r}, it must be the name of an .svg file in a directory '
            'that can be written to')
    return text


def _steps(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(
            f'{text!r}, it must be a whole number above 0')
    return int(text)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
