# SPDX-License-Identifier: Apache-2.0
"""Watcher on the lab's cloud: it levels units by live migrations of its own.

It is done as doc/source/admin/watcher.rst has it, by the same commands.
Watcher's programs are in an environment of their own, which the test level
watcher fills.
"""

import json
import os
import shlex
import typing as ty

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import daemons
from nova_vqos_lab import openstack
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import services

_TOP = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
_BIN = os.path.join(_TOP, 'build', 'watcher', 'bin')
#: Of servers, their flavor, their image and the audit template.
NAME = 'watcher'
CU = 20
# All on one host, which both could have: half of its units, at least.
_SERVERS = 3
_SPREAD_THRESHOLD = 10
_MODEL_LIMIT_S = 120
_AUDIT_LIMIT_S = 90
_PLAN_LIMIT_S = 300
# Above that of Watcher's own messages.
_COMMAND_LIMIT_S = 90
_INTERVAL_S = 1


class Move(ty.NamedTuple):
    """A live migration that an action plan had done.

    :ivar is_right: whether the server is where the plan has it, with the cap
        of that host and its claim there alone
    """

    server: str
    source: str
    destination: str
    cap: tuple[int, int] | None
    is_right: bool


class Levelled(ty.NamedTuple):
    """What was done.

    :ivar plan: the state of the action plan in the end
    :ivar used_cu: units that are sold, by host, before and after
    :ivar next_moves: that another audit proposes afterwards
    """

    plan: str
    moves: tuple[Move, ...]
    used_cu: tuple[dict[str, int], dict[str, int]]
    next_moves: int

    @property
    def is_right(self) -> bool:
        """Whether all of it is as it must be."""
        return (self.plan == 'SUCCEEDED' and bool(self.moves)
                and all(one.is_right for one in self.moves)
                and not self.next_moves)

    def table(self) -> str:
        """:returns: lines for people"""
        lines = [f'{"server":36} {"from":5} {"to":5} {"quota/period us":>16} '
                 'right']
        lines += [f'{one.server:36} {one.source:5} {one.destination:5} '
                  f'{"/".join(map(str, one.cap or ())):>16} '
                  f'{"yes" if one.is_right else "NO"}' for one in self.moves]
        before, after = self.used_cu
        lines += [f'CU sold on {host}: {before[host]}, then {after[host]}'
                  for host in before]
        lines.append(f'action plan: {self.plan}; another audit proposes '
                     f'{self.next_moves} moves')
        return '\n'.join(lines)


def run(lab: clouds.Lab) -> Levelled:
    """Have Watcher level units that are all on one host.

    :param lab: with nova_vqos and without servers
    :raises process.LabError: when a step fails
    """
    start(lab)
    with lab.cloud() as cloud:
        servers = _boot(cloud)
        try:
            return _level(lab, cloud, servers)
        finally:
            client.delete_all(servers)
            cloud.delete_flavor(NAME)
            cloud.delete_images(NAME)


def start(lab: clouds.Lab) -> None:
    """Start Watcher on the controller; what runs of it is left alone.

    :raises process.LabError: when a step fails
    """
    if not os.path.exists(f'{_BIN}/watcher-applier'):
        raise process.LabError(f'no Watcher in {_BIN}: tools/test.sh watcher '
                               'installs it')
    with process.stage("Watcher's API, decision engine and applier"), (
            lab.controller_network()):
        path = f'{paths.etc("watcher")}/watcher.conf'
        config.write_ini(path, _settings())
        os.chmod(path, 0o640)
        daemons.run('watcher-db-manage', [
            f'{_BIN}/watcher-db-manage', '--config-file', path, 'upgrade'])
        with openstack.connect() as cloud:
            openstack.make_service(cloud, 'watcher', 'infra-optim')
        services.start_wsgi(
            services.WATCHER_API, 'watcher', 'watcher.wsgi.api', _BIN,
            '--pyargv', f'--config-file {path}')
        for daemon in (services.WATCHER_ENGINE, services.WATCHER_APPLIER):
            daemon.start([f'{_BIN}/{daemon.name}', '--config-file', path])


def _settings() -> config.Settings:
    """:returns: watcher.conf"""
    return {
        'DEFAULT': {'transport_url': config.transport_url(),
                    'state_path': paths.data('watcher'),
                    'log_dir': paths.LOGS},
        'database': {'connection': config.database_url('watcher')},
        'keystone_authtoken': config.auth_token('watcher'),
        'watcher_clients_auth': config.credentials('watcher'),
        'collector': {'collector_plugins': 'compute'},
        # The lab's Nova sends no notifications, by which it would know of new
        # servers at once.
        'watcher_cluster_data_model_collectors.compute': {'period': 10},
        'nova': {'migration_interval': '1'},
        'oslo_concurrency': {'lock_path': paths.data('watcher-locks')},
        'watcher_strategies.vqos_unit_balance': {
            'nova_vqos_config_file': paths.MANAGE_CONF},
    }


