# SPDX-License-Identifier: Apache-2.0
"""The service as WSGI has it: Nova's question in, figures out.

What is asked is an input of the network, whoever sends it: its size is
bounded, Keystone says who it is, and errors say nothing of the inside.
"""

from collections.abc import Callable, Iterable
import http
import io
import json
import logging
import math
import typing as ty
import uuid

from keystonemiddleware import auth_token
from keystonemiddleware import opts
from oslo_config import cfg

from nova_vqos.vendordata import figures

LOG = logging.getLogger(__name__)

#: Nova sends the user data of a server along (64 KiB), and its metadata: 128
#: items by default, of 510 characters, which JSON may write as 12 bytes each.
MOST_BODY_BYTES = 1024 * 1024
_MOST_PROJECT_CHARACTERS = 255
_AUTH = 'keystone_authtoken'

_Environ = dict[str, ty.Any]
_Application = Callable[[_Environ, ty.Any], Iterable[bytes]]


class _Refusal(Exception):
    """A request that is not answered."""

    def __init__(self, status: http.HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[keystone_authtoken]``.

    :param conf: with ``[vqos_vendordata]``
    """
    for group, options in opts.list_auth_token_opts():
        conf.register_opts(options, group=group)
    # A Keystone that hangs would be waited for without a limit, and asked
    # three times more.
    conf.set_default('http_connect_timeout',
                     math.ceil(conf.vqos_vendordata.deadline_s), _AUTH)
    conf.set_default('http_request_max_retries', 0, _AUTH)


def make(get: Callable[[str, str], figures.Figures | None],
         conf: cfg.ConfigOpts) -> _Application:
    """The application, behind Keystone's middleware.

    :param get: see :meth:`nova_vqos.vendordata.answers.Answers.get`
    :param conf: with ``[vqos_vendordata]`` and ``[keystone_authtoken]``
    """
    answering = _Answering(get, frozenset(conf.vqos_vendordata.caller_roles))
    return _Bounded(auth_token.AuthProtocol(
        answering, {'oslo_config_config': conf, 'delay_auth_decision': False}))


class _Bounded:
    """Reads requests of bounded size, and lets no error out.

    The body is read before Keystone is asked: to close a connection with
    unread data resets it, and the caller would not see why.
    """

    def __init__(self, application: _Application) -> None:
        self._application = application

    def __call__(self, environ: _Environ,
                 start_response: ty.Any) -> Iterable[bytes]:
        try:
            body = _read(environ)
            return self._application(
                {**environ, 'wsgi.input': io.BytesIO(body)}, start_response)
        except _Refusal as refusal:
            return _respond(start_response, refusal.status,
                            {'error': str(refusal)})
        except Exception:
            LOG.exception('A request cannot be answered')
            return _respond(start_response,
                            http.HTTPStatus.INTERNAL_SERVER_ERROR,
                            {'error': 'internal error'})


class _Answering:
    """Answers callers that Keystone knows."""

    def __init__(self, get: Callable[[str, str], figures.Figures | None],
                 roles: frozenset[str]) -> None:
        self._get = get
        self._roles = roles

    def __call__(self, environ: _Environ,
                 start_response: ty.Any) -> Iterable[bytes]:
        roles = {role.strip() for role
                 in environ.get('HTTP_X_ROLES', '').split(',')}
        if roles.isdisjoint(self._roles):
            raise _Refusal(http.HTTPStatus.FORBIDDEN,
                           'the caller has none of the roles of '
                           '[vqos_vendordata] caller_roles')
        found = self._get(*_question(environ['wsgi.input'].read()))
        if found is None:
            raise _Refusal(http.HTTPStatus.NOT_FOUND,
                           'the project has no such server')
        return _respond(start_response, http.HTTPStatus.OK, found.to_dict())


def _read(environ: _Environ) -> bytes:
    """:raises _Refusal: when it is not a POST of bounded size"""
    if environ.get('PATH_INFO', '') not in ('', '/'):
        raise _Refusal(http.HTTPStatus.NOT_FOUND, 'there is only /')
    if environ['REQUEST_METHOD'] != 'POST':
        raise _Refusal(http.HTTPStatus.METHOD_NOT_ALLOWED, 'only POST')
    length = environ.get('CONTENT_LENGTH') or ''
    if not (length.isascii() and length.isdigit()) or len(length) > 9:
        raise _Refusal(http.HTTPStatus.LENGTH_REQUIRED,
                       'Content-Length must be a number of bytes')
    if int(length) > MOST_BODY_BYTES:
        raise _Refusal(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                       f'the body may have {MOST_BODY_BYTES} bytes')
    body: bytes = environ['wsgi.input'].read(int(length))
    if len(body) != int(length):
        raise _Refusal(http.HTTPStatus.BAD_REQUEST, 'the body is incomplete')
    return body


def _question(body: bytes) -> tuple[str, str]:
    """The UUID of a server and a project, of what Nova sends.

    :raises _Refusal: when they are not in it
    """
    try:
        asked = json.loads(body)
        server_uuid, project_id = asked['instance-id'], asked['project-id']
        if not (isinstance(project_id, str)
                and 0 < len(project_id) <= _MOST_PROJECT_CHARACTERS):
            raise ValueError
        if str(uuid.UUID(server_uuid)) != server_uuid:
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError,
            RecursionError):
        raise _Refusal(
            http.HTTPStatus.BAD_REQUEST,
            'the body must be JSON with instance-id, a UUID, and project-id'
        ) from None
    return server_uuid, project_id


def _respond(start_response: ty.Any, status: http.HTTPStatus,
             document: dict[str, object]) -> list[bytes]:
    body = json.dumps(document).encode()
    start_response(f'{status.value} {status.phrase}', [
        ('Content-Type', 'application/json'),
        ('Content-Length', str(len(body))),
        *([('Allow', 'POST')]
          if status == http.HTTPStatus.METHOD_NOT_ALLOWED else [])])
    return [body]
