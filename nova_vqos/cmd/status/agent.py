# SPDX-License-Identifier: Apache-2.0
"""Checks of a host's agent: its heartbeat, bus and answer."""

from collections.abc import Iterator
import datetime
import typing as ty

from oslo_config import cfg
import oslo_messaging

from nova_vqos import agent_state
from nova_vqos import files
from nova_vqos import version
from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.status import config_files
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines
from nova_vqos.cmd.status import nova_config

_START = 'start nova-vqos-agent, or look up in its log why it does not run'
_SHARED = (('vqos_agent', 'exchange'), ('vqos_agent', 'topic'))
_ANSWER_S = 3.0
_CELL = 'this host'
# Heartbeats that an agent may miss.
_MISSED = 3
# Tolerated difference of two clocks, or of a clock that was set.
_CLOCK_S = 60


def check_heartbeat(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the heartbeat of the agent is fresh and reports no problem."""
    path = machine.compute.get('vqos', 'agent_state_path')
    text = machine.read(path)
    if text is None:
        yield findings.failure(
            f'{path} does not exist: the agent never ran on this boot',
            _START)
        return
    try:
        state = agent_state.from_text(text)
    except files.FileInvalid as error:
        yield findings.failure(
            f'{path} cannot be used: {error}',
            'find out which program writes it, and restart nova-vqos-agent')
        return
    age_s = (machine.now - ty.cast(datetime.datetime, state.seen_at)
             ).total_seconds()
    yield from _check_age(machine, age_s)
    if not state.connected:
        yield findings.failure(
            'the agent is not connected to libvirt and corrects no cap',
            'start libvirt, or look up the reason in the log of the agent')
    for alarm in state.alarms:
        yield findings.warning(
            f'the agent raises an alarm: {alarm}',
            'follow it, or see the guide to troubleshooting')
    yield findings.fact(f'the last heartbeat is {age_s:.0f} s old')


def _check_age(machine: machines.Machine, age_s: float
               ) -> Iterator[findings.Finding]:
    interval_s = machine.own.get('vqos_agent', 'heartbeat_interval_s')
    longest_s = machine.compute.get('vqos', 'agent_max_age_s')
    age = f'the last heartbeat of the agent is {age_s:.0f} s old'
    if longest_s and age_s > longest_s:
        yield findings.failure(
            f'{age}, more than [vqos] agent_max_age_s, {longest_s} s: this '
            'host accepts no new servers with units', _START)
    elif age_s > _MISSED * interval_s:
        yield findings.warning(
            f'{age}, and one is due each {interval_s:g} s: the agent has '
            'ended, or hangs', _START)
    elif age_s < -_CLOCK_S:
        yield findings.warning(
            f'the last heartbeat of the agent is {-age_s:.0f} s ahead of the '
            'clock', 'check the clock')


def check_bus(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether agent and nova-compute can reach each other."""
    for group, name in _SHARED:
        yield from nova_config.compare(
            machine, group, name, findings.failure,
            ': the agent misses new servers until it next lists them all')
    theirs, ours = (config.get(None, 'transport_url')
                    for config in (machine.compute, machine.own))
    if not ours:
        yield findings.warning(
            f'[DEFAULT] transport_url of {machine.own} is not set: the agent '
            'answers no questions, and accounts do not follow migrating '
            'servers', f'set it as in {machine.compute}')
    elif theirs and _places(theirs) != _places(ours):
        # NOTE: never the URLs: there are passwords in them.
        yield findings.warning(
            f'[DEFAULT] transport_url of {machine.own} names another message '
            f'bus than that of {machine.compute}',
            "name the bus of nova-compute's cell in both")
    yield findings.fact('both have the same bus, exchange and topic')


def _places(url: str) -> object:
    """The bus that an URL names, without its secrets; None: none at all."""
    try:
        parsed = oslo_messaging.TransportURL.parse(cfg.ConfigOpts(), url)
    except Exception:
        # Each driver has its own error, whose text may contain the URL.
        return None
    return (parsed.virtual_host,
            sorted((host.hostname, host.port) for host in parsed.hosts))


def check_answer(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the agent answers over the bus and reports no problem."""
    if not machine.own.get(None, 'transport_url'):
        yield findings.skipped(f'{machine.own} names no message bus')
        return
    try:
        answer = machine.ask_agent()
    except machines.Unanswered as error:
        yield findings.warning(
            f'the agent does not answer over the message bus: {error}',
            'look up in its log whether it has reached the bus, and check '
            'for a firewall in between; it caps servers without a bus too')
        return
    installed = version.version()
    if answer.version != installed:
        yield findings.warning(
            f'version {answer.version} of the agent runs, {installed} is '
            'installed', 'restart nova-vqos-agent')
    wrong = answer.wrong
    if wrong:
        yield findings.warning(
            f'{len(wrong)} servers have wrong caps: '
            f'{", ".join(wrong[:3])}{" ..." * (len(wrong) > 3)}',
            'run this check again in a minute; then look up in the log of '
            'the agent why it does not write them')
    yield findings.fact(f'the agent answers: version {answer.version}')


def ask(own: config_files.ConfigFiles) -> host_report.Host:
    """Ask the agent of this host for its state.

    :raises Unanswered: when it does not answer within seconds
    :raises Unreadable: when its configuration is invalid
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
        raise machines.Unanswered(type(error).__name__) from None
    try:
        (answer,) = fanout.Fleet(
            {_CELL: transport}, exchange=own.get('vqos_agent', 'exchange'),
            topic=own.get('vqos_agent', 'topic'), timeout_s=_ANSWER_S,
        ).ask({host: _CELL}, rpcapi.GET_HOST)
    except fanout.BusError as error:
        raise machines.Unanswered(str(error)) from error
    if answer.value is None:
        raise machines.Unanswered(answer.error)
    return answer.value
