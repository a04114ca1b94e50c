# SPDX-License-Identifier: Apache-2.0
"""How Nova and Placement are asked over HTTP.

Importing openstacksdk takes a second, which commands with --host need not
wait for: it is imported where it is used.
"""

from collections.abc import Callable
import typing as ty

from nova_vqos.agent import fanout
from nova_vqos.cmd.manage import errors

_CONFLICT = 409
_NOT_FOUND = 404
_NAMES = {'compute': 'Nova', 'placement': 'Placement'}

_Answer = ty.TypeVar('_Answer')


class Service:
    """A service of a cloud; whatever fails raises ManageError."""

    def __init__(self, connection: ty.Any, kind: str) -> None:
        """
        :param connection: openstack.connection.Connection
        :param kind: compute or placement
        """
        self._connection = connection
        self._kind = kind

    def get(self, path: str, version: str,
            read: Callable[[ty.Any], _Answer]) -> _Answer:
        """Get something.

        :param version: of the API
        :param read: reads the body of the answer
        """
        return self._ask('get', path, version,
                         lambda answer: read(answer.json()))

    def get_if_any(self, path: str, version: str,
                   read: Callable[[ty.Any], _Answer]) -> _Answer | None:
        """Get something, as :meth:`get` does; None: there is no such thing."""
        return self._ask(
            'get', path, version, lambda answer: None
            if answer.status_code == _NOT_FOUND else read(answer.json()),
            expected=_NOT_FOUND)

    def change(self, method: str, path: str, version: str,
               **options: ty.Any) -> str:
        """Change something.

        :param method: of HTTP, in lower case
        :returns: the code of a conflict: it is in use, or is not any more as
            it was read; '': it was changed
        """
        return self._ask(
            method, path, version, lambda answer: _conflict(answer.json())
            if answer.status_code == _CONFLICT else '',
            expected=_CONFLICT, **options)

    def _ask(self, method: str, path: str, version: str,
             read: Callable[[ty.Any], _Answer], expected: int | None = None,
             **options: ty.Any) -> _Answer:
        """
        :param read: reads the answer
        :param expected: status that is no error
        """
        def send() -> _Answer:
            from openstack import exceptions
            answer = getattr(getattr(self._connection, self._kind), method)(
                path, microversion=version, **options)
            if answer.status_code != expected:
                exceptions.raise_from_response(answer)
            return read(answer)
        return ask(_NAMES[self._kind], send)


def ask(service: str, send: Callable[[], _Answer]) -> _Answer:
    """Ask a service.

    :param service: its name
    :raises ManageError: when it does not answer, or refuses
    """
    from keystoneauth1 import exceptions as keystone
    from openstack import exceptions
    try:
        return send()
    except (keystone.ConnectionError, exceptions.NotSupported) as error:
        # NOTE: openstacksdk calls a service that is down one of no supported
        # version: it asks its versions first.
        raise errors.ManageError(
            f'{service} cannot be asked: {fanout.one_line(error)} (is it '
            'running, and its endpoint in the catalog right?)') from error
    except (exceptions.SDKException, keystone.ClientException) as error:
        raise errors.ManageError(
            f'{service} cannot be asked: {fanout.one_line(error)} '
            '(administrator\'s credentials come from OS_* or --os-cloud)'
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.ManageError(
            f'the answer of {service} is not what its API documents'
            ) from error


def _conflict(body: ty.Any) -> str:
    """Its code, which only Placement gives."""
    errors_found = body.get('errors') or [{}]
    return str(errors_found[0].get('code') or 'conflict')
