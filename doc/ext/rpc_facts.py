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

"""The agent's RPC, as both of its sides have it. No Sphinx is needed."""

import inspect
import re
from unittest import mock

from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi

_WORDS = {'call': 'asked', 'cast': 'told'}
#: Of what nobody but nova-vqos-manage asks, of many hosts at once.
OF_MANAGE = ('one is asked', '1.2')


def methods():
    """:returns: methods of the agent's side, by name"""
    return dict(inspect.getmembers(
        manager.AgentManager,
        lambda member: inspect.isfunction(member)
        and not member.__name__.startswith('_')))


def asked():
    """What is sent by each method of the side of those who ask.

    :returns: by the name of the agent's method: how it is sent, and the
        version that an agent has to have
    """
    return dict(_sent_by(name) for name, member in inspect.getmembers(
        rpcapi.AgentAPI, inspect.isfunction) if not name.startswith('_'))


def _sent_by(name):
    with mock.patch.object(rpcapi.oslo_messaging, 'get_rpc_client') as made:
        api = rpcapi.AgentAPI(None)
    method = getattr(api, name)
    client = made.return_value
    method(*map(_value, inspect.signature(method).parameters.values()))
    prepared, = client.prepare.call_args_list
    sent, = client.prepare.return_value.method_calls
    if prepared.kwargs.get('fanout'):
        how = 'all are'
    else:
        how = 'one is' if prepared.kwargs.get('server') else 'any is'
    least = made.call_args.args[1].version
    return sent.args[1], (f'{how} {_WORDS[sent[0]]}',
                          prepared.kwargs.get('version') or least)


def _value(parameter):
    """An argument that goes through; nobody looks at it."""
    kind = str(parameter.annotation)
    if 'Mapping' in kind:
        return {}
    return 1 if re.search(r'\b(int|float)\b', kind) else 'x'


def with_lists(docstring):
    """A docstring whose answer is a list, as far as it has several parts.

    Docstrings have it as a sentence, which is longer than a reader's breath:
    parts are divided by semicolons, but for those within brackets.
    """
    def as_list(found):
        words = ' '.join(found[1].split())
        parts = re.findall(r'(?:[^;(]|\((?:[^()]|\([^()]*\))*\))+', words)
        if len(parts) == 1:
            return f':returns: {_marked(words)}\n'
        items = '\n'.join(f'    * {_marked(part.strip())}' for part in parts)
        return f':returns:\n{items}\n'
    return re.sub(r':returns:((?:.+\n)(?:    .*\n)*)', as_list,
                  f'{docstring}\n')


def _marked(words):
    """With names of fields as code, unless they are marked already."""
    return re.sub(r'(`+[^`]+`+)|\b([a-z]+(?:_[a-z]+)+)\b',
                  lambda found: found[1] or f'``{found[2]}``', words)
