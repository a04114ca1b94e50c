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

"""What the commands of nova-vqos-manage reach others by."""

from collections.abc import Iterable, Mapping
import os
import re
import typing as ty

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import opts as messaging_opts

from nova_vqos.agent import rpcapi
from nova_vqos.conf import agent as agent_conf
from nova_vqos.conf import manage as manage_conf
from nova_vqos.conf import vqos as vqos_conf
from nova_vqos.manage import errors
from nova_vqos.manage import fleet as fleets

DEFAULT_CONFIG = '/etc/nova-vqos/nova-vqos.conf'
DEFAULT_CELL = 'default'

_RABBIT = 'oslo_messaging_rabbit'
_QUEUE_TTL_S = 60


class Connections:
    """Buses and Nova, as far as a command uses them."""

    def __init__(self, conf: cfg.ConfigOpts, *, config_file: str | None,
                 os_cloud: str | None, timeout_s: float | None) -> None:
        """Prepare; nothing is read or connected yet.

        :param conf: takes the options
        :param config_file: None: the default
        :param os_cloud: of clouds.yaml; None: what OS_CLOUD or OS_* say
        :param timeout_s: in place of the configuration's
        """
        self._conf = conf
        self._config_file = config_file or DEFAULT_CONFIG
        self._os_cloud = os_cloud
        self._timeout_s = timeout_s
        self._fleet: fleets.Fleet | None = None
        self._cloud: ty.Any = None

    def fleet(self) -> fleets.Fleet:
        """The agents of all cells, as the configuration names them.

        :raises ManageError: when it cannot be read
        """
        if self._fleet is None:
            conf = self._load()
            urls = {DEFAULT_CELL: None, **_cells(conf.vqos_manage.cells)}
            self._fleet = fleets.Fleet(
                {name: self._transport(name, url)
                 for name, url in urls.items()},
                exchange=conf.vqos_agent.exchange,
                topic=conf.vqos_agent.topic,
                timeout_s=self._timeout_s or conf.vqos_manage.timeout_s)
        return self._fleet

    def options(self) -> cfg.ConfigOpts:
        """The options of the configuration file.

        :raises ManageError: when it cannot be read
        """
        self.fleet()
        return self._conf

    def cloud(self) -> ty.Any:
        """An openstack.connection.Connection to Nova.

        :raises ManageError: when there are no credentials
        """
        if self._cloud is None:
            from nova_vqos.manage import nova
            self._cloud = nova.connect(self._os_cloud)
        return self._cloud

    def hosts(self, given: Iterable[str] = ()) -> dict[str, str]:
        """Hosts to be asked, with the cell of each, as Fleet.ask() takes them.

        :param given: by name; none: Nova is asked for its compute services
        :raises ManageError: when Nova cannot be asked, or has none
        """
        cells = self.fleet().cells
        cell = cells[0] if len(cells) == 1 else fleets.ANY_CELL
        names = list(given)
        if not names:
            from nova_vqos.manage import nova
            names = nova.compute_hosts(self.cloud())
        return dict.fromkeys(names, cell)

    def _load(self) -> cfg.ConfigOpts:
        conf = self._conf
        agent_conf.register_opts(conf)
        manage_conf.register_opts(conf)
        vqos_conf.register_opts(conf)
        for group, options in messaging_opts.list_opts():
            if group in (None, _RABBIT):
                conf.register_opts(options, group=group)
        path = self._config_file
        if not os.path.isfile(path):
            raise errors.ManageError(f'there is no file {path}: give '
                                     '--config-file')
        if not os.access(path, os.R_OK):
            raise errors.ManageError(
                f'{path} cannot be read: run as a user that may, or give '
                '--config-file')
        try:
            conf([], default_config_files=[path], default_config_dirs=[])
        except cfg.ConfigFileParseError as error:
            # What it says of the line may be a secret.
            found = re.search(r':(\d+),', str(error))
            raise errors.ManageError(
                f'{path} is no configuration file'
                + (f', see line {found[1]}' if found else '')) from None
        except (cfg.Error, ValueError, OSError) as error:
            raise errors.ManageError(f'{path}: {error}') from error
        found_in = conf.get_location('transport_url')
        if found_in is None or not found_in.location.is_user_controlled:
            raise errors.ManageError(
                f'{path} does not say the transport_url of the message bus, '
                'in [DEFAULT]')
        # One connection sends all questions: each more takes longer to make
        # than it saves.
        conf.set_default('rpc_conn_pool_size', 1, group=_RABBIT)
        conf.set_default('conn_pool_min_size', 1, group=_RABBIT)
        # The queue of its answers stays behind: half an hour by default.
        conf.set_default('rabbit_transient_queues_ttl', _QUEUE_TTL_S,
                         group=_RABBIT)
        return conf

    def _transport(self, cell: str, url: str | None) -> ty.Any:
        # NOTE: messages of oslo.messaging quote the URL, with the password.
        try:
            return oslo_messaging.get_rpc_transport(
                self._conf, url, allowed_remote_exmods=[rpcapi.__name__])
        except Exception:
            raise errors.ManageError(
                f'the transport URL of cell {cell} in {self._config_file} is '
                'none that can be used') from None


def _cells(lines: Iterable[str]) -> Mapping[str, str]:
    """:raises ManageError: when one is no NAME=URL, or a name comes twice"""
    cells: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, sign, url = line.partition('=')
        if not sign or not name.strip() or not url.strip():
            raise errors.ManageError(
                f'[vqos_manage] cells, line {number}: not NAME=URL')
        if name.strip() in {DEFAULT_CELL, *cells}:
            raise errors.ManageError(
                f'[vqos_manage] cells, line {number}: there are two cells '
                f'{name.strip()!r}')
        cells[name.strip()] = url.strip()
    return cells
