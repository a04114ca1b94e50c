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

"""Configuration files as the services read them, whatever is in them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
import functools
import os
import typing as ty

from oslo_config import cfg

from nova_vqos.conf import opts

# Of Nova's options those that are looked at; its defaults are not.
_NOVA_OPTS: Mapping[str | None, Sequence[cfg.Opt]] = {
    None: [cfg.StrOpt('compute_driver')],
    'api_database': [cfg.StrOpt('connection', secret=True)],
    'compute': [cfg.StrOpt('cpu_shared_set')],
    'filter_scheduler': [cfg.MultiStrOpt('available_filters', default=[]),
                         cfg.ListOpt('enabled_filters', default=[]),
                         cfg.ListOpt('weight_classes', default=[])],
    'libvirt': [cfg.StrOpt('virt_type', default='kvm')],
}
_OWN_PREFIX = 'vqos'


class Unreadable(Exception):
    """What a configuration says cannot be told."""


def nova_opts() -> dict[str | None, Sequence[cfg.Opt]]:
    """What is looked at of nova.conf, ours in it included."""
    own = own_opts()
    return {**_NOVA_OPTS, **own, None: [*_NOVA_OPTS[None], *own[None]]}


def own_opts() -> dict[str | None, Sequence[cfg.Opt]]:
    """All options of ours, and where the agent's message bus is."""
    found: dict[str | None, Sequence[cfg.Opt]] = {
        None if group is None else group.name: options
        for group, options in opts.list_opts()}
    found[None] = [*found.get(None, ()),
                   cfg.StrOpt('transport_url', secret=True)]
    return found


class Settings:
    """What some files say, all of them together.

    :ivar files: those that are there, in the order in which they are read
    """

    def __init__(self, files: Iterable[str], name: str,
                 options: Mapping[str | None, Sequence[cfg.Opt]]) -> None:
        """Prepare; nothing is read yet.

        :param files: those that are not there are left out
        :param name: of them, for people
        :param options: by group, to be asked for
        """
        self._name = name
        self._asked = tuple(files)
        self.files = tuple(filter(os.path.exists, self._asked))
        self._options = options

    def __str__(self) -> str:
        return ' and '.join(self.files) or self._name

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """What was read.

        :raises Unreadable: when there is no file, or one that is broken
        """
        if not self.files:
            raise Unreadable(f'there is no {self._name}, neither of '
                             f'{" nor ".join(self._asked)}')
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
        """The value of an option, its default where it is not set.

        :raises Unreadable: when it cannot be told
        """
        conf = self.conf
        try:
            return (conf if group is None else conf[group])[name]
        except (cfg.Error, ValueError) as error:
            raise Unreadable(
                f'{label(group, name)} of {self} is no good: {error}'
            ) from error

    def is_given(self, group: str | None, name: str) -> bool:
        """Whether a file sets an option.

        :raises Unreadable: when it cannot be told
        """
        return name in self._sections.get(group or 'DEFAULT', ())

    def problems(self) -> Iterator[str]:
        """What is wrong with the files, and with options of ours in them."""
        try:
            given = self._sections
            for group, options in self._options.items():
                for option in options:
                    yield from self._problem(group, option.dest)
        except Unreadable as error:
            yield str(error)
            return
        known = {group: {option.dest for option in options}
                 for group, options in own_opts().items()}
        for group, names in given.items():
            if not group.startswith(_OWN_PREFIX):
                continue
            if group not in known:
                yield f'{self} has a group [{group}], which there is not'
                continue
            for name in sorted(set(names) - known[group]):
                yield (f'{label(group, name)} of {self} is no option: '
                       'it has no effect')

    @functools.cached_property
    def _sections(self) -> dict[str, Collection[str]]:
        """The names that the files set, by section."""
        self.conf  # noqa: B018  what is broken is told in its words
        sections: dict[str, ty.Any] = {}
        for file in self.files:
            cfg.ConfigParser(file, sections).parse()
        return {section: {name.replace('-', '_') for name in names}
                for section, names in sections.items()}

    def _problem(self, group: str | None, name: str) -> Iterator[str]:
        try:
            self.get(group, name)
        except Unreadable as error:
            yield str(error)


def label(group: str | None, name: str) -> str:
    """An option as people write it."""
    return f'[{group or "DEFAULT"}] {name}'
