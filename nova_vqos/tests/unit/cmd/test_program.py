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
def test_commands_are_in_one_column(main, command, capsys):
    with pytest.raises(SystemExit):
        main(['--help'])
    shown = capsys.readouterr().out.partition('Commands:\n')[2].splitlines()
    found = {line[2:].partition('  ')[0] for line in shown}
    assert command in found
    assert not found & {'help', 'complete'}
    width = max(map(len, found))
    assert all(line[2 + width:4 + width] == '  ' != line[4 + width:6 + width]
               for line in shown)
    # The same as --help; of one command, its own.
    assert main(['help']) == 0
    assert capsys.readouterr().out.endswith('\n'.join(shown) + '\n')
    assert main(['help', *command.split()]) == 0
    assert command in capsys.readouterr().out


@by_program
def test_version(main, command, capsys):
    with pytest.raises(SystemExit):
        main(['--version'])
    assert capsys.readouterr().out.split()[1] == version.version()
