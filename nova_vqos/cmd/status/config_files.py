# SPDX-License-Identifier: Apache-2.0
"""Configuration files as the services read them, valid or not."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
import functools
import os
import typing as ty

from oslo_config import cfg

from nova_vqos.conf import opts

# The options of Nova that the checks read; their defaults do not matter.
_NOVA_OPTS: Mapping[str | None, Sequence[cfg.Opt]] = {
    None: [cfg.StrOpt('compute_driver')],
    'api_database': [cfg.StrOpt('connection', secret=True)],
    'compute': [cfg.StrOpt('cpu_shared_set')],
    'filter_scheduler': [cfg.MultiStrOpt('available_filters', default=[]),
                         cfg.ListOpt('enabled_filters', default=[]),
                         cfg.ListOpt('weight_classes', default=[])],
    'libvirt': [cfg.StrOpt('virt_type', default='kvm')],
}
#: The options of placement.conf that the checks read.
PLACEMENT_OPTS: Mapping[str | None, Sequence[cfg.Opt]] = {
    'placement': [cfg.IntOpt('allocation_conflict_retry_count', default=10)],
}
_OWN_PREFIX = 'vqos'


class Unreadable(Exception):
    """A file or an option is missing or invalid; the text says which."""


def nova_opts() -> dict[str | None, Sequence[cfg.Opt]]:
    """The options of nova.conf that the checks read, ours included."""
    own = own_opts()
    return {**_NOVA_OPTS, **own, None: [*_NOVA_OPTS[None], *own[None]]}


def own_opts() -> dict[str | None, Sequence[cfg.Opt]]:
    """All options of ours, and the URL of the message bus."""
    found: dict[str | None, Sequence[cfg.Opt]] = {
        None if group is None else group.name: options
        for group, options in opts.list_opts()}
    found[None] = [*found.get(None, ()),
                   cfg.StrOpt('transport_url', secret=True)]
    return found


class ConfigFiles:
    """The configuration files of one service.

    :ivar files: the existing ones, in the order in which they are read
    """

    def __init__(self, files: Iterable[str], name: str,
                 options: Mapping[str | None, Sequence[cfg.Opt]]) -> None:
        """Prepare; nothing is read yet.

        :param files: missing ones are skipped
        :param name: of the files, for people
        :param options: that may be asked for, by group
        """
        self._name = name
        self._candidates = tuple(files)
        self.files = tuple(filter(os.path.exists, self._candidates))
        self._options = options

    def __str__(self) -> str:
        return ' and '.join(self.files) or self._name

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The parsed files.

        :raises Unreadable: when there is no file, or a broken one
        """
        if not self.files:
            raise Unreadable(f'there is no {self._name}, neither of '
                             f'{" nor ".join(self._candidates)}')
        conf = cfg.ConfigOpts()
        for group, options in self._options.items():
            conf.register_opts(options, group=group)
        try:
            conf(args=[], default_config_files=list(self.files),
                 default_config_dirs=[])
        except (cfg.Error, OSError, ValueError) as error:
            raise Unreadable(f'{self} cannot be read: {error}') from error
        return conf

    def get(self, group: str | None, name: str) -> ty.Any:
        """Return the value of an option, its default where no file sets it.

        :raises Unreadable: when the files or the value are invalid
        """
        conf = self.conf
        try:
            return (conf if group is None else conf[group])[name]
        except (cfg.Error, ValueError) as error:
            raise Unreadable(
                f'{label(group, name)} of {self} is invalid: {error}'
            ) from error

    def is_set(self, group: str | None, name: str) -> bool:
        """Whether a file sets an option.

        :raises Unreadable: when the files are invalid
        """
        return name in self._sections.get(group or 'DEFAULT', ())

    def problems(self) -> Iterator[str]:
        """All errors of the files, and of our options in them."""
        try:
            sections = self._sections
        except Unreadable as error:
            yield str(error)
            return
        for group, options in self._options.items():
            for option in options:
                try:
                    self.get(group, option.dest)
                except Unreadable as error:
                    yield str(error)
        known = {group: {option.dest for option in options}
                 for group, options in own_opts().items()}
        for section, names in sections.items():
            if not section.startswith(_OWN_PREFIX):
                continue
            if section not in known:
                yield f'{self} has an unknown group [{section}]'
                continue
            for name in sorted(set(names) - known[section]):
                yield (f'{label(section, name)} of {self} is no option: '
                       'it has no effect')

    @functools.cached_property
    def _sections(self) -> dict[str, Collection[str]]:
        """The names that the files set, by section."""
        self.conf  # noqa: B018  it raises the error of a broken file
        sections: dict[str, ty.Any] = {}
        for file in self.files:
            cfg.ConfigParser(file, sections).parse()
        return {section: {name.replace('-', '_') for name in names}
                for section, names in sections.items()}


def label(group: str | None, name: str) -> str:
    """An option as people write it."""
    return f'[{group or "DEFAULT"}] {name}'
