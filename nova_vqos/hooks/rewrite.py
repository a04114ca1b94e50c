# SPDX-License-Identifier: Apache-2.0
"""Rewrites the CPU tuning of a guest that migrates to this host.

``on_error`` in hook.conf says what happens when that fails:

``pass``, the default
    Only pins and limits of the other host's agent are removed from the XML.
    The guest starts with the cap of the host that it left, and the agent
    corrects it as soon as it sees the guest. Also where this host is too slow
    for the guest: a cap of a whole pCPU would look like a kept promise.
``refuse``
    The migration is cancelled, and the guest stays on its host.

Servers without units need no configuration and no profile: they always pass.
"""

import os
import sys

from nova_vqos import domain_xml
from nova_vqos import light_typing
from nova_vqos import policy as policies

if light_typing.TYPE_CHECKING:
    import typing as ty

    from nova_vqos import cputune

# Far more than a guest needs: the XML of one with 4 vCPUs has 6 KiB.
MAX_XML_BYTES = 4 * 1024 * 1024

_SECTION = 'hook'
_ON_ERROR = ('pass', 'refuse')
_PERIODS = ('period_us', 'cache_max_period_us')
_MAX_DIGITS = 9


class HookError(Exception):
    """The hook cannot rewrite the XML."""


class Settings:
    """The hook's configuration.

    :ivar on_error: ``pass`` or ``refuse``
    :ivar profile_path: of this host; None: the default
    :ivar period_us: of the quotas; None: the default
    :ivar cache_max_period_us: of servers of quantum class ``cache``; None: the
        default
    :ivar quantum_slices: by quantum class, as text; '': the default
    :ivar error: why the configuration is invalid; '': it is valid
    """

    __slots__ = ('cache_max_period_us', 'error', 'on_error', 'period_us',
                 'profile_path', 'quantum_slices')

    def __init__(self) -> None:
        self.on_error = 'pass'
        self.profile_path: str | None = None
        self.period_us: int | None = None
        self.cache_max_period_us: int | None = None
        self.quantum_slices = ''
        self.error = ''


def load_settings(path: str) -> Settings:
    """Read the hook's configuration; a missing file is as an empty one.

    Raises nothing: an invalid configuration has an ``on_error`` too, which
    says what happens to the guest.
    """
    settings = Settings()
    # NOTE: the import of the parser takes 4 ms, and most hosts have no file.
    if not os.path.exists(path):
        return settings
    import configparser

    from nova_vqos import files
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(files.read(path).decode(), path)
        given = dict(parser.items(_SECTION)) if parser.sections() else {}
    except (files.FileError, ValueError, configparser.Error) as error:
        settings.error = f'{path} cannot be read: {error}'
        return settings
    on_error = given.pop('on_error', settings.on_error)
    if on_error in _ON_ERROR:
        settings.on_error = on_error
    else:
        settings.error = (f'{path}: on_error is {on_error!r}, it must be '
                          'pass or refuse')
    settings.profile_path = given.pop('profile', None)
    for name in _PERIODS:
        period_us = given.pop(name, None)
        if period_us is None:
            continue
        # NOTE: int() accepts other scripts' digits, and raises at thousands.
        if (period_us.isascii() and period_us.isdecimal()
                and len(period_us) <= _MAX_DIGITS):
            setattr(settings, name, int(period_us))
        else:
            settings.error = (f'{path}: {name} is {period_us!r}, it must be '
                              'a number of microseconds')
    settings.quantum_slices = given.pop('quantum_slices', '')
    if given:
        settings.error = (
            f'{path}: unknown option {", ".join(given)}, there are on_error, '
            f'profile, {", ".join(_PERIODS)}, quantum_slices')
    return settings


def without_foreign_limits(xml: bytes) -> bytes:
    """The XML of a server with units, without the limits on its I/O.

    The other host's agent set them for its own CPUs. On this host they would
    slow the threads that receive the guest; this host's agent sets its own
    limits. The same bytes where nothing changes.

    :raises nova_vqos.domain_xml.DomainXmlError: when it is not the XML of a
        domain
    """
    # NOTE: few domains have a limit, and each migration waits for this.
    if not any(f'<{name}>'.encode() in xml for name in domain_xml.LIMITS):
        return xml
    extra_specs = domain_xml.read(xml).extra_specs or {}
    if policies.UNITS_KEY not in extra_specs:
        return xml
    return domain_xml.without_limits(xml)


