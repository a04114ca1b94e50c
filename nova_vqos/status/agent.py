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

"""Checks of a host's agent: that it lives, and that it can be asked."""

from collections.abc import Iterator, Mapping
import datetime
import json
import typing as ty

from oslo_config import cfg
import oslo_messaging

from nova_vqos import version
from nova_vqos.manage import errors
from nova_vqos.manage import fleet
from nova_vqos.status import findings
from nova_vqos.status import settings
from nova_vqos.status import worlds

_START = 'start nova-vqos-agent, or see in its log why it does not run'
_SHARED = (('vqos_agent', 'exchange'), ('vqos_agent', 'topic'))
_ANSWER_S = 3.0
_CELL = 'this host'
# Signs of life that an agent may leave out.
_MISSED = 3
# What two clocks, or one that was set, may differ by.
_CLOCK_S = 60


def look_at_life(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether the agent has just left a sign of life, and what it says."""
    path = world.compute.get('vqos', 'agent_state_path')
    text = world.read(path)
    if text is None:
        yield findings.failure(
            f'{path} is not there: the agent never ran on this boot', _START)
        return
    try:
        state = json.loads(text)
        seen_at = datetime.datetime.fromisoformat(state['seen_at'])
        age_s = (world.now - seen_at).total_seconds()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        yield findings.failure(
            f'{path} is no sign of life: {type(error).__name__}: {error}',
            'see who writes it, and restart nova-vqos-agent')
        return
    yield from _look_at_age(world, age_s)
    if state.get('hypervisor_connected') is not True:
        yield findings.failure(
            'the agent is not connected to libvirt: caps stay as they are',
            'start libvirt, or see in the log of the agent why not')
    alarms = state.get('alarms')
    for alarm in alarms if isinstance(alarms, list) else ():
        yield findings.warning(
            f'the agent raises an alarm: {alarm}',
            'do what it says, or see the guide to troubleshooting')
    yield findings.fact(f'the agent was seen {age_s:.0f} s ago')


def _look_at_age(world: worlds.World, age_s: float
                 ) -> Iterator[findings.Finding]:
    usual_s = _MISSED * world.own.get('vqos_agent', 'heartbeat_interval_s')
    longest_s = world.compute.get('vqos', 'agent_max_age_s')
    seen = f'the agent was last seen {age_s:.0f} s ago'
    if longest_s and age_s > longest_s:
        yield findings.failure(
            f'{seen}, more than [vqos] agent_max_age_s, {longest_s} s: this '
            'host takes no new servers with units', _START)
    elif age_s > usual_s:
        yield findings.warning(
            f'{seen}, and should be each {usual_s / _MISSED:g} s: it has '
            'ended, or hangs', _START)
    elif age_s < -_CLOCK_S:
        yield findings.warning(
            f'the last sign of life of the agent is {-age_s:.0f} s ahead of '
            'the clock', 'see that the clock is right')


def look_at_bus(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether agent and nova-compute can reach each other."""
    for group, name in _SHARED:
        theirs, ours = (read.get(group, name)
                        for read in (world.compute, world.own))
        if theirs != ours:
            yield findings.failure(
                f'{settings.label(group, name)} is {theirs} in '
                f'{world.compute} and {ours} in {world.own}: the agent hears '
                'of no server before its next look',
                'give both the same, and restart both')
    theirs, ours = (read.get(None, 'transport_url')
                    for read in (world.compute, world.own))
    if not ours:
        yield findings.warning(
            f'[DEFAULT] transport_url of {world.own} is not set: nobody can '
            'ask the agent, and accounts do not follow migrating servers',
            f'set it as in {world.compute}')
    elif theirs and _places(theirs) != _places(ours):
        # NOTE: never the URLs: there are passwords in them.
        yield findings.warning(
            f'[DEFAULT] transport_url of {world.own} names another message '
            f'bus than that of {world.compute}',
            "name that of the cell of nova-compute in both")
    yield findings.fact('both have the same bus, exchange and topic')


def _places(url: str) -> object:
    """The bus that an URL names, without its secrets; None: none at all."""
    try:
        parsed = oslo_messaging.TransportURL.parse(cfg.ConfigOpts(), url)
    except Exception:
        # Of each driver its own; what it says may have the URL in it.
        return None
    return (parsed.virtual_host,
            sorted((host.hostname, host.port) for host in parsed.hosts))


def look_at_answer(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether the agent answers over the bus, and what."""
    if not world.own.get(None, 'transport_url'):
        yield findings.skipped(f'{world.own} names no message bus')
        return
    try:
        answer = world.ask_agent()
    except worlds.Unanswered as error:
        yield findings.warning(
            f'the agent does not answer over the message bus: {error}',
            'see in its log whether it has reached the bus, and that no '
            'firewall is in between; caps are kept without')
        return
    installed = version.version()
    if answer.get('version') != installed:
        yield findings.warning(
            f'the agent that runs is of version {answer.get("version")}, '
            f'installed is {installed}', 'restart nova-vqos-agent')
    wrong = answer.get('wrong')
    if wrong and isinstance(wrong, list):
        yield findings.warning(
            f'the caps of {len(wrong)} servers are not as they should be: '
            f'{", ".join(map(str, wrong[:3]))}{" ..." * (len(wrong) > 3)}',
            'look again in a minute; then see in the log of the agent what '
            'keeps it from writing them')
    yield findings.fact(
        f'the agent answers: version {answer.get("version")}')


def ask(own: settings.Settings) -> Mapping[str, ty.Any]:
    """Ask the agent of this host how it is.

    :raises Unanswered: when it does not answer within seconds
    :raises Unreadable: when it cannot be told how to ask
    """
    host = own.get(None, 'host')
    # NOTE: this one, since oslo.messaging registers the options of its tracing
    # with it alone. It registers others, which are not all those of ours.
    conf = cfg.CONF
    try:
        conf([], default_config_files=list(own.files), default_config_dirs=[])
        transport = oslo_messaging.get_rpc_transport(conf)
    except Exception as error:
        # NOTE: not its text, in which an URL with its password may be.
        raise worlds.Unanswered(type(error).__name__) from None
    try:
        (answer,) = fleet.Fleet(
            {_CELL: transport}, exchange=own.get('vqos_agent', 'exchange'),
            topic=own.get('vqos_agent', 'topic'), timeout_s=_ANSWER_S,
        ).ask({host: _CELL}, 'get_host')
    except errors.ManageError as error:
        raise worlds.Unanswered(str(error)) from error
    if answer.value is None:
        raise worlds.Unanswered(answer.error)
    return answer.value
