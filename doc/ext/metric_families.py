# SPDX-License-Identifier: Apache-2.0
"""A Sphinx directive: the metrics of the agent."""

import described
import descriptions

from nova_vqos.metrics import families


class Metrics(described.docutils.SphinxDirective):
    """All metrics whose names begin with the argument."""

    required_arguments = 1

    def run(self):
        prefix, = self.arguments
        found = [one for one in families.ALL if one.name.startswith(prefix)]
        if not found:
            raise self.error(f'no metric begins with {prefix}')
        return self.parse_text_to_nodes(descriptions.table(
            ('Metric', 'Type', 'What it is'), (42, 10, 48),
            [(f'``{one.name}``', one.kind, _with_labels(one))
             for one in found]))


def _with_labels(family):
    """What a metric is, and by what; those of all servers are said once."""
    own = [f'``{label}``' for label in family.labels
           if label not in families.SERVER_LABELS]
    return f'{family.help}; by {", ".join(own)}' if own else family.help


def setup(app):
    app.add_directive('metrics', Metrics)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
