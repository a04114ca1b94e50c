# SPDX-License-Identifier: Apache-2.0
"""The service, put together of its parts."""

from collections.abc import Iterable
import typing as ty

from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from nova_vqos import wsgi_server
from nova_vqos.agent import rpcapi
from nova_vqos.vendordata import answers
from nova_vqos.vendordata import application
from nova_vqos.vendordata import lookup

_AUTH = 'keystone_authtoken'
# A request waits for others' lookups at the most, and Nova may have many
# workers. Each has a body in memory.
_MOST_REQUESTS = 32
# That Keystone may take, and a client to ask.
_SLACK_S = 12.0
_CLIENT_SLACK_S = 2.0


class ConfigurationInvalid(Exception):
    """An option is not what it has to be; the text says which."""


def make(conf: cfg.ConfigOpts, agents: Iterable[rpcapi.AgentAPI],
         compute: ty.Any = None) -> wsgi_server.Endpoint:
    """Make the service; nothing is connected yet.

    :param conf: with ``[vqos_vendordata]``; takes ``[keystone_authtoken]``
    :param agents: those of each cell
    :param compute: adapter of Nova's API; None: by ``[keystone_authtoken]``
    :raises ConfigurationInvalid: when an option cannot be used
    """
    try:
        application.register_opts(conf)
        return _make(conf, agents, lookup.NovaServers(
            compute or _compute(conf)))
    except exceptions.ClientException as error:
        raise ConfigurationInvalid(f'[{_AUTH}]: {error}') from error
    except cfg.Error as error:
        raise ConfigurationInvalid(str(error)) from error


def _make(conf: cfg.ConfigOpts, agents: Iterable[rpcapi.AgentAPI],
          nova: lookup.NovaServers) -> wsgi_server.Endpoint:
    options = conf.vqos_vendordata
    answering = answers.Answers(
        lookup.Lookup(nova.place, agents, options.deadline_s),
        deadline_s=options.deadline_s, keep_s=options.keep_s,
        most_lookups=options.most_lookups)
    return wsgi_server.Endpoint(
        application.make(answering.get, conf), str(options.listen_address),
        options.listen_port, name='vendordata', limits=wsgi_server.Limits(
            requests=_MOST_REQUESTS,
            longest_s=options.deadline_s + _SLACK_S,
            slow_s=options.deadline_s + _CLIENT_SLACK_S))


def _compute(conf: cfg.ConfigOpts) -> ty.Any:
    """Nova's API, as the user of [keystone_authtoken]."""
    options = conf.keystone_authtoken
    group = options.auth_section or _AUTH
    auth = loading.load_auth_from_conf_options(conf, group)
    if auth is None:
        raise ConfigurationInvalid(f'[{group}] auth_type must be set, such as '
                                 'to password, with the user that it needs')
    session = loading.session.Session().load_from_options(
        auth=auth, cert=options.certfile, key=options.keyfile,
        cacert=options.cafile, insecure=options.insecure,
        timeout=conf.vqos_vendordata.deadline_s)
    return adapter.Adapter(
        session, service_type='compute',
        # Clouds need not have an internal one.
        interface=[options.interface, 'public'],
        region_name=options.region_name)
