# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-status beside a real Nova, which imports what is ours, or not."""

from nova_vqos.cmd.status import importing


def test_nova_imports_all_of_it():
    found = dict(importing.ask())
    assert int(found.pop('version').partition('.')[0]) in importing.RELEASES
    assert found == {'driver': '', 'contract': '', 'scheduler': '',
                     'prefilter': '', 'validators': ''}


def test_a_nova_that_is_broken(tmp_path, monkeypatch):
    """Each part says so, and Nova's own version is told all the same."""
    package = tmp_path / 'nova'
    package.mkdir()
    (package / '__init__.py').write_text(
        'print("hello")\nraise ImportError("half an upgrade")\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=':')
    found = dict(importing.ask())
    assert found.pop('version')
    assert set(found.values()) == {'ImportError: half an upgrade'}


def test_a_validator_that_nova_does_not_find(tmp_path, monkeypatch):
    """Such as where only the files were copied."""
    (tmp_path / 'sitecustomize.py').write_text(
        'from stevedore import extension\n'
        'extension.ExtensionManager.list_entry_points = lambda _self: []\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=':')
    assert 'entry point' in importing.ask()['validators']
