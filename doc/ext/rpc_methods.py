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


"""Sphinx directives: the agent's RPC, from the code of both of its sides."""

import inspect

import described
import rpc_facts


class RpcMethods(described.Described):
    """All methods, with the version that brought them, and who uses them."""

    columns = ('Method', 'How', 'Since', 'By whom')
    widths = (20, 16, 10, 54)

    def facts(self):
        found = rpc_facts.asked()
        return {name: found.get(name, rpc_facts.OF_MANAGE)
                for name in rpc_facts.methods()}


class RpcAnswers(described.docutils.SphinxDirective):
    """What each method takes, does and returns, by its docstring."""

    def run(self):
        text = []
        for name, method in rpc_facts.methods().items():
            arguments = list(inspect.signature(method).parameters)[2:]
            words = rpc_facts.with_lists(inspect.getdoc(method))
            text += ['', f'.. py:function:: {name}({", ".join(arguments)})',
                     '   :no-index:', '',
                     *(f'   {line}' for line in words.splitlines())]
        return self.parse_text_to_nodes('\n'.join(text))


def setup(app):
    app.add_directive('rpc-methods', RpcMethods)
    app.add_directive('rpc-answers', RpcAnswers)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
