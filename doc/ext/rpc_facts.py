# SPDX-License-Identifier: Apache-2.0
"""The agent's RPC, as both of its sides have it. No Sphinx is needed."""

import dataclasses
import inspect
import re
import types
import typing as ty
from unittest import mock

from nova_vqos import primitives
from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi

_CASTS = ('wake', 'claim_ledger', 'hand_over', 'claim_speeds',
          'hand_over_speeds')
_WORDS = {str: 'text', primitives.Lines: 'text of many lines',
          bool: 'true or false', int: 'whole number', float: 'number',
          object: 'a mapping'}


def methods():
    """:returns: methods of the agent's side, by name"""
    return dict(inspect.getmembers(
        manager.AgentManager,
        lambda member: inspect.isfunction(member)
        and not member.__name__.startswith('_')))


def asked():
    """How callers send each method.

    :returns: by the name of the agent's method: how it is sent, and the
        version that an agent has to have
    """
    calls = {
        method.name: ('call to any' if method is rpcapi.COMPARE_PUSHED
                      else 'call to one', method.since)
        for method in vars(rpcapi).values()
        if isinstance(method, rpcapi.Method)}
    return calls | dict(map(_cast_by, _CASTS))


def _cast_by(name):
    with mock.patch.object(rpcapi.oslo_messaging, 'get_rpc_client') as made:
        method = getattr(rpcapi.AgentAPI(None), name)
    client = made.return_value
    parameters = inspect.signature(method).parameters
    # What has a default may be of a later version than the method.
    method(**{name: mock.MagicMock() for name, each in parameters.items()
              if each.default is each.empty})
    prepared, = client.prepare.call_args_list
    sent, = client.prepare.return_value.method_calls
    if 'source' in parameters:
        how = 'cast to one or all'
    else:
        how = 'cast to all' if prepared.kwargs.get('fanout') else 'cast to one'
    return sent.args[1], (how, prepared.kwargs.get('version')
                          or made.call_args.args[1].version)


def answers():
    """:returns: the answer of each method, by its name; None: none"""
    return {name: ty.get_type_hints(inspect.unwrap(method))['return']
            for name, method in methods().items()}


def records():
    """:returns: all records of answers by name, each before what it has"""
    found = {}

    def add(kind):
        kind = _is_in(kind)
        if kind in _WORDS or kind is types.NoneType or kind.__name__ in found:
            return
        found[kind.__name__] = kind
        for base in kind.__bases__:
            if dataclasses.is_dataclass(base):
                add(base)
        for one in ty.get_type_hints(kind).values():
            add(one)
    for kind in answers().values():
        add(kind)
    return found


def fields(kind):
    """:returns: of a record its own fields: name, type and meaning"""
    meanings = {name: ' '.join(text.split()) for name, text in re.findall(
        r':ivar (\w+): ((?:.+\n?)(?:    .*\n?)*)', inspect.getdoc(kind))}
    inherited = {name for base in kind.__bases__
                 for name in ty.get_type_hints(base)}
    return [(name.rstrip('_'), in_words(one), _marked(meanings.get(name, '')))
            for name, one in ty.get_type_hints(kind).items()
            if name not in inherited]


def in_words(kind):
    """:returns: the type of a field, as JSON has it"""
    origin, arguments = ty.get_origin(kind), ty.get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin in (types.UnionType, ty.Union):
        return f'{in_words(arguments[0])} or null'
    if origin is tuple and arguments[-1] is not ...:
        return f'list of {len(arguments)} {in_words(arguments[0])}s'
    if origin is not None:
        return (f'{"list" if origin is tuple else "mapping"} of '
                f'{in_words(_element(kind))}')
    return f'`{kind.__name__}`_'


def _element(kind):
    """:returns: what a list, or a mapping, has"""
    arguments = ty.get_args(kind)
    return arguments[0 if ty.get_origin(kind) is tuple else 1]


def _is_in(kind):
    """:returns: the type of the values in a field, however many"""
    while ty.get_origin(kind) is not None:
        kind = (ty.get_args(kind)[0] if ty.get_origin(kind) in (
            types.UnionType, ty.Union) else _element(kind))
    return kind


def _marked(words):
    """With names of fields as code, unless they are marked already."""
    return re.sub(r'(`+[^`]+`+)|\b([a-z]+(?:_[a-z]+)+)\b',
                  lambda found: found[1] or f'``{found[2]}``', words)
