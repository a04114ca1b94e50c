# SPDX-License-Identifier: Apache-2.0
"""The programs accept the commands in the guides."""

import argparse
from importlib import metadata
import re

from cliff import commandmanager
from cliff import complete
from oslo_config import cfg
import pytest

from nova_vqos import policy as policies
from nova_vqos.cmd import agent
from nova_vqos.cmd import partition
from nova_vqos.cmd import probe
from nova_vqos.cmd.calibrate import app as calibrate
from nova_vqos.cmd.manage import app as manage
from nova_vqos.cmd.status import app as status
from nova_vqos.conf import opts
from nova_vqos.hooks import install
from nova_vqos.tests.fixtures import doc_examples
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement

# Otherwise there is nothing to make tests of.
requirement.need(project.LACKING)

PAGES = doc_examples.pages()
# Of python-watcherclient, which no level of tests needs otherwise.
_WATCHER = 'openstack.infra_optim.v1'
# Those of openstackclient that our guides call, and what osc-placement adds.
OPENSTACK = ('openstack.cli', 'openstack.common', 'openstack.compute.v2',
             'openstack.identity.v3', 'openstack.image.v2',
             'openstack.placement.v1', 'openstack.vqos.v1', _WATCHER)
CLIFF = {'nova-vqos-calibrate': calibrate.CalibrateApp,
         'nova-vqos-manage': manage.ManageApp}


class _Taken(BaseException):
    """A program took its arguments, and was about to go on."""


def _stop(*_arguments, **_options):
    raise _Taken


def examples(*programs, whole=None):
    """The examples of some programs, as parameters of a test."""
    return [
        pytest.param(example, id=example.where)
        for page in PAGES for example in doc_examples.examples(page)
        if example.words[0] in programs and whole in (None, example.whole)]


# 1. Flavors.

@pytest.mark.parametrize('page', PAGES)
def test_flavors_promise_what_they_say(page):
    for where, _name, vcpus, specs in doc_examples.flavors(page):
        ours = [key for key in specs if 'vqos' in key.lower()
                and not key.startswith('trait:')]
        policy = policies.parse(specs, vcpus)
        assert (policy is not None) == bool(ours), where


@pytest.mark.parametrize('page', PAGES)
def test_single_properties_are_valid(page):
    for example in doc_examples.examples(page):
        given = doc_examples.properties(example.words)
        if example.refused:
            with pytest.raises(policies.PolicyError):
                policies.parse(given, 1)
            continue
        for key, value in given.items():
            policies.check_value(key, value)


def test_a_flavor_is_read_as_its_page_says(tmp_path, monkeypatch):
    monkeypatch.setattr(project, 'TOP', tmp_path)
    (tmp_path / 'page.rst').write_text("""
Make one::

    $ openstack flavor create web --vcpus 2 --ram 2048 \\
        --property resources:CUSTOM_VQOS_CPU_UNIT=120

and change it::

    openstack flavor set web --property vqos:cap=floor   # it may have more
""")
    units = {'resources:CUSTOM_VQOS_CPU_UNIT': '120'}
    assert doc_examples.flavors('page.rst') == [
        ('page.rst:4', 'web', 2, units),
        ('page.rst:9', 'web', 2, {**units, 'vqos:cap': 'floor'})]


# 2. Commands.

def cliff_parser(manager, words):
    """The parser of a command, and what is left for it.

    :raises ValueError: when there is no such command
    """
    factory, _name, rest = manager.find_command(list(words))
    command = factory(argparse.Namespace(NAME='', command_options=[]), None)
    return command.get_parser(''), rest


def known_options(parser):
    return {option for action in parser._actions
            for option in action.option_strings}


def check(example, manager, words):
    """Have the parser of a command take an example.

    :raises ValueError: when there is no such command
    """
    parser, rest = cliff_parser(manager, words)
    if example.whole:
        parser.parse_args(rest)
    else:
        # In a sentence options are named without their values.
        given = {word for word in rest if word.startswith('--')}
        assert given <= known_options(parser)


@pytest.mark.parametrize('example', examples(*CLIFF))
def test_programs_of_many_commands(example):
    app = CLIFF[example.words[0]]()
    _options, words = app.parser.parse_known_args(example.words[1:])
    check(example, app.command_manager, words)


@pytest.mark.parametrize('example', examples('nova-vqos-libvirt-hook'))
def test_hook(example, monkeypatch):
    monkeypatch.setattr(install, 'install', _stop)
    monkeypatch.setattr(install, 'uninstall', _stop)
    with pytest.raises(_Taken):
        install.main(example.words[1:])


@pytest.mark.parametrize('example', examples('nova-vqos-probe'))
def test_probe(example, monkeypatch):
    monkeypatch.setattr(probe.arguments, 'check_writable',
                        lambda *_arguments: None)
    monkeypatch.setattr(probe.probe, 'measure', _stop)
    with pytest.raises(_Taken):
        probe.main(list(example.words[1:]))


@pytest.mark.parametrize('example', examples('nova-vqos-partition'))
def test_partition(example, tmp_path, monkeypatch):
    path = tmp_path / 'nova-vqos.conf'
    path.write_text('[vqos]\nguaranteed_pcpus = 4-63\n')
    monkeypatch.setattr(partition.partitions, 'Partition', _stop)
    with pytest.raises(_Taken):
        partition.main(['--config-file', str(path), *example.words[1:]])


@pytest.mark.parametrize('example', examples('nova-vqos-agent',
                                             'nova-vqos-status'))
def test_agent_and_status(example, monkeypatch):
    monkeypatch.setattr(agent.cfg, 'CONF', cfg.ConfigOpts())
    monkeypatch.setattr(agent.service, 'launch', _stop)
    monkeypatch.setattr(status.catalogue.Commands, 'check', _stop)
    program = {'nova-vqos-agent': agent, 'nova-vqos-status': status}
    with pytest.raises(_Taken):
        program[example.words[0]].main(list(example.words[1:]))


@pytest.mark.parametrize('example', examples('openstack'))
def test_openstack(example):
    requirement.need_modules('openstackclient')
    words = list(example.words[1:])
    while words[0].startswith('--os-'):
        words = words[2:]
    if words[0] == 'optimize' and not metadata.entry_points(group=_WATCHER):
        requirement.need('python-watcherclient is missing')
    for namespace in OPENSTACK:
        manager = commandmanager.CommandManager(namespace)
        # Of all programs made with cliff.
        manager.add_command('complete', complete.CompleteCommand)
        try:
            check(example, manager, words)
        except ValueError:
            continue
        return
    pytest.fail(f'{example.where}: no such command: {" ".join(words)}')


# 3. Options of the configuration.

@pytest.mark.parametrize('page', PAGES)
def test_options_exist(page):
    known = {(str(group), option.name.replace('-', '_'))
             for group, options in opts.list_opts() for option in options}
    text = (project.TOP / page).read_text()
    named = set(re.findall(r'\[(vqos\w*)\]\s+(\w+)', text))
    assert named <= known
