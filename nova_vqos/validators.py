# SPDX-License-Identifier: Apache-2.0
"""The extra specs of CPU units, for Nova's API.

Loaded by nova-api through the entry point ``nova.api.extra_spec_validators``,
and asked from microversion 2.86 on, one extra spec at a time. What only the
whole flavor shows (contradictions, a claim in a suffixed group) the scheduler
filter and the compute driver refuse.

NOTE: nova-api does not start when this module cannot be imported: nothing
else of Nova's, and nothing of ours but the policy and its parts, is imported
here.
"""

from nova.api.validation.extra_specs import base

from nova_vqos import policy
from nova_vqos import units
from nova_vqos import work


class PolicyValidator(base.ExtraSpecValidator):
    """Answers with a text that names key, value, and what it may be."""

    def validate(self, name, value):
        """Check one extra spec.

        :raises nova.exception.ValidationError: when it is invalid; the API
            answers 400 with its text
        """
        try:
            policy.check_value(name, value)
        except policy.PolicyError as error:
            raise base.exception.ValidationError(
                f'Validation failed; {error}.') from error


_DESCRIPTIONS = {
    policy.CAP_KEY: (
        'CPU time beyond the units of the server. ``hard``: it never gets '
        'more. ``floor``: it may use idle CPUs.'),
    policy.QUANTUM_CLASS_KEY: (
        'The kind of work that a server is scheduled for. ``auto`` lets the '
        'host recognise it. Only hosts that offer a class accept such '
        'servers.'),
    policy.DD_BILLING_KEY: (
        'Billing of the CPU time that a host spends on the I/O of a server. '
        '``account``: the host measures it. ``charge``: the server also pays '
        'it out of its units.'),
    policy.GUARANTEE_KEY: (
        'Whether the units of a server are reserved for it on its host, which '
        'then gives it no less, whatever else runs. ``preferred``: where the '
        'host can. ``required``: only hosts that can accept such servers.'),
}


def register():
    """The validators, in the form that Nova loads."""
    return [
        # NOTE: Nova looks for the exact name first: this one precedes the
        # stock pattern for resources of any CUSTOM_ class.
        PolicyValidator(
            name=policy.UNITS_KEY,
            description=(
                'CPU units of the whole server; '
                f'{units.CU_PER_REFERENCE_PCPU} are the sustained speed of '
                'one reference pCPU. Shared equally by the vCPUs.'),
            value={'type': int, 'min': 1, 'max': units.MAX_UNITS},
        ),
        *(PolicyValidator(
            name=key,
            description=_DESCRIPTIONS[key],
            value={'type': str, 'enum': list(choices)},
        ) for key, choices in policy.CHOICES.items()),
        PolicyValidator(
            name=policy.WORK_KEY,
            description=(
                'The kind of work that the units are of, or kinds with '
                'weights. Its servers get their units in that work, not in '
                'the mean of all kinds. Only hosts that were measured with '
                'these kinds accept them. ``auto`` lets the agent correct '
                'the units by what it measures of the server itself.'),
            value={'type': str, 'pattern': work.PATTERN},
        ),
        PolicyValidator(
            name=policy.PROJECT_CEILING_KEY,
            description=(
                'CPU units that the servers of one project whose flavors have '
                'this share on each host. None gets more than its own units; '
                'what one leaves unused another may use. Where flavors differ '
                'the smallest number counts. Only hosts whose agent keeps '
                'ceilings accept such servers.'),
            value={'type': int, 'min': 1, 'max': units.MAX_UNITS},
        ),
        PolicyValidator(
            name=policy.BURST_KEY,
            description=(
                'CPU units that the whole server has while it bursts: more '
                'than its own. It spends what it saved when it used less. '
                'Only with vqos:burst_seconds, and only where the host has '
                'room.'),
            value={'type': int, 'min': 1, 'max': units.MAX_UNITS},
        ),
        PolicyValidator(
            name=policy.BURST_SECONDS_KEY,
            description=(
                'Seconds for which a server that saved all that it may can '
                'run at vqos:burst_cu.'),
            value={'type': int, 'min': 1, 'max': policy.MOST_BURST_SECONDS},
        ),
        # All other names below vqos: are refused here rather than by Nova,
        # whose text does not say which names there are.
        PolicyValidator(
            name=f'{policy.NAMESPACE}{{unknown}}',
            description='No other extra spec of this namespace is known.',
            value={'type': str},
            parameters=[{'name': 'unknown', 'pattern': '.*'}],
        ),
    ]
