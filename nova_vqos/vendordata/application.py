# SPDX-License-Identifier: Apache-2.0
"""The service as WSGI has it: Nova's question in, figures out.

What is asked is an input of the network, whoever sends it: its size is
bounded, Keystone says who it is, and errors say nothing of the inside.
"""

from collections.abc import Callable, Iterable
import http
import json
import logging
import time
import typing as ty
import uuid

from nova_vqos.vendordata import figures
from nova_vqos.vendordata import keystone

LOG = logging.getLogger(__name__)

#: Nova sends the user data of a server along (64 KiB), and its metadata: 128
#: items by default, of 510 characters, which JSON may write as 12 bytes each.
MOST_BODY_BYTES = 1024 * 1024
_MOST_PROJECT_CHARACTERS = 255

_Environ = dict[str, ty.Any]
_Application = Callable[[_Environ, ty.Any], Iterable[bytes]]


class _Refusal(Exception):
    """A request that is not answered."""

    def __init__(self, status: http.HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def make(get: Callable[[str, str, float], figures.Figures | None],
         callers: keystone.Callers, deadline_s: float) -> _Application:
    """The application.

    :param get: see :meth:`nova_vqos.vendordata.answers.Answers.get`
    :param callers: who may ask
    :param deadline_s: within which a request that was read is answered
    """
    return _Service(get, callers, deadline_s)


class _Service:
    """Answers those who may ask, and lets no error out.

    The body is read before Keystone is asked: to close a connection with
    unread data resets it, and the caller would not see why.
    """

    def __init__(self, get: Callable[[str, str, float],
                                     figures.Figures | None],
                 callers: keystone.Callers, deadline_s: float) -> None:
        self._get = get
        self._callers = callers
        self._deadline_s = deadline_s

    def __call__(self, environ: _Environ,
                 start_response: ty.Any) -> Iterable[bytes]:
        try:
            return self._answer(environ, start_response)
        except _Refusal as refusal:
            return keystone.respond(start_response, refusal.status,
                                    {'error': str(refusal)})
        except keystone.KeystoneSilent:
            return keystone.respond(
                start_response, http.HTTPStatus.SERVICE_UNAVAILABLE,
                {'error': 'Keystone does not say who asks'})
        except Exception:
            LOG.exception('A request cannot be answered')
            return keystone.respond(
                start_response, http.HTTPStatus.INTERNAL_SERVER_ERROR,
                {'error': 'internal error'})

    def _answer(self, environ: _Environ,
                start_response: ty.Any) -> Iterable[bytes]:
        body = _read(environ)
        until_s = time.monotonic() + self._deadline_s
        refused = self._callers.check(environ, self._deadline_s)
        if refused is not None:
            start_response(refused.status, refused.headers)
            return [refused.body]
        found = self._get(*_question(body),
                          max(0.0, until_s - time.monotonic()))
        if found is None:
            raise _Refusal(http.HTTPStatus.NOT_FOUND,
                           'the project has no such server')
        return keystone.respond(start_response, http.HTTPStatus.OK,
                                found.to_dict())


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
