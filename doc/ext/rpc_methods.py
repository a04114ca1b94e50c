# SPDX-License-Identifier: Apache-2.0
"""Sphinx directives: the agent's RPC, from the code of both of its sides."""

import dataclasses
import inspect

import described
import descriptions
import rpc_facts


class RpcMethods(described.Described):
    """All methods, with the version that brought them, and who uses them."""

    columns = ('Method', 'How', 'Since', 'By whom')
    widths = (20, 16, 10, 54)

    def facts(self):
        found = rpc_facts.asked()
        return {name: found[name] for name in rpc_facts.methods()}


class RpcAnswers(described.docutils.SphinxDirective):
    """What each method takes and does by its docstring, and its answer."""

    def run(self):
        text = []
        answers = rpc_facts.answers()
        for name, method in rpc_facts.methods().items():
            arguments = list(inspect.signature(method).parameters)[2:]
            words = inspect.getdoc(method).splitlines()
            if answers[name] is not type(None):
                words += ['', f'Answer: {rpc_facts.in_words(answers[name])}']
            text += ['', f'.. py:function:: {name}({", ".join(arguments)})',
                     '   :no-index:', '', *(f'   {line}' for line in words)]
        for name, kind in rpc_facts.records().items():
            text += ['', f'.. _{name}:', '', f'**{name}**: '
                     f'{inspect.getdoc(kind).partition(":ivar")[0].strip()}',
                     *(f'All of `{base.__name__}`_, and:'
                       for base in kind.__bases__
                       if dataclasses.is_dataclass(base)), '']
            text += descriptions.table(
                ('Field', 'Type', 'Meaning'), (25, 25, 50),
                [(f'``{field}``', words, meaning) for field, words, meaning
                 in rpc_facts.fields(kind)]).splitlines()
        return self.parse_text_to_nodes('\n'.join(text))


def setup(app):
    app.add_directive('rpc-methods', RpcMethods)
    app.add_directive('rpc-answers', RpcAnswers)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
