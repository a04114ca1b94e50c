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

"""Rewrites the CPU tuning of a guest that comes in to this host.

What happens when that cannot be done is the operator's choice
(``on_error`` in hook.conf):

``pass``, the default
    The XML passes unchanged but for pins and limits of the other host's agent,
    and the guest comes in with the cap of the host it left; the agent
    corrects that as soon as it sees the guest. Also where this host is too
    slow for the guest: a cap of all that the host has would look like a kept
    promise, and is for nobody to choose here.
``refuse``
    The migration is cancelled, and the guest stays where it is.

Servers without units need no configuration and no profile: they pass in
either case.
"""

import os
import re
import sys
import typing as ty

from nova_vqos import domain_xml
from nova_vqos import policy as policies

if ty.TYPE_CHECKING:
    from nova_vqos import tuning

# Far above any real guest's: one of 4 vCPUs has 6 KiB.
MAX_XML_BYTES = 4 * 1024 * 1024

_SECTION = 'hook'
_ON_ERROR = ('pass', 'refuse')
_PERIODS = ('period_us', 'cache_max_period_us')
# NOTE: int() takes other scripts' digits too, and raises at thousands of them.
_PERIOD_PATTERN = re.compile('[0-9]{1,9}')


class HookError(Exception):
    """What keeps the hook from doing its work."""


class Settings:
    """The hook's configuration.

    :ivar on_error: ``pass`` or ``refuse``
    :ivar profile_path: where this host's profile is; None: the usual place
    :ivar period_us: of the quotas; None: the usual one
    :ivar cache_max_period_us: of servers of quantum class ``cache``; likewise
    :ivar quantum_slices: by quantum class, as text; likewise
    :ivar error: what is wrong with the configuration, '' if nothing is
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
    """Read the hook's configuration; none is as good as an empty one.

    :returns: settings, never an exception: on_error has to be known also
        where the rest is wrong, and then says what becomes of the guest
    """
    settings = Settings()
    # NOTE: importing a parser takes 4 ms, which most hosts need not spend.
    if not os.path.exists(path):
        return settings
    import configparser
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with open(path, encoding='utf-8') as file:
            parser.read_file(file)
        given = dict(parser.items(_SECTION)) if parser.sections() else {}
    except (OSError, ValueError, configparser.Error) as error:
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
        if _PERIOD_PATTERN.fullmatch(period_us):
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
    """The XML of a server with units without the limits on its I/O.

    The other host's agent set them, for its own CPUs. Here they would slow
    the threads that take the guest in; this host's agent sets its own. The
    very same bytes where nothing is to change.

    :raises nova_vqos.domain_xml.DomainXmlError: when it is not the XML of a
        domain
    """
    # NOTE: few domains have one, and each migration waits for this.
    if not any(f'<{name}>'.encode() in xml for name in domain_xml.LIMITS):
        return xml
    extra_specs = domain_xml.read(xml).extra_specs or {}
    if policies.UNITS_KEY not in extra_specs:
        return xml
    return domain_xml.without_limits(xml)


def rewritten(xml: bytes, settings: Settings) -> tuple[bytes, str]:
    """The XML of a guest with the CPU tuning that it gets on this host.

    :returns: the XML, the very same bytes where nothing is to change; and
        what was done, for the log, '' where that is nothing
    :raises Exception: typed ones of domain_xml, policy, profile and units,
        when it cannot be told what the guest is to get
    """
    domain = domain_xml.read(xml)
    if domain.extra_specs is None:
        return xml, ''
    policy = policies.parse(domain.extra_specs, domain.vcpus or 0)
    if policy is None or policy.units is None:
        return xml, ''
    # As in the agent: hotplugged vCPUs share the units with the others.
    policy = policy._replace(
        vcpus=max(policy.vcpus, domain.vcpus_online or 0))
    if settings.error:
        raise HookError(settings.error)
    # Only now: servers without units need not wait for these.
    from nova_vqos import profile as profiles
    from nova_vqos import tuning
    profile = profiles.load(settings.profile_path or profiles.DEFAULT_PATH)
    # NOTE: pCPUs that were not measured are none that guests of Nova share.
    pcpus = profile.pcpus & (domain.pcpus or profile.pcpus) or profile.pcpus
    tune = tuning.tune(
        policy, profile, pcpus, cgroup_version=tuning.host_cgroup_version(),
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


def periods(settings: Settings) -> 'tuning.Periods':
    """The CFS periods of this host.

    :raises ValueError: when one is out of its range, also where this server
        does not get it
    :raises HookError: likewise
    """
    from nova_vqos import tuning
    from nova_vqos import units
    from nova_vqos.quantum import classes
    periods = tuning.DEFAULT_PERIODS
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


def run(name: str, source: ty.BinaryIO, target: ty.BinaryIO, config: str,
        timeout_s: int) -> int:
    """Print a guest's XML as this host has to have it.

    :param name: of the guest, for the log
    :param source: the guest's XML
    :param target: where the result goes: all of it, or, refused, nothing
    :param config: path of the hook's configuration
    :param timeout_s: bound of all but reading and writing
    :returns: exit status: 0, or 1 to cancel
    """
    xml = result = source.read(MAX_XML_BYTES + 1)
    on_error = 'pass'
    try:
        _set_alarm(timeout_s)
        settings = load_settings(config)
        on_error = settings.on_error
        if len(xml) > MAX_XML_BYTES:
            raise HookError(f'the XML has more than {MAX_XML_BYTES} bytes')
        # These would be wrong here, whatever else can be done.
        result = without_foreign_limits(domain_xml.without_own_pins(xml))
        result, done = rewritten(result, settings)
        if done:
            _log(name, done, error=False)
    # NOTE: libvirt's migration depends on this process, whatever happens.
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
    """One line to syslog, and, of an error, to stderr.

    libvirt keeps the hook's stderr only where the hook fails.
    """
    import syslog
    line = ''.join(character if character.isprintable() else '?'
                   for character in f'{name}: {message}')
    if error and sys.stderr:
        sys.stderr.write(f'nova-vqos hook: {line}\n')
    syslog.openlog('nova-vqos-hook', syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR if error else syslog.LOG_INFO, line)
