# SPDX-License-Identifier: Apache-2.0
import pytest

from nova_vqos import version
import nova_vqos.cmd.calibrate.app
import nova_vqos.cmd.manage.app

by_program = pytest.mark.parametrize(('main', 'command'), [
    (nova_vqos.cmd.manage.app.main, 'host list'),
    (nova_vqos.cmd.calibrate.app.main, 'add-kind')])


@by_program
@pytest.mark.parametrize('given', [[], ['-v']])
def test_without_a_command_it_shows_all(main, command, given, capsys):
    assert main(given) == 1
    assert f'  {command} ' in capsys.readouterr().out


@by_program
def test_version(main, command, capsys):
    with pytest.raises(SystemExit):
        main(['--version'])
    assert capsys.readouterr().out.split()[1] == version.version()
