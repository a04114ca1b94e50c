# SPDX-License-Identifier: Apache-2.0
"""Who asks, as Keystone says, within a limit of time.

Anyone who reaches the port can have Keystone asked about a token. So a
Keystone that hangs is asked by few threads, and then left alone for a while:
else each made-up token would hold a thread.
"""

from collections.abc import Callable, Iterable
import functools
import http
import io
import json
import logging
import math
import threading
import time
import typing as ty

from keystoneauth1 import exceptions
from keystonemiddleware import auth_token
from keystonemiddleware import exceptions as middleware_exceptions
from keystonemiddleware import opts
from oslo_config import cfg

from nova_vqos.agent import fanout
from nova_vqos.vendordata import failures
from nova_vqos.vendordata import workers

LOG = logging.getLogger(__name__)

GROUP = 'keystone_authtoken'
#: For so long a Keystone that hung is not asked again.
RETRY_S = 5.0

_NAME = 'Keystone'
_CONFIRMED = http.HTTPStatus.OK

_Environ = dict[str, ty.Any]


class KeystoneSilent(Exception):
    """Keystone does not say who asks."""


class Refused(ty.NamedTuple):
    """What a caller is answered who may not ask."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[keystone_authtoken]``.

    :param conf: with ``[vqos_vendordata]``
    """
    for group, options in opts.list_auth_token_opts():
        conf.register_opts(options, group=group)
    # A Keystone that hangs would be waited for without a limit, and asked
    # three times more.
    conf.set_default('http_connect_timeout',
                     math.ceil(conf.vqos_vendordata.deadline_s), GROUP)
    conf.set_default('http_request_max_retries', 0, GROUP)


class Callers:
    """Checks who asks, by keystonemiddleware."""

    def __init__(self, conf: cfg.ConfigOpts, *, most_at_once: int,
                 failed: failures.Failures,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        :param conf: with ``[vqos_vendordata]`` and ``[keystone_authtoken]``
        :param most_at_once: callers, for whom Keystone is asked
        :param failed: takes that Keystone fails
        :param clock: in seconds
        """
        self._roles = frozenset(conf.vqos_vendordata.caller_roles)
        self._middleware = auth_token.AuthProtocol(self._judge, {
            'oslo_config_config': conf, 'delay_auth_decision': False})
        self._workers = workers.Workers('keystone', most_at_once)
        self._failed = failed
        self._clock = clock
        self._lock = threading.Lock()
        # None: it does not hang.
        self._ask_again_at_s: float | None = None

    def check(self, environ: _Environ, wait_s: float) -> Refused | None:
        """Whether a caller may ask.

        :param environ: as WSGI has it
        :param wait_s: for Keystone
        :returns: None: it may
        :raises KeystoneSilent: when Keystone does not say, or hung just now
        """
        if not self._may_ask():
            raise KeystoneSilent
        # A request that hangs shall not hold the body as well.
        asked = self._workers.start(functools.partial(self._ask, {
            **environ, 'wsgi.input': io.BytesIO(), 'CONTENT_LENGTH': '0'}))
        if asked is None:
            raise KeystoneSilent
        try:
            found = asked.result(wait_s)
        except TimeoutError:
            with self._lock:
                self._ask_again_at_s = self._clock() + RETRY_S
            self._failed.record(_NAME, 'hangs', f'no answer within {wait_s:g} '
                                's')
            raise KeystoneSilent from None
        except (exceptions.ClientException,
                middleware_exceptions.KeystoneMiddlewareException) as error:
            self._record_answer(type(error).__name__, fanout.one_line(error))
            raise KeystoneSilent from error
        if found.status.startswith('5'):
            self._record_answer(found.status, 'see the line of '
                                'keystonemiddleware before this one')
            raise KeystoneSilent
        self._record_answer()
        return None if found.status.startswith(str(_CONFIRMED.value)) else (
            found)

    def _may_ask(self) -> bool:
        """Whether to ask Keystone: one caller at a time, after it hung."""
        with self._lock:
            if self._ask_again_at_s is None:
                return True
            now_s = self._clock()
            if now_s < self._ask_again_at_s:
                return False
            self._ask_again_at_s = now_s + RETRY_S
            return True

    def _record_answer(self, kind: str = '', text: str = '') -> None:
        """
        :param kind: of a failure; '': it was none
        """
        with self._lock:
            self._ask_again_at_s = None
        if kind:
            self._failed.record(_NAME, kind, text)
        else:
            self._failed.end(_NAME)

    def _ask(self, environ: _Environ) -> Refused:
        """What the middleware answers, in place of us or for us."""
        begun: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]],
                           *_error: ty.Any) -> None:
            begun.append((status, headers))
        body = b''.join(self._middleware(environ, start_response))
        return Refused(*begun[-1], body)

    def _judge(self, environ: _Environ,
               start_response: ty.Any) -> Iterable[bytes]:
        """Answers callers whose token is valid."""
        roles = {role.strip() for role
                 in environ.get('HTTP_X_ROLES', '').split(',')}
        if not roles.isdisjoint(self._roles):
            return respond(start_response, _CONFIRMED, {})
        return respond(start_response, http.HTTPStatus.FORBIDDEN, {
            'error': 'the caller has none of the roles of [vqos_vendordata] '
            'caller_roles'})


def respond(start_response: ty.Any, status: http.HTTPStatus,
            document: dict[str, object]) -> list[bytes]:
    """Answer with a document, as JSON."""
    body = json.dumps(document).encode()
    start_response(f'{status.value} {status.phrase}', [
        ('Content-Type', 'application/json'),
        ('Content-Length', str(len(body))),
        *([('Allow', 'POST')]
          if status == http.HTTPStatus.METHOD_NOT_ALLOWED else [])])
    return [body]