def rewritten(xml: bytes, settings: Settings) -> tuple[bytes, str]:
    """The XML of a guest with its CPU tuning on this host.

    :returns: the XML, the same bytes where nothing changes; and the change,
        for the log, '' where there is none
    :raises Exception: typed ones of domain_xml, policy, files and units, when
        the tuning cannot be computed
    """
    domain = domain_xml.read(xml)
    if domain.extra_specs is None:
        return xml, ''
    policy = policies.parse(domain.extra_specs, domain.vcpus or 0)
    if policy is None or policy.units is None:
        return xml, ''
    # As in the agent: hotplugged vCPUs share the units of the server.
    policy = policy._replace(
        vcpus=max(policy.vcpus, domain.vcpus_online or 0))
    if settings.error:
        raise HookError(settings.error)
    # Late: servers without units need not wait for these.
    from nova_vqos import cputune
    from nova_vqos.conf import default_path
    from nova_vqos.profile import coefficients
    profile = coefficients.load(
        settings.profile_path or default_path.PROFILE)
    # NOTE: guests of Nova share measured pCPUs only.
    pcpus = profile.pcpus & (domain.pcpus or profile.pcpus) or profile.pcpus
    tune = cputune.compute(
        policy, profile, pcpus, cgroup_version=cputune.host_cgroup_version(),
        periods=periods(settings))
    if tune is None:
        return xml, ''
    if tune.cap is None:
        quota_us = period_us = None
    else:
        quota_us, period_us = tune.cap.quota_us, tune.cap.period_us
    result = domain_xml.with_cputune(
        xml, shares=tune.shares, quota_us=quota_us, period_us=period_us)
    return result, (f'{policy.units} CU: shares {tune.shares}, quota '
                    f'{quota_us or "none"}, period {period_us or "none"} us')


def periods(settings: Settings) -> 'cputune.Periods':
    """The CFS periods of this host.

    :raises ValueError: when one is out of its range, also where it does not
        apply to this server
    :raises HookError: likewise
    """
    from nova_vqos import cputune
    from nova_vqos import units
    from nova_vqos.quantum import classes
    periods = cputune.DEFAULT_PERIODS
    if settings.period_us is not None:
        periods = periods._replace(plain_us=settings.period_us)
    if settings.cache_max_period_us is not None:
        units.check_period_us('cache_max_period_us',
                              settings.cache_max_period_us)
        periods = periods._replace(
            cache_longest_us=settings.cache_max_period_us)
    if settings.quantum_slices:
        try:
            slices_us = classes.slices_us(
                classes.split(settings.quantum_slices))
        except classes.SliceInvalid as error:
            raise HookError(f'quantum_slices: {error}') from error
        periods = periods._replace(cache_slice_us=slices_us[classes.CACHE])
    return periods


def run(name: str, source: 'ty.BinaryIO', target: 'ty.BinaryIO',
        config: str, timeout_s: int) -> int:
    """Print a guest's XML with its CPU tuning on this host.

    :param name: of the guest, for the log
    :param source: the guest's XML
    :param target: gets the whole result; nothing where the guest is refused
    :param config: path of the hook's configuration
    :param timeout_s: bound of all but reading and writing
    :returns: exit status: 0, or 1 to cancel the migration
    """
    xml = result = source.read(MAX_XML_BYTES + 1)
    on_error = 'pass'
    try:
        _set_alarm(timeout_s)
        settings = load_settings(config)
        on_error = settings.on_error
        if len(xml) > MAX_XML_BYTES:
            raise HookError(f'the XML has more than {MAX_XML_BYTES} bytes')
        # Pins and limits of the other host are wrong here in any case.
        result = without_foreign_limits(domain_xml.without_own_disk_limits(
            domain_xml.without_own_pins(xml)))
        result, done = rewritten(result, settings)
        if done:
            _log(name, done, error=False)
    # NOTE: libvirt's migration depends on this process.
    except Exception as error:
        if on_error == 'refuse':
            _log(name, f'refused: {_reason(error)}')
            return 1
        changed = ('unchanged' if result is xml else
                   "without the other host's pins and limits, else unchanged")
        _log(name, f'passed {changed}: {_reason(error)}')
    finally:
        _set_alarm(0)
    target.write(result)
    while len(xml) > MAX_XML_BYTES and (block := source.read(1 << 20)):
        target.write(block)
    target.flush()
    return 0


def _set_alarm(timeout_s: int) -> None:
    import signal
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(timeout_s)


def _raise_timeout(*_args: object) -> None:
    raise HookError('it took too long')


def _reason(error: Exception) -> str:
    text = ' '.join(str(error).split())
    if isinstance(error, (ValueError, HookError)) or text.startswith('/'):
        return text
    return f'{type(error).__name__}: {text}'


def _log(name: str, message: str, *, error: bool = True) -> None:
    """Write a line to syslog; an error also to stderr.

    libvirt logs the hook's stderr only where the hook fails.
    """
    import syslog
    line = ''.join(character if character.isprintable() else '?'
                   for character in f'{name}: {message}')
    if error and sys.stderr:
        sys.stderr.write(f'nova-vqos hook: {line}\n')
    syslog.openlog('nova-vqos-hook', syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR if error else syslog.LOG_INFO, line)
