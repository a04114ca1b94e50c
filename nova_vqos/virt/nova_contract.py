# SPDX-License-Identifier: Apache-2.0
"""Whether the installed Nova has what the driver builds upon.

A subclass of Nova's libvirt driver has no contract with it. If Nova renamed
a method that the driver overrides, it would never call the driver's: servers
would start without a cap, and no error would say so.
"""

from collections.abc import Iterator
import inspect
import typing as ty

#: Of the driver and of its host: what ours calls, with all that it passes.
CALLED: ty.Final = {
    '_get_vcpu_available': (),
    '_host.get_guest': ('instance',),
    '_host.is_cpu_control_policy_capable': (),
    '_host.list_guests': ('only_running',),
}
# Methods of ours alone.
_OWN = '_vqos'


def difference(ours: type, stock: type, host: type) -> str:
    """What this Nova has in another way, in words; '': nothing is known.

    :param ours: the driver, a subclass of stock
    :param stock: Nova's LibvirtDriver
    :param host: Nova's class of its attribute _host
    """
    found = sorted({*_overridden(ours, stock), *_called(stock, host)})
    return ('' if not found else
            'this release of Nova is not one that nova_vqos knows, servers '
            f'could start without a cap: {"; ".join(found)}')


def _overridden(ours: type, stock: type) -> Iterator[str]:
    for name, method in vars(ours).items():
        if not inspect.isfunction(method) or name.startswith(_OWN):
            continue
        theirs = getattr(stock, name, None)
        if theirs is None:
            yield f'LibvirtDriver has no {name}'
            continue
        mine, mine_more = _parameters(method)
        stocks, stocks_more = _parameters(theirs)
        if (any(one != other for one, other
                in zip(mine, stocks, strict=False))
                or len(mine) > len(stocks) and not stocks_more
                or len(mine) < len(stocks) and not mine_more):
            yield (f'LibvirtDriver.{name} takes {", ".join(stocks)}, not '
                   f'{", ".join(mine)}')


def _called(stock: type, host: type) -> Iterator[str]:
    for path, passed in CALLED.items():
        *attribute, name = path.split('.')
        owner = host if attribute else stock
        method = getattr(owner, name, None)
        if method is None:
            yield f'{owner.__name__} has no {name}'
            continue
        names, more = _parameters(method)
        if not more and not set(passed) <= set(names):
            yield (f'{owner.__name__}.{name} takes {", ".join(names)}, not '
                   f'{", ".join(passed)}')


def _parameters(method: ty.Any) -> tuple[list[str], bool]:
    """Names, without the first, and whether it takes any number of them."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return ([one.name for one in parameters
             if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)],
            any(one.kind == one.VAR_POSITIONAL for one in parameters))