def _boot(cloud: client.Cloud) -> list[client.Server]:
    """Boot servers on one host."""
    with process.stage(f'{_SERVERS} servers of {CU} CU on host '
                       f'{profiles.REFERENCE}'):
        cloud.make_flavor(NAME, {policy.UNITS_KEY: str(CU)})
        image = cloud.make_image(NAME, guest.find_kernel(),
                                 clouds.initramfs(), config.IDLE_GUEST)
        servers = [cloud.boot(f'{NAME}-{number}', NAME, image,
                              profiles.REFERENCE)
                   for number in range(_SERVERS)]
        for server in servers:
            server.wait_active()
    return servers


def _level(lab: clouds.Lab, cloud: client.Cloud,
           servers: list[client.Server]) -> Levelled:
    _wait_known(lab, servers)
    if NAME not in [one['Name'] for one
                    in _optimize(lab, 'audittemplate list')]:
        _optimize(lab, 'audittemplate create', NAME, 'workload_balancing',
                  '--strategy', 'vqos_unit_balance')
    used_cu = _used_cu(lab, cloud)
    plan = _audit(lab)
    actions = [_optimize(lab, 'action show', one['UUID'])['Parameters']
               for one in _optimize(lab, 'action list', '--action-plan', plan)
               if one['Action'] == 'migrate']
    with process.stage(f'live migrations by Watcher: {len(actions)}'):
        if actions:
            _optimize(lab, 'actionplan start', plan)
        state = _wait_for_state(lab, 'actionplan', plan, _PLAN_LIMIT_S)
    moves = tuple(_moved(lab, cloud, one) for one in actions)
    # Of the hosts that they are on now.
    _wait_known(lab, servers)
    again = _optimize(lab, 'action list', '--action-plan', _audit(lab))
    return Levelled(
        state, moves, (used_cu, _used_cu(lab, cloud)),
        sum(one['Action'] == 'migrate' for one in again))


def _moved(lab: clouds.Lab, cloud: client.Cloud,
           action: dict[str, ty.Any]) -> Move:
    """What became of a live migration."""
    uuid, destination = action['resource_id'], action['destination_node']
    server = client.Server(cloud, uuid, action['resource_name'])
    cap = lab.hosts[destination].vcpu_cap(server.domain)
    claims = {provider: claim[policy.RESOURCE_CLASS]
              for provider, claim in server.allocations().items()}
    return Move(
        uuid, action['source_node'], destination, cap,
        server.host == destination
        and cap == lab.profiles.cap(destination, CU)
        and claims == {cloud.provider(destination): CU})


def _wait_known(lab: clouds.Lab, servers: list[client.Server]) -> None:
    """Wait until Watcher's model of the cloud has servers on their hosts."""
    wanted = {(server.uuid, server.host) for server in servers}

    def is_known() -> bool:
        try:
            rows = _optimize(lab, 'datamodel list')
        except process.LabError:
            # There is none yet.
            return False
        return wanted <= {(row['Server UUID'], row['Node Host Name'])
                          for row in rows}

    process.wait_until(
        is_known, _MODEL_LIMIT_S, "the servers in Watcher's model",
        log=services.WATCHER_ENGINE.log, alive=services.WATCHER_ENGINE.alive,
        interval_s=_INTERVAL_S)


def _audit(lab: clouds.Lab) -> str:
    """:returns: the UUID of the action plan that an audit made"""
    with process.stage('an audit by vqos_unit_balance'):
        audit = _optimize(
            lab, 'audit create', '--audit-template', NAME, '--parameter',
            f'spread_threshold={_SPREAD_THRESHOLD}')['UUID']
        state = _wait_for_state(lab, 'audit', audit, _AUDIT_LIMIT_S)
    if state != 'SUCCEEDED':
        raise process.LabError(f'the audit is {state}, see '
                               f'{services.WATCHER_ENGINE.log}')
    (plan,) = _optimize(lab, 'actionplan list', '--audit', audit)
    return str(plan['UUID'])


def _wait_for_state(lab: clouds.Lab, kind: str, uuid: str,
                    limit_s: float) -> str:
    """:returns: in which an audit or an action plan ends"""
    def ended() -> str | None:
        state = str(_optimize(lab, f'{kind} show', uuid)['State'])
        return (state if state not in ('PENDING', 'ONGOING') else None)

    return str(process.wait_until(
        ended, limit_s, f'the end of {kind} {uuid}',
        log=services.WATCHER_ENGINE.log, interval_s=_INTERVAL_S))


def _used_cu(lab: clouds.Lab, cloud: client.Cloud) -> dict[str, int]:
    return {name: cloud.usages(name).get(policy.RESOURCE_CLASS, 0)
            for name in lab.hosts}


def _optimize(lab: clouds.Lab, command: str, *arguments: str) -> ty.Any:
    """:returns: what `openstack optimize` prints"""
    done = process.run(
        lab.inside([f'{_BIN}/openstack', 'optimize', *shlex.split(command),
                    *arguments, '-f', 'json']),
        env=lab.environment(), limit_s=_COMMAND_LIMIT_S)
    return json.loads(done.stdout)
