# SPDX-License-Identifier: Apache-2.0
"""The service, put together of its parts."""

from collections.abc import Mapping
import typing as ty

from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from nova_vqos import wsgi_server
from nova_vqos.agent import rpcapi
from nova_vqos.vendordata import agents
from nova_vqos.vendordata import answers
from nova_vqos.vendordata import application
from nova_vqos.vendordata import failures
from nova_vqos.vendordata import keystone
from nova_vqos.vendordata import lookup

# A request waits for others' lookups at the most, and Nova may have many
# workers. Each has a body in memory.
_MOST_REQUESTS = 32
# That a client may take to ask, and to read: then Nova has given up.
_CLIENT_SLACK_S = 2.0
# The shares of all lookups that servers of one host may have, and questions to
# Nova.
_HOST_SHARE = 4
_NOVA_SHARE = 2


class ConfigurationInvalid(Exception):
    """An option is not what it has to be; the text says which."""


def make(conf: cfg.ConfigOpts, apis: Mapping[str, rpcapi.AgentAPI],
         compute: ty.Any = None) -> wsgi_server.Endpoint:
    """Make the service; nothing is connected yet.

    :param conf: with ``[vqos_vendordata]``; takes ``[keystone_authtoken]``
    :param apis: of the agents, by cell
    :param compute: adapter of Nova's API; None: by ``[keystone_authtoken]``
    :raises ConfigurationInvalid: when an option cannot be used
    """
    try:
        keystone.register_opts(conf)
        return _make(conf, apis, lookup.NovaServers(
            compute or _compute(conf)))
    except exceptions.ClientException as error:
        raise ConfigurationInvalid(f'[{keystone.GROUP}]: {error}') from error
    except cfg.Error as error:
        raise ConfigurationInvalid(str(error)) from error


def _make(conf: cfg.ConfigOpts, apis: Mapping[str, rpcapi.AgentAPI],
          nova: lookup.NovaServers) -> wsgi_server.Endpoint:
    options = conf.vqos_vendordata
    failed = failures.Failures()
    of_hosts = agents.Agents(
        apis, options.deadline_s, failed, agents.Limits(
            at_once=options.most_lookups,
            of_host_at_once=max(1, options.most_lookups // _HOST_SHARE),
            silent_s=options.keep_s))
    answering = answers.Answers(
        lookup.Lookup(nova.place, of_hosts.ask, failed,
                      max(1, options.most_lookups // _NOVA_SHARE)),
        keep_s=options.keep_s, most_lookups=options.most_lookups)
    callers = keystone.Callers(conf, most_at_once=_MOST_REQUESTS,
                               failed=failed)
    client_s = options.deadline_s + _CLIENT_SLACK_S
    return wsgi_server.Endpoint(
        application.make(answering.get, callers, options.deadline_s),
        str(options.listen_address), options.listen_port, name='vendordata',
        limits=wsgi_server.Limits(requests=_MOST_REQUESTS, longest_s=client_s,
                                  slow_s=client_s))


def _compute(conf: cfg.ConfigOpts) -> ty.Any:
    """Nova's API, as the user of [keystone_authtoken]."""
    options = conf.keystone_authtoken
    group = options.auth_section or keystone.GROUP
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
