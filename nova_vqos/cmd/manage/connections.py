# SPDX-License-Identifier: Apache-2.0
"""The connections of the commands: buses of all cells, and Nova."""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import importlib
import logging
import os
import re
import typing as ty

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import opts as messaging_opts

from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import errors
from nova_vqos.conf import agent
from nova_vqos.conf import default_path
from nova_vqos.conf import manage
from nova_vqos.conf import vqos

DEFAULT_CELL = 'default'
#: In the environment: the configuration file, where none is given.
FILE_VARIABLE = 'NOVA_VQOS_CONFIG_FILE'

# They log what a command reports in its own words, at times with a secret.
_TALKATIVE = ('oslo', 'oslo_messaging', 'amqp', 'kombu', 'stevedore')
_RABBIT = 'oslo_messaging_rabbit'
# NOTE: oslo.messaging registers these groups with the CONF of the process
# alone, and reads them in the one that a transport was made with. Its own
# conffixture has them from the same modules; older releases lack the second.
_ONLY_IN_CONF = ('metrics', 'tracing')
_QUEUE_TTL_S = 60


def quiet_bus() -> None:
    """Let libraries of the message bus log nothing that is no crash."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)


class Connections:
    """Connects to buses and Nova when a command uses them."""

    def __init__(self, conf: cfg.ConfigOpts, *, config_file: str | None,
                 connect: Callable[[], cloud.Cloud], timeout_s: float | None,
                 file_option: str = '--config-file') -> None:
        """Prepare; nothing is read or connected yet.

        :param conf: takes the options
        :param config_file: None: that of the environment, or the default
        :param connect: to Nova and Placement
        :param timeout_s: None: that of the configuration
        :param file_option: of the program, for config_file
        """
        self._conf = conf
        self._config_file = (config_file or os.environ.get(FILE_VARIABLE)
                             or default_path.CONFIG)
        self._connect = connect
        self._timeout_s = timeout_s
        self._file_option = file_option
        self._is_loaded = False
        self._fleet: fanout.Fleet | None = None
        self._cloud: cloud.Cloud | None = None

    def fleet(self) -> fanout.Fleet:
        """The agents of all cells, as the configuration names them.

        :raises ManageError: when it cannot be read
        """
        if self._fleet is None:
            conf = self._prepare_bus()
            urls = {DEFAULT_CELL: None, **_cells(conf.vqos_manage.cells)}
            self._fleet = fanout.Fleet(
                {name: self._transport(name, url)
                 for name, url in urls.items()},
                exchange=conf.vqos_agent.exchange,
                topic=conf.vqos_agent.topic,
                timeout_s=self._timeout_s or conf.vqos_manage.timeout_s)
        return self._fleet

    def options(self) -> cfg.ConfigOpts:
        """The options of the configuration file, which may name no bus.

        :raises ManageError: when it cannot be read
        """
        if not self._is_loaded:
            self._load()
            self._is_loaded = True
        return self._conf

    def cloud(self) -> cloud.Cloud:
        """Nova and Placement.

        :raises ManageError: when there are no credentials
        """
        if self._cloud is None:
            self._cloud = self._connect()
        return self._cloud

    def hosts(self, given: Iterable[str] = ()) -> dict[str, str]:
        """Cell by host, for Fleet.ask().

        :param given: by name; none: Nova is asked for its compute services
        :raises ManageError: when Nova cannot be asked, or has none
        """
        cells = self.fleet().cells
        cell = cells[0] if len(cells) == 1 else fanout.ANY_CELL
        return dict.fromkeys(list(given) or self.cloud().hosts(), cell)

    def _load(self) -> None:
        conf = self._conf
        agent.register_opts(conf)
        manage.register_opts(conf)
        vqos.register_opts(conf)
        for group, options in messaging_opts.list_opts():
            if group in (None, _RABBIT):
                conf.register_opts(options, group=group)
        for name in _ONLY_IN_CONF:
            with contextlib.suppress(ImportError):
                module = importlib.import_module(
                    f'oslo_messaging._{name}.client')
                group = f'oslo_messaging_{name}'
                conf.register_opts(getattr(module, group), group=group)
        path = self._config_file
        if not os.path.isfile(path):
            raise errors.ManageError(
                f'there is no file {path}: the file that {self._file_option} '
                f'or {FILE_VARIABLE} names is to have the options of '
                'nova_vqos, and transport_url of the message bus, over which '
                'agents are asked')
        if not os.access(path, os.R_OK):
            raise errors.ManageError(
                f'{path} cannot be read: run as a user that may, or give '
                f'{self._file_option}')
        try:
            conf([], default_config_files=[path], default_config_dirs=[])
        except cfg.ConfigFileParseError as error:
            # The text of the error may have a secret in it.
            found = re.search(r':(\d+),', str(error))
            raise errors.ManageError(
                f'{path} is no configuration file'
                + (f', see line {found[1]}' if found else '')) from None
        except (cfg.Error, ValueError, OSError) as error:
            raise errors.ManageError(f'{path}: {error}') from error

    def _prepare_bus(self) -> cfg.ConfigOpts:
        conf = self.options()
        found_in = conf.get_location('transport_url')
        if found_in is None or not found_in.location.is_user_controlled:
            raise errors.ManageError(
                f'{self._config_file} has no transport_url of the message '
                'bus in [DEFAULT]')
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
                f'the transport URL of cell {cell} in {self._config_file} '
                'cannot be used') from None


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
